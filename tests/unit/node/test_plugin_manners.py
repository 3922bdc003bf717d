# SPDX-License-Identifier: Apache-2.0
"""
Our plugin at a kubelet that behaves as the real one: registered in time, answered in time, never a wrong error.
"""

from __future__ import annotations

import time

import pytest
from support.device_manager import Box, DeviceManager, ManagedPod
from support.plugin_host import PlainMind, PluginHost
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import ACK
from isolation.node import plugin as plugin_module
from isolation.node import register
from isolation.node.book import device_of
from isolation.node.plugin import PluginError, message_of
from isolation.node.world import Device, NotYetError


@pytest.fixture
def kubelet():
    """A stand-in whose waits are a fiftieth of a real one's."""
    with DeviceManager(pace=0.02) as started:
        yield started


@pytest.fixture
def host(kubelet):
    """Registered, its devices known."""
    with PluginHost(kubelet, PlainMind()) as hosted:
        kubelet.until(lambda: kubelet.status() == (16, 16))
        yield hosted


def pod(name, units=4):
    """A pod of one container."""
    return ManagedPod("ns", name, f"uid-{name}", [Box("main", {ACK.memory: units})])


def test_a_pod_gets_what_the_agent_prefers(kubelet, host):
    """
    Asked for a preference, for an allocation and before the start, in that order, with the same IDs.
    """
    made = kubelet.bind(pod("a"))
    kubelet.until(lambda: made.boxes["main"].cdi or made.boxes["main"].reason)
    wanted = [f"GPU-0-_-{i}" for i in range(4)]
    assert wanted == sorted(made.boxes["main"].ids)
    asks, sets, ids = host.mind.heard[:3]
    assert ((16, (), 4), [wanted], wanted) == (
        (len(asks[0].available), asks[0].must, asks[0].size),
        [sorted(sets[0])],
        sorted(ids),
    )
    assert ["GetPreferredAllocation", "Allocate", "PreStartContainer"] == [m for m, _, _ in host.times.all[:3]]


def test_the_kubelet_learns_of_devices_that_change(kubelet, monkeypatch):
    """
    Without a look where the agent says so.
    """
    monkeypatch.setattr(plugin_module, "_LOOK_SECONDS", 3600.0)
    with PluginHost(kubelet, PlainMind()) as host:
        kubelet.until(lambda: kubelet.status() == (16, 16))
        host.mind.all = tuple(Device(one.id, healthy=i >= 4) for i, one in enumerate(host.mind.all))
        host.call(host.plugin.changed)
        kubelet.until(lambda: kubelet.status() == (16, 12))


def test_the_kubelet_learns_of_devices_that_changed_unsaid(kubelet, host):
    """
    By the next look.
    """
    host.mind.all = host.mind.all[:8]
    kubelet.until(lambda: kubelet.status() == (8, 8))


@pytest.mark.parametrize("fault", [RuntimeError("broken"), None], ids=["error", "timeout"])
def test_allocate_never_fails_whatever_happens_to_the_agent(kubelet, host, monkeypatch, fault):
    """
    The pod is admitted with devices that PreStart will look at, and the kubelet gets the name these IDs always have.
    """
    monkeypatch.setattr(plugin_module, "ANSWER_SECONDS", PATIENCE_SECONDS if fault else 0.1)
    host.mind.fault, host.mind.hold = fault, 0.0 if fault else 3600.0
    made = kubelet.bind(pod("a"))
    kubelet.until(lambda: made.admitted)
    monkeypatch.setattr(plugin_module, "ANSWER_SECONDS", PATIENCE_SECONDS)
    host.mind.fault, host.mind.hold = None, 0.0
    kubelet.until(lambda: made.boxes["main"].reason == "CreateContainerError")

    ids = made.boxes["main"].ids
    assert (4, f"unresolvable CDI devices {device_of(ids)}") == (
        len(ids),
        made.boxes["main"].message.split(": ")[-1],
    )
    assert {"GPU-0"} == {one.split("-_-")[0] for one in ids}
    assert {"error" if fault else "timeout"} == {o for m, _, o in host.times.all if m != "PreStartContainer"}


@pytest.mark.parametrize(
    ("fault", "said"), [(NotYetError("the card is in use"), "the card is in use"), (KeyError("x"), "see its log")]
)
def test_prestart_says_why_not_and_is_asked_again(kubelet, host, fault, said):
    """
    The reason reaches the kubelet; the pod waits and is not failed.
    """
    made = kubelet.bind(pod("a"))
    kubelet.until(lambda: made.admitted)
    host.mind.fault = fault
    kubelet.until(lambda: made.boxes["main"].attempts >= 2)
    kubelet.until(lambda: said in made.boxes["main"].message)
    assert ("Pending", "CreateContainerConfigError") == (made.phase, made.boxes["main"].reason)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("down", [0.0, 0.3], ids=["at-once", "later"])
def test_it_registers_again_within_a_moment_when_the_kubelet_starts_anew(kubelet, down):
    """
    The kubelet has cleared the folder, our socket too; we look ten times a second, and nobody loses devices.
    """
    assert register.LOOK_SECONDS <= 0.1
    made = kubelet.bind(pod("a"))
    kubelet.until(lambda: made.admitted)
    for times in (2, 3, 4):
        kubelet.gone()
        time.sleep(down)
        kubelet.back()
        kubelet.until(lambda: len(kubelet.registrations) == times)  # noqa: B023 (asked at once)
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_a_kubelet_that_refuses_is_asked_again_and_the_reason_is_told(kubelet):
    """
    A resource name that it does not take: not registered, with its words.
    """
    with PluginHost(kubelet, PlainMind(), resource="nonsense") as hosted:
        kubelet.until(lambda: "registering nonsense failed" in hosted.registrar.standing.trouble)
        assert not hosted.registrar.standing.registered


def test_the_socket_of_a_dead_agent_is_no_obstacle(kubelet):
    """
    A file that was left lying there is replaced.
    """
    (kubelet.plugins / "gpushare.sock").write_text("stale")
    with PluginHost(kubelet, PlainMind()):
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_no_kubelet_is_no_error(kubelet):
    """
    It waits until one is there.
    """
    kubelet.gone()
    for path in kubelet.plugins.iterdir():
        path.unlink()
    with PluginHost(kubelet, PlainMind()) as hosted:
        kubelet.until(lambda: "socket does not exist" in hosted.registrar.standing.trouble)
        kubelet.back()
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_messages_of_the_largest_machine_are_small():
    """
    8 cards of 180 GB in units of 1 GiB: far below what a kubelet takes; in MiB it is refused with the remedy.
    """
    uuid = "GPU-8f2c5a1e-0000-4000-8000-{:012x}"
    many = [Device(f"{uuid.format(card)}-_-{i}", healthy=True) for card in range(8) for i in range(180)]
    assert message_of(many).ByteSize() < 512 << 10
    with pytest.raises(PluginError, match="use a larger --memory-unit"):
        message_of(many * 60)


def test_a_socket_path_that_is_too_long_is_refused(tmp_path):
    """
    With a word about it instead of a failure of gRPC.
    """
    with pytest.raises(PluginError, match="socket path is longer"):
        plugin_module.Plugin(PlainMind(), tmp_path / ("x" * 100) / "gpushare.sock", None)
