# SPDX-License-Identifier: Apache-2.0
"""Two at one time: whoever clears away, restarts, dies or waits takes nothing of anybody else's."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from support.agent_story import ended, run, started, ticks

from isolation.node.book import Entry, card_of, hash_of
from isolation.node.world import NotYetError


@pytest.fixture
def node():
    return started()


def test_the_next_owners_files_outlive_the_former_ones_clearing_away(node):
    """
    Two find at once that the former owner is gone; only one clears up, and never behind the next one's back.
    """
    old = node.bind("old", main=(0, 8))
    ids = run(node.admit("old"))["main"]
    run(node.start("old", "main"))
    node.time += 10
    node.force_delete("old")
    node.processes.discard(old.uid)
    node.bind("new", main=(0, 8))
    assert ids == run(node.admit("new"))["main"]

    async def both():
        await asyncio.gather(node.agent.tick(), node.agent.prestart(sorted(ids)), node.agent.tick())

    run(both())

    assert "new" == node.files[hash_of(ids)].pod.name
    assert ["new"] == [entry.pod for entry in node.agent.book]


def test_who_comes_and_goes_takes_no_files_of_who_still_runs_on_the_same_devices(node):
    """
    A force-deleted pod's process lives on; the next one got the very same devices, and is deleted before it starts.
    """
    node.bind("old", main=(0, 8))
    ids = run(node.admit("old"))["main"]
    run(node.start("old", "main"))
    node.force_delete("old")
    node.bind("new", main=(0, 8))
    assert ids == run(node.admit("new"))["main"]
    node.force_delete("new")
    ticks(node, 30)

    assert ["old"] == [entry.pod for entry in node.agent.book]
    assert "old" == node.files[hash_of(ids)].pod.name


def test_a_kubelet_without_memory_admits_init_and_app_again(node):
    """
    Each gets what it had, in turn, also while the API server is away and the agent is new.
    """
    node.bind("other", main=(1, 4))
    run(node.admit("other"))
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 2))
    boxes = run(node.admit("a"))
    node.admitted.clear()
    node.in_use.clear()
    node.api_up, node.watching = False, False
    node.restart_agent()
    run(node.agent.start())
    watched, node.watched = node.watched, {}

    again = run(node.admit("a"))

    assert boxes["fetch"] == again["fetch"]
    assert {"GPU-0"} == {card_of(one) for one in again["main"]}
    node.api_up, node.watching, node.watched = True, True, watched
    assert "fetch" == run(node.start("a", "fetch")).container
    node.change("a", wanted=tuple(ended(one) for one in node.api["a"].wanted))
    assert "main" == run(node.start("a", "main")).container
    ticks(node, 2)
    assert again["fetch"] == {one for entry in node.agent.book.of(node.api["a"].uid) for one in entry.ids}


def test_one_container_on_a_wrong_card_spoils_the_pod(node):
    """
    What the kubelet lists for a pod that runs is on the record's cards, all of it.
    """
    pod = node.bind("a", one=(0, 2), two=(0, 2))
    right, wrong = node.ids(0, 0, 1), node.ids(1, 0, 1)
    node.admitted[pod.uid] = {}
    for name, ids in (("one", right), ("two", wrong)):
        run(node.agent.allocate([sorted(ids)]))
        node.admitted[pod.uid][name] = ids

    with pytest.raises(NotYetError, match="GPU-1"):
        run(node.agent.prestart(sorted(right)))
    ticks(node, 5)
    assert ["a"] == [name for name, _ in node.deleted]


@pytest.mark.parametrize("order", list(itertools.permutations(("a", "b", "c"))), ids="".join)
def test_a_crash_between_any_two_steps_loses_nothing(node, order):
    """
    The agent is killed after each admission and each start: what it answered stands.
    """
    for name in order:
        node.bind(name, main=({"a": 0, "b": 1, "c": 0}[name], 4))
    boxes = {}
    for name in order:
        boxes[name] = run(node.admit(name))["main"]
        node.restart_agent()
        run(node.agent.start())
        run(node.start(name, "main"))
        node.restart_agent()
        run(node.agent.start())

    assert {"a": "GPU-0", "b": "GPU-1", "c": "GPU-0"} == {name: card_of(min(ids)) for name, ids in boxes.items()}
    assert 12 == len(frozenset.union(*boxes.values()))
    for name in order:
        node.vanish(name)
    ticks(node, 10)
    assert (set(), {}) == (node.agent.book.held(), node.files)


def test_devices_of_another_plugin_in_the_kubelets_list_stay_out_of_the_book(node):
    """
    Pods of the plugin that was here before keep what they have: nothing of it is ours to write down or to take.
    """
    old = node.bind("old", main=(0, 2), record=False)
    node.admitted[old.uid] = {"main": frozenset({"vendor-0", "vendor-1"})}
    node.change("old", started=True)
    node.bind("new", main=(1, 2))
    run(node.admit("new"))
    ticks(node, 30)
    assert (["new"], []) == ([entry.pod for entry in node.agent.book], node.deleted)


@pytest.mark.parametrize("started", [True, False])
def test_a_container_whose_devices_stand_otherwise_in_the_book_does_not_wait_for_ever(node, started):
    """
    The kubelet gives it what the book does not say, and never asks again: the pod is made anew within a minute.
    """
    pod = node.bind("a", main=(0, 2), second=(0, 2))
    run(node.admit("a"))
    if started:
        run(node.start("a", "main"))
    node.admitted[pod.uid]["second"] = node.ids(0, 6, 7)
    began = node.time
    while not node.deleted and node.time < began + 100:
        ticks(node, 1)

    assert ["a"] == [name for name, _ in node.deleted]
    assert node.time - began < 60


def test_a_pod_that_the_kubelet_has_not_admitted_is_not_the_one_that_starts(node):
    """
    Its record would fit, and it lacks devices; but the kubelet does not show it.
    """
    node.bind("queued", init=("prepare",), prepare=(1, 2))
    second = node.bind("second", init=("prepare",), prepare=(0, 2))
    ids = node.ids(1, 6, 7)
    node.agent._ledger.claim(Entry(ids, made=node.agent.book.next()))
    node.admitted[second.uid] = {"prepare": ids}

    with pytest.raises(NotYetError, match="GPU-1, but the pod was placed on GPU-0"):
        run(node.agent.prestart(sorted(ids)))
    assert {second.uid} == {entry.uid for entry in node.agent.book}


def test_a_wait_for_devices_that_went_to_another_pod_meanwhile_ends(node):
    """
    The pod for which PreStart was asked is gone; its devices are another one's, whose turn has not come.
    """
    node.bind("old", main=(0, 8))
    run(node.admit("old"))
    run(node.start("old", "main"))
    node.force_delete("old")
    first = node.bind("first", main=(0, 8))
    ids = run(node.admit("first"))["main"]
    sleep, seen = node.sleep, []

    async def meanwhile(seconds):
        await sleep(seconds)
        if not seen:
            node.vanish("first")
            node.processes.clear()
            for entry in node.agent.book.of(first.uid):
                node.agent._ledger.release(entry)
            node.bind("next", main=(0, 8))
            seen.append(await node.admit("next"))

    node.sleep = meanwhile
    with pytest.raises(NotYetError, match="another pod"):
        run(node.agent.prestart(sorted(ids)))
    assert [{"main": ids}] == seen


def test_a_container_that_was_given_other_devices_while_the_agent_died_starts_with_those(node):
    """
    A kubelet that had counted the pod as ended gives it devices again; the agent dies before it writes them down.
    """
    pod = node.bind("a", main=(1, 4))
    before = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    node.processes.clear()
    again = node.ids(1, *(4, 5, 6, 7))
    assert before.isdisjoint(again)
    node.admitted[pod.uid] = {"main": again}

    promise = run(node.start("a", "main"))
    assert ("main", again) == (promise.container, frozenset(promise.ids))
    assert [again] == [one.ids for one in node.agent.book]
