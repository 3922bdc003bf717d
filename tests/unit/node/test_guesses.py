# SPDX-License-Identifier: Apache-2.0
"""Guesses about who is being admitted: taken back when they were wrong, and nobody waits for ever for them."""

from __future__ import annotations

import pytest
from support.agent_story import run, started, ticks, unseen

from isolation.node.book import Entry
from isolation.node.turn import Found
from isolation.node.world import Ask, NotYetError


@pytest.fixture
def node():
    return started()


def test_a_guess_about_an_init_container_is_taken_back_when_the_kubelet_says_otherwise(node):
    """
    A pod with nothing but an init container looks as if it were always being admitted: another one was.
    """
    lonely, boxes = unseen(node, "lonely", init=("fetch",), fetch=(1, 2))
    node.watched["lonely"] = lonely
    unheard, others = unseen(node, "unheard", main=(1, 2))

    assert "lonely" == next(one.pod for one in node.agent.book if one.ids == others["main"])
    promise = run(node.start("unheard", "main"))

    assert ("unheard", "main") == (promise.pod.name, promise.container)
    entry = next(one for one in node.agent.book if one.ids == others["main"])
    assert (unheard.uid, "main") == (entry.uid, entry.container)
    assert all(promise.pod.name != "lonely" for promise in node.files.values())
    assert boxes["fetch"] <= node.agent.book.held()


def test_pods_with_nothing_but_init_containers_are_known_when_everybody_answers(node):
    """
    The kubelet lists none of their devices; but each was the only one that could be meant when it was admitted.
    """
    boxes = {}
    for name in ("a", "b", "c"):
        node.bind(name, init=("fetch",), fetch=(0, 2))
        boxes[name] = run(node.admit(name))["fetch"]
    assert [("a", False), ("b", False), ("c", False)] == [(one.pod, one.guessed) for one in node.agent.book]
    for name in ("c", "a", "b"):
        assert name == run(node.start(name, "fetch")).pod.name


def test_who_is_not_seen_yet_is_not_taken_for_the_one_that_lacks_something(node):
    """
    A pod of init containers whose entry was lost stands there lacking it; the one that is admitted is another.
    """
    lost = node.bind("lost", init=("fetch",), fetch=(0, 2))
    node.admitted[lost.uid] = {"fetch": node.ids(1, 0, 1)}
    node.in_use |= node.ids(1, 0, 1)
    new = node.bind("new", init=("fetch",), fetch=(0, 2), main=(0, 1), watched=False)
    boxes = run(node.admit("new"))
    assert {new.uid} == {entry.uid for entry in node.agent.book}
    assert "new" == run(node.start("new", "fetch")).pod.name
    assert {"fetch", "main"} == boxes.keys()


def test_a_guess_that_was_the_init_containers_is_not_thrown_away_with_the_apps(node):
    """
    Both have the very same devices and were admitted while the kubelet was silent: the book has both in the end.
    """
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 4))
    node.has_get = False
    run(node.admit("a"))
    node.has_get = True
    ticks(node, 2)
    assert {"fetch", "main"} == {entry.container for entry in node.agent.book if entry.uid}
    assert "fetch" == run(node.start("a", "fetch")).container


def test_of_two_that_cannot_be_told_apart_one_is_made_anew_and_the_other_starts(node):
    """
    Pods of init containers, admitted in the dark, each guessed to be one of the two: no start by luck, and no end
    of waiting for both.
    """
    for name in ("a", "b"):
        node.bind(name, init=("fetch",), fetch=(0, 2))
    node.has_get = False
    for name in ("b", "a"):
        run(node.admit(name))
    node.has_get = True
    assert all(entry.guessed for entry in node.agent.book)
    for name in ("a", "b"):
        with pytest.raises(NotYetError, match="not confirmed yet"):
            run(node.start(name, "fetch"))
    ticks(node, 50)
    assert 1 == len(node.deleted)
    left = next(iter(node.api))
    ticks(node, 2)
    assert left == run(node.start(left, "fetch")).pod.name


def test_a_pod_that_was_deleted_before_its_admission_is_not_taken_for_the_next_one(node):
    """
    The kubelet shows it with containers without devices, and never admits it: who comes next is somebody else.
    """
    gone = node.bind("gone", main=(0, 2))
    node.change("gone", deleting=True)
    node.admitted[gone.uid] = {"main": frozenset()}
    node.bind("next", main=(0, 2))
    run(node.admit("next"))
    assert ["next"] == [entry.pod for entry in node.agent.book]
    assert "next" == run(node.start("next", "main")).pod.name


def test_a_container_of_which_the_kubelet_lists_nothing_is_not_the_one_that_starts(node):
    """
    The watch was behind, and the deleted pod was taken for the next one: its promise goes to nobody else.
    """
    gone = node.bind("gone", main=(0, 2))
    node.admitted[gone.uid] = {"main": frozenset()}
    node.bind("next", main=(0, 2))
    run(node.admit("next"))
    assert ["gone"] == [entry.pod for entry in node.agent.book]
    with pytest.raises(NotYetError, match="another pod received these devices"):
        run(node.start("next", "main"))
    node.vanish("gone")
    assert "next" == run(node.start("next", "main")).pod.name


