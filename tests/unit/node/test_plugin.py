# SPDX-License-Identifier: Apache-2.0
"""Our device plugin at a kubelet that behaves as the real one: registered in time, one answer for all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import grpc
import pytest
from support.device_manager import DeviceManager
from support.waiting import PATIENCE_SECONDS

from isolation.contract import kubelet_api as api
from isolation.contract.names import GATE_DEVICE
from isolation.kube.background import Background
from isolation.node.core.units import Device
from isolation.node.device_plugin import register
from isolation.node.device_plugin.plugin import Plugin, PluginError, message_of
from isolation.node.device_plugin.register import Registrar


class Host:
    """Our plugin and its registration in a thread, over what the test says; a kubelet may call it directly."""

    def __init__(self, kubelet, resource=""):
        self.kubelet, self.resource = kubelet, resource or kubelet.resource
        self.all = tuple(Device(f"1GiB-{number}", healthy=True) for number in range(16))
        self.obstacle = ""
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    def call(self, method, request, answer, seconds=PATIENCE_SECONDS):
        """As the kubelet."""
        with grpc.insecure_channel(f"unix:{self.plugin.path}") as channel:
            ask = channel.unary_unary(f"/{api.PLUGIN}/{method}", lambda m: m.SerializeToString(), answer.FromString)
            return ask(request, timeout=seconds)

    async def _run(self):
        self._over = asyncio.Event()
        self.plugin = Plugin(lambda: self.all, self.kubelet.plugins / "gpushare.sock", GATE_DEVICE)
        self.registrar = Registrar(self.plugin, self.kubelet.plugins, self.resource, lambda: self.obstacle)
        async with Background().cycles("registration", self.registrar.cycle):
            self._ready.set()
            await self._over.wait()
        await self.plugin.stop(0.5)


@pytest.fixture
def kubelet():
    """A stand-in whose waits are a fiftieth of a real one's."""
    with DeviceManager(pace=0.02) as started:
        yield started


@pytest.fixture
def host(kubelet):
    """Registered, its units known."""
    with Host(kubelet) as hosted:
        kubelet.until(lambda: kubelet.status() == (16, 16))
        yield hosted


def test_every_container_is_answered_with_the_gate_whatever_its_units(host):
    """And with nothing else: which card, which limits and which pod is not the kubelet's to say."""
    request = api.AllocateRequest(
        container_requests=[{"devices_ids": ids} for ids in (["1GiB-3"], ["1GiB-1", "of a release before"], [])]
    )
    answers = host.call("Allocate", request, api.AllocateResponse).container_responses
    assert 3 == len(answers)
    for answer in answers:
        assert [GATE_DEVICE] == [device.name for device in answer.cdi_devices]
        answer.ClearField("cdi_devices")
        assert b"" == answer.SerializeToString()


def test_the_kubelet_chooses_for_itself_and_asks_nothing_before_a_start(host):
    """A plugin that is asked before starts wedges pods that its kubelet admitted before it was there."""
    said = host.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
    assert api.DevicePluginOptions() == said
    for method in ("GetPreferredAllocation", "PreStartContainer"):
        with pytest.raises(grpc.RpcError) as missing:
            host.call(method, api.Empty(), api.Empty)
        assert grpc.StatusCode.UNIMPLEMENTED == missing.value.code()


def test_the_kubelet_learns_of_units_that_change(kubelet, host):
    host.all = host.all[:8]
    kubelet.until(lambda: kubelet.status() == (8, 8))
    host.all = tuple(Device(one.id, healthy=number >= 4) for number, one in enumerate(host.all))
    kubelet.until(lambda: kubelet.status() == (8, 4))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("down", [0.0, 0.3], ids=["at once", "later"])
def test_it_registers_again_within_a_moment_when_the_kubelet_restarts(kubelet, down):
    """The kubelet has cleared the folder, our socket too; we look ten times a second."""
    assert register.LOOK_SECONDS <= 0.1
    for times in (2, 3, 4):
        kubelet.gone()
        time.sleep(down)
        kubelet.back()
        kubelet.until(lambda: len(kubelet.registrations) == times)  # noqa: B023 (asked at once)
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_units_of_another_release_keep_us_from_registering(kubelet):
    """What the kubelet has given away by other IDs would be counted twice; it says what to do."""
    host = Host(kubelet)
    host.obstacle = "the kubelet has given containers devices of another release: drain the node"
    with host:
        kubelet.until(lambda: host.registrar.standing.trouble == host.obstacle)
        time.sleep(0.3)
        assert (0, False) == (len(kubelet.registrations), host.plugin.path.exists())
        host.obstacle = ""
        kubelet.until(lambda: kubelet.status() == (16, 16))
        host.obstacle = "the agent is new and has another unit"
        kubelet.until(lambda: kubelet.status()[1] == 0)
        kubelet.until(lambda: host.registrar.standing.trouble == host.obstacle)
        host.obstacle = ""
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_a_kubelet_that_refuses_is_asked_again_and_the_reason_is_reported(kubelet):
    """A resource name that it does not take: not registered, with its words."""
    with Host(kubelet, resource="nonsense") as hosted:
        kubelet.until(lambda: "registering nonsense failed" in hosted.registrar.standing.trouble)
        assert not hosted.registrar.standing.registered


def test_the_socket_of_a_dead_agent_is_no_obstacle(kubelet):
    (kubelet.plugins / "gpushare.sock").write_text("stale")
    with Host(kubelet):
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_no_kubelet_is_no_error(kubelet):
    kubelet.gone()
    with contextlib.suppress(FileNotFoundError):
        (kubelet.plugins / "kubelet.sock").unlink()
    with Host(kubelet) as hosted:
        kubelet.until(lambda: "socket does not exist" in hosted.registrar.standing.trouble)
        kubelet.back()
        kubelet.until(lambda: kubelet.status() == (16, 16))


def test_messages_of_the_largest_machine_are_small():
    """8 cards of 288 GB in units of 256 MiB; what a kubelet would not take is refused with the remedy."""
    many = [Device(f"256MiB-{number}", healthy=True) for number in range(8 * 288 * 4)]
    assert message_of(many).ByteSize() < 512 << 10
    with pytest.raises(PluginError, match="use a larger --memory-unit"):
        message_of(many * 60)


def test_a_socket_path_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(PluginError, match="socket path is longer"):
        Plugin(tuple, tmp_path / ("x" * 100) / "gpushare.sock", GATE_DEVICE)
