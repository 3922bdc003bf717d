# SPDX-License-Identifier: Apache-2.0
"""A pod's life with the stand-in kubelet, as recordings of kubelet 1.36 show it: init containers, restarts, ends."""

from __future__ import annotations

import pytest
from support.device_manager import Box, DeviceManager
from support.scripted_plugin import RESOURCE, Scripted, given, pod, running


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


def test_apps_reuse_the_ids_of_inits_and_the_surplus_stays_held(kubelet, plugin):
    """
    A larger init's IDs: the app has some of them, the rest is given to nobody.
    """
    made = pod("a", inits=[Box("init", {RESOURCE: 6})], apps=[Box("main", {RESOURCE: 2})])
    running(kubelet, made)
    second = pod("b", 10)
    running(kubelet, second)
    assert set(given(kubelet)["a", "main"]) < set(plugin.allocated[0])
    assert not set(plugin.allocated[0]) & set(second.boxes["main"].ids)


@pytest.mark.usefixtures("plugin")
def test_a_sidecar_takes_the_inits_ids_and_keeps_them(kubelet):
    """
    The app then gets others.
    """
    inits = [Box("init", {RESOURCE: 3}), Box("side", {RESOURCE: 3}, sidecar=True)]
    made = pod("a", inits=inits, apps=[Box("main", {RESOURCE: 3})])
    running(kubelet, made)
    init, side, main = (set(made.boxes[name].ids) for name in ("init", "side", "main"))
    assert (init, set()) == (side, side & main)


def test_prestart_is_asked_again_with_the_same_ids(kubelet, plugin):
    """
    The pod waits, others start, no Allocate is repeated, and it heals by itself.
    """
    plugin.prestart_error = "not yet"
    made = kubelet.bind(pod("a"))
    kubelet.until(lambda: len(plugin.prestarted) >= 3)
    waiting = (made.phase, made.boxes["main"].reason, made.boxes["main"].starts)
    plugin.prestart_error = ""
    kubelet.until(lambda: made.phase == "Running")
    assert ("Pending", "CreateContainerConfigError", 0) == waiting
    assert (1, 1) == (len(plugin.allocated), len({tuple(ids) for ids in plugin.prestarted}))


def test_a_container_that_ends_is_prestarted_and_not_allocated_again(kubelet, plugin):
    """
    Also after the kubelet was restarted.
    """
    made = pod("a")
    running(kubelet, made)
    kubelet.crash(made, "main")
    kubelet.until(lambda: made.boxes["main"].starts == 2)
    plugin.leave()
    kubelet.restart(grace=None)
    plugin.serve()
    kubelet.until(lambda: kubelet.status() == (16, 16))
    kubelet.look_again()
    kubelet.crash(made, "main")
    kubelet.until(lambda: made.boxes["main"].starts == 3)
    assert (1, 3) == (len(plugin.allocated), len(plugin.prestarted))


def test_after_a_restart_without_the_plugin_only_running_containers_keep_theirs(kubelet, plugin):
    """
    A pod whose container does not run is rejected for good, its neighbour is left alone.
    """
    down, up = pod("down"), pod("up")
    running(kubelet, down, up)
    plugin.prestart_error = "not now"
    kubelet.crash(down, "main")
    kubelet.until(lambda: down.boxes["main"].reason)
    plugin.leave()
    kubelet.restart(grace=0.0)
    kubelet.until(lambda: down.phase == "Failed")
    assert ("Running", 4) == (up.phase, len(given(kubelet)["up", "main"]))
    assert "no healthy devices" in down.message


def test_a_plugin_that_is_gone_leaves_its_capacity_for_five_minutes(kubelet, plugin):
    """
    Allocatable is 0 at once, capacity later; running pods keep theirs, new ones fail.
    """
    forgotten = []
    kubelet.pace, kubelet._plugins.later = 1.0, lambda *what: forgotten.append(what)
    made = pod("a")
    running(kubelet, made)
    plugin.leave()
    kubelet.until(lambda: kubelet.status() == (16, 0))
    late = kubelet.bind(pod("late"))
    kubelet.until(lambda: late.phase != "Pending")
    assert (16, 0) == kubelet.status()
    ((seconds, forget),) = kubelet.until(lambda: forgotten)
    forget()
    assert (300.0, (0, 0)) == (seconds, kubelet.status())
    assert ("Failed", {("a", "main")}) == (late.phase, set(given(kubelet)))


def test_a_reboot_ends_every_process_and_keeps_the_ids(kubelet, plugin):
    """
    With the plugin there in time, every container starts again with the same IDs and without Allocate.
    """
    made = pod("a")
    running(kubelet, made)
    ids = made.boxes["main"].ids
    plugin.leave()
    kubelet.reboot(grace=None)
    groups = list(kubelet.cgroups.rglob("cgroup.procs"))
    plugin.serve()
    kubelet.until(lambda: kubelet.status() == (16, 16))
    kubelet.look_again()
    kubelet.until(lambda: made.boxes["main"].starts == 2)
    assert ([], ids, 1) == (groups, made.boxes["main"].ids, len(plugin.allocated))


@pytest.mark.usefixtures("plugin")
def test_a_pod_whose_containers_end_frees_its_ids(kubelet):
    """
    A Job's pod succeeds; the next takes all.
    """
    job = pod("job", apps=[Box("main", {RESOURCE: 16}, seconds=0.05)])
    kubelet.bind(job)
    kubelet.until(lambda: job.phase == "Succeeded")
    running(kubelet, pod("next", 16))
    assert {("next", "main")} == set(given(kubelet))
