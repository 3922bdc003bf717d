# SPDX-License-Identifier: Apache-2.0
"""Which devices the stand-in kubelet gives, as recordings of kubelet 1.36 show it."""

from __future__ import annotations

import time

import pytest
from support.device_manager import Box, DeviceManager
from support.scripted_plugin import RESOURCE, Scripted, given, pod, running
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
def kubelet():
    """A stand-in whose waits are a fiftieth of a real one's."""
    with DeviceManager(resource=RESOURCE, pace=0.02, seed=7) as started:
        yield started


@pytest.fixture
def plugin(kubelet):
    """Registered, its devices known."""
    with Scripted(kubelet) as scripted:
        kubelet.until(lambda: kubelet.status() == (16, 16))
        yield scripted


def test_free_ids_are_given_written_down_and_prestart_comes_before_the_start(kubelet, plugin):
    """
    The same IDs each time; the kubelet's file has them.
    """
    made = pod("a")
    running(kubelet, made)
    wanted = sorted(made.boxes["main"].ids)
    assert wanted == sorted(plugin.allocated[0]) == sorted(plugin.prestarted[0]) == sorted(given(kubelet)["a", "main"])
    assert set(wanted) < set(plugin.ids)


def test_an_error_of_allocate_fails_the_pod_for_good(kubelet, plugin):
    """
    Failed, not retried; its IDs are free for the next.
    """
    plugin.allocate_error = "no"
    bad = kubelet.bind(pod("bad", 16))
    kubelet.until(lambda: bad.phase == "Failed")
    plugin.allocate_error = ""
    good = pod("good", 16)
    running(kubelet, good)
    assert ("UnexpectedAdmissionError", True, {("good", "main")}) == (
        bad.reason,
        "no" in bad.message,
        set(given(kubelet)),
    )


def test_a_slow_allocate_holds_up_everything(kubelet, plugin):
    """
    A pod without devices waits behind it, and so does a deletion.
    """
    before = pod("before", 1)
    running(kubelet, before)
    plugin.may_allocate.clear()
    slow, plain = kubelet.bind(pod("slow")), kubelet.bind(pod("plain", apps=[Box("main")]))
    kubelet.delete(before)
    kubelet.until(lambda: slow.uid in kubelet.known)
    time.sleep(0.2)  # nothing happens meanwhile, however long it takes
    held = (slow.phase, plain.phase, before.phase)
    plugin.may_allocate.set()
    kubelet.until(lambda: (slow.phase, plain.phase, before.phase) == ("Running", "Running", "Gone"))
    assert ("Pending", "Pending", "Running") == held


@pytest.mark.usefixtures("plugin")
def test_the_ids_of_a_force_deleted_pod_are_free_while_its_process_lives(kubelet):
    """
    The next owner runs beside the old process.
    """
    old = pod("old", 16)
    running(kubelet, old)
    kubelet.linger = PATIENCE_SECONDS
    kubelet.force_delete(old)
    new = pod("new", 16)
    running(kubelet, new)
    groups = {path.parent.parent.name for path in kubelet.cgroups.rglob("cgroup.procs")}
    kubelet.let_go.set()
    kubelet.until(lambda: not (kubelet.cgroups / "kubepods/besteffort/poduid-old").exists())
    assert {"poduid-old", "poduid-new"} == groups


@pytest.mark.usefixtures("plugin")
def test_the_tenants_env_and_mounts_win_over_allocate_and_lose_against_cdi(kubelet):
    """
    What counts must come by CDI.
    """
    box = Box("main", {RESOURCE: 1}, env={"FROM": "tenant"}, mounts={"/ours": "/tenant"})
    made = pod("a", apps=[box])
    running(kubelet, made)
    started = made.boxes["main"]
    assert ({"FROM": "tenant", "ONLY": "plugin"}, {"/ours": "/tenant"}) == (started.env, started.mounts)