@pytest.mark.parametrize("moment", ["before the question", "between question and answer"])
def test_who_had_its_turn_is_not_taken_for_the_one_that_is_admitted_now(node, moment):
    """
    An init container and a sidecar were admitted in the dark, with the very same devices; the app is next.

    The kubelet shows the sidecar's devices, so the init container before it is not the one; and what the agent
    learned by itself between the two calls counts too.
    """
    pod = node.bind("a", watched=False, init=("warm",), warm=(1, 2), helper=(1, 2), main=(1, 2))
    ids, others = node.ids(1, 0, 1), node.ids(1, 2, 3)
    node.api_up, boxes = False, node.admitted.setdefault(pod.uid, {})
    for name in ("warm", "helper"):
        run(node.agent.allocate([sorted(ids)]))
        boxes[name] = ids
    node.api_up, node.watched["a"] = True, pod
    if moment == "before the question":
        run(node.agent.preferred([Ask(tuple(node.offered()), (), 2)]))
    else:
        node.agent._expected = (others, Found(pod, pod.wanted[0]), node.time + 60)
        run(node.agent.tick())
    run(node.agent.allocate([sorted(others)]))
    boxes["main"] = others
    ticks(node, 1)

    assert {"warm": ids, "helper": ids, "main": others} == {one.container: one.ids for one in node.agent.book}


def test_a_guess_that_the_kubelet_does_not_show_was_not_the_containers_turn(node):
    """
    Another pod's devices were taken for the first container's, in the dark; then the kubelet admits it itself.
    """
    node.bind("other", watched=False, main=(0, 2))
    node.kubelet_up = False
    pod = node.bind("a", main=(1, 2), second=(1, 2))
    del node.api["other"]
    theirs, ids = node.ids(0, 0, 1), {"main": node.ids(1, 0, 1), "second": node.ids(1, 2, 3)}
    node.agent._ledger.claim(Entry(theirs, pod.uid, "ml", "a", "main", guessed=True, made=node.agent.book.next()))
    node.kubelet_up, boxes = True, node.admitted.setdefault(pod.uid, {})
    for name, those in ids.items():
        run(node.agent.allocate([sorted(those)]))
        boxes[name] = those

    assert ids == {one.container: one.ids for one in node.agent.book if one.uid == pod.uid}
    assert [theirs] == [one.ids for one in node.agent.book if not one.uid]


def test_a_containers_devices_that_the_kubelet_shows_for_its_neighbour_are_given_back(node):
    """
    We were sure, and wrong: both names stood on one set of devices, and the other set on nobody's.
    """
    pod = node.bind("a", main=(0, 2), second=(0, 2))
    first, other = node.ids(0, 0, 1), node.ids(0, 2, 3)
    node.agent._ledger.claim(Entry(first, pod.uid, "ml", "a", "second", made=node.agent.book.next()))
    node.admitted[pod.uid] = {"main": first, "second": other}
    for name in ("main", "second"):
        run(node.start("a", name))

    now = {one.container: one.ids for one in node.agent.book if "~" not in one.container}
    assert {"main": first, "second": other} == now


def test_a_wrong_guess_about_an_init_container_gives_way_to_what_its_app_has(node):
    """
    The guess was another pod's; the app has as many devices as its init container, so they are the same ones.
    """
    pod = node.bind("a", init=("prepare",), prepare=(1, 4), main=(1, 4))
    theirs, ids = node.ids(1, 0, 1, 2, 3), node.ids(1, 4, 5, 6, 7)
    for those, box, guessed in ((theirs, "prepare", True), (ids, "main", False)):
        made = node.agent.book.next()
        node.agent._ledger.claim(Entry(those, pod.uid, "ml", "a", box, box == "prepare", guessed, made))
    node.admitted[pod.uid] = {"prepare": ids, "main": ids}

    promise = run(node.start("a", "prepare"))
    assert "prepare" == promise.container
    assert {"prepare": ids, "main": ids} == {one.container: one.ids for one in node.agent.book if one.uid}
    assert [theirs] == [one.ids for one in node.agent.book if not one.uid]


def test_what_an_earlier_pod_left_is_not_an_init_containers_whose_app_has_as_many(node):
    """
    Devices of nobody share one with the app's; its init container asks for as many as the app, so it had the app's.
    """
    pod = node.bind("a", init=("prepare",), prepare=(1, 2), main=(1, 2))
    left, ids = node.ids(1, 3, 5), node.ids(1, 5, 7)
    for those in (left, ids, ids):
        node.agent._ledger.claim(Entry(those, made=node.agent.book.next()))
    node.admitted[pod.uid] = {"prepare": ids, "main": ids}

    with pytest.raises(NotYetError, match="an unknown pod still has devices"):
        run(node.start("a", "prepare"))
    assert {"prepare": ids, "main": ids} == {one.container: one.ids for one in node.agent.book if one.uid}
