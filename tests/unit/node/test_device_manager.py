# SPDX-License-Identifier: Apache-2.0
"""Which devices the stand-in kubelet gives, as recordings of kubelet 1.36 show it: also what it gives twice."""

from __future__ import annotations

import time

import pytest
from support.device_manager import Box, DeviceManager
from support.scripted_plugin import RESOURCE, Scripted, get, listed, pod, running
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


def test_the_preferred_ids_are_given_and_prestart_comes_before_the_start(kubelet, plugin):
    """
    An exact answer is honoured; the container starts after PreStart with these IDs.
    """
    plugin.prefer = lambda available, _must, size: sorted(available)[:size]
    made = pod("a")
    running(kubelet, made)

    wanted = [f"GPU-0-_-{i}" for i in range(4)]
    assert wanted == sorted(plugin.allocated[0]) == sorted(plugin.prestarted[0]) == sorted(made.boxes["main"].ids)
    assert {"main": wanted} == {name: sorted(ids) for name, ids in get(kubelet, "a").items()}


def test_free_ids_of_all_cards_are_offered_in_no_order(kubelet, plugin):
    """
    What is offered is every free ID once, not sorted.
    """
    running(kubelet, pod("a"))
    available, must, size = plugin.preferred[0]
    assert (sorted(plugin.ids), [], 4) == (sorted(available), must, size)
    assert available != sorted(available)


@pytest.mark.parametrize("answer", ["none", "short", "unknown", "repeated"])
def test_a_preference_that_does_not_suffice_is_filled_at_random_over_the_cards(kubelet, plugin, answer):
    """
    The kubelet takes what makes sense of it and mixes cards for the rest.
    """
    said = {"none": [], "short": ["GPU-0-_-0"], "unknown": ["GPU-9-_-0"] * 8, "repeated": ["GPU-0-_-0"] * 8}[answer]
    plugin.prefer = lambda *_: said
    made = pod("a", 8)
    running(kubelet, made)
    cards = {one.split("-_-")[0] for one in made.boxes["main"].ids}
    assert (8, {"GPU-0", "GPU-1"}) == (len(set(made.boxes["main"].ids)), cards)


def test_an_error_of_allocate_fails_the_pod_for_good(kubelet, plugin):
    """
    Failed, not retried, not listed; its IDs are free for the next.
    """
    plugin.allocate_error = "no"
    bad = kubelet.bind(pod("bad", 16))
    kubelet.until(lambda: bad.phase == "Failed")
    plugin.allocate_error = ""
    good = pod("good", 16)
    running(kubelet, good)
    assert ("UnexpectedAdmissionError", True, None) == (bad.reason, "no" in bad.message, get(kubelet, "bad"))


def test_a_slow_allocate_holds_up_everything(kubelet, plugin):
    """
    A pod without devices waits behind it, and so does a deletion.
    """
    before = pod("before", 1)
    running(kubelet, before)
    plugin.may_allocate.clear()
    slow, plain = kubelet.bind(pod("slow")), kubelet.bind(pod("plain", apps=[Box("main")]))
    kubelet.delete(before)
    kubelet.until(lambda: get(kubelet, "slow") is not None)
    time.sleep(0.2)  # nothing happens meanwhile, however long it takes
    held = (slow.phase, plain.phase, before.phase)
    plugin.may_allocate.set()
    kubelet.until(lambda: (slow.phase, plain.phase, before.phase) == ("Running", "Running", "Gone"))
    assert ("Pending", "Pending", "Running") == held


def doubled(kubelet, plugin, look):
    """Two pods one after the other while a third ends; whether they got IDs in common."""
    old = pod("old", 2)
    running(kubelet, old)
    plugin.may_allocate.clear()
    first = kubelet.bind(pod("first", 4))
    kubelet.until(lambda: get(kubelet, "first") is not None)
    old.phase = "Succeeded"
    look()
    plugin.may_allocate.set()
    kubelet.until(lambda: first.phase == "Running")
    second = pod("second", 12)
    running(kubelet, second)
    return bool(set(first.boxes["main"].ids) & set(second.boxes["main"].ids))


def test_a_list_during_an_allocate_makes_the_kubelet_give_ids_twice(kubelet, plugin):
    """
    The fault that an agent's own book is for.
    """
    assert doubled(kubelet, plugin, lambda: listed(kubelet))


def test_a_get_during_an_allocate_does_not(kubelet, plugin):
    """
    The same story with Get.
    """
    assert not doubled(kubelet, plugin, lambda: get(kubelet, "first"))


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
