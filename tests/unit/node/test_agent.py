# SPDX-License-Identifier: Apache-2.0
"""The agent's mind against a kubelet in memory: who gets which devices, and whose are never given twice."""

from __future__ import annotations

import pytest
from support.agent_story import run, started, ticks
from support.agent_world import AgentWorld

from isolation.contract.model import Mode
from isolation.contract.quantity import GIB
from isolation.node.book import card_of
from isolation.node.world import Ask, NotYetError


@pytest.fixture
def node():
    return started()


def test_a_pod_gets_devices_of_the_card_on_which_it_was_placed(node):
    """
    The record says card 1: all four devices are its, and so are the files.
    """
    node.bind("a", main=(1, 4))

    boxes = run(node.admit("a"))
    promise = run(node.start("a", "main"))

    assert {"GPU-1"} == set(map(card_of, boxes["main"]))
    assert ("main", (("GPU-1", 4 * GIB),)) == (promise.container, tuple((s.uuid, s.bytes) for s in promise.slices))


def test_eight_over_four_cards_are_two_of_each():
    """
    As of a StatefulSet: N units over M cards, N/M of each.
    """
    node = AgentWorld(cards=4)
    node.bind("a", main=((0, 1, 2, 3), 8))

    boxes = run(node.admit("a"))
    run(node.start("a", "main"))

    assert [2, 2, 2, 2] == [sum(card_of(one) == f"GPU-{card}" for one in boxes["main"]) for card in range(4)]


def test_pods_of_one_size_do_not_swap_cards_when_the_kubelet_admits_in_another_order(node):
    """
    The kubelet's list, not the size, says who is being admitted.
    """
    for name, card in (("a", 0), ("b", 1), ("c", 0)):
        node.bind(name, main=(card, 4))

    cards = {name: {card_of(one) for one in run(node.admit(name))["main"]} for name in ("c", "b", "a")}

    assert {"a": {"GPU-0"}, "b": {"GPU-1"}, "c": {"GPU-0"}} == cards


def test_who_is_not_yet_in_the_watch_is_asked_for(node):
    """
    The kubelet may hear of a pod before we do; one question to the API server tells.
    """
    node.bind("behind", main=(0, 4))
    node.bind("a", main=(1, 4), watched=False)

    boxes = run(node.admit("a"))

    assert {"GPU-1"} == {card_of(one) for one in boxes["main"]}
    assert "a" == next(iter(node.agent.book)).pod


@pytest.mark.parametrize("trouble", ["api", "kubelet", "both"])
def test_admission_is_answered_in_time_whatever_is_down(node, trouble):
    """
    An error would fail the pod for good, a wait would stop the node: 0.2 s is the most.
    """
    for name in "abcdefgh":
        node.bind(name, main=(0, 1))
    node.bind("unseen", main=(1, 4), watched=False)
    node.api_up, node.has_get = trouble == "kubelet", trouble == "api"

    for name in ("unseen", "c"):
        begun = node.time
        boxes = run(node.admit(name))
        assert node.time - begun <= 0.2
        assert 1 == len({card_of(one) for one in boxes["main"]})


def test_without_a_book_entry_the_kubelets_offer_of_held_devices_is_not_taken(node):
    """
    After a List in an unlucky moment the kubelet offers what a running pod has; the book knows better.
    """
    for name in ("a", "b"):
        node.bind(name, main=(0, 4))
    first = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    node.in_use.clear()

    second = run(node.admit("b"))["main"]
    run(node.start("b", "main"))

    assert frozenset() == first & second
    assert {"GPU-0"} == {card_of(one) for one in second}


def test_devices_of_a_force_deleted_pod_wait_for_its_processes(node):
    """
    The kubelet gives them to the next pod at once; that pod starts when the last process is gone.
    """
    old = node.bind("old", main=(0, 8))
    run(node.admit("old"))
    run(node.start("old", "main"))
    node.force_delete("old")
    node.bind("new", main=(0, 8))
    ids = run(node.admit("new"))["main"]

    with pytest.raises(NotYetError, match="old"):
        run(node.agent.prestart(sorted(ids)))
    node.processes.discard(old.uid)
    promise = run(node.start("new", "main"))

    assert "new" == promise.pod.name
    assert ["new"] == [entry.pod for entry in node.agent.book]


def test_two_pods_with_the_same_devices_never_both_run(node):
    """
    Where the kubelet gives one pod's devices to another whatever we prefer, the later one is deleted, and said why.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    twin = node.bind("b", main=(0, 4))
    node.admitted[twin.uid] = {}
    run(node.agent.allocate([sorted(ids)]))
    node.admitted[twin.uid] = {"main": ids}

    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))
    ticks(node, 5)

    assert ["b"] == [name for name, _ in node.deleted]
    assert "ml/a" in node.deleted[0][1]
    assert "a" == run(node.start("a", "main")).pod.name


@pytest.mark.parametrize(("mode", "whole"), [(Mode.EXCLUSIVE, False), (Mode.NONE, False), (Mode.CGPU, True)])
def test_a_node_that_serves_no_shares_offers_none_and_takes_none_away(node, mode, whole):
    """
    Shares or whole cards, never both; what somebody has stays his.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    node.node_mode, node.offers_whole = mode, whole

    assert ids == {one.id for one in node.agent.devices()}


def test_a_sick_cards_free_devices_are_unhealthy_and_recover(node):
    """
    Unhealthy is for devices that nobody has: it would fail the pod that has them.
    """
    node.bind("a", main=(0, 4))
    ids = run(node.admit("a"))["main"]
    sick = node.all_cards[0]
    node.all_cards[0] = type(sick)(sick.uuid, 0, sick.total_bytes, healthy=False)
    assert ids == {one.id for one in node.agent.devices() if one.healthy and card_of(one.id) == "GPU-0"}

    node.all_cards[0] = sick
    assert all(one.healthy for one in node.agent.devices())


def test_share_mode_and_system_software_are_not_limited(node):
    """
    Their devices and environment come, the library does not.
    """
    node.bind("a", main=(0, 4))
    run(node.admit("a"))
    assert "fixed" == run(node.start("a", "main")).policy
    node.node_mode = Mode.SHARE
    assert "none" == run(node.start("a", "main")).policy
    node.node_mode = Mode.CGPU
    node.change("a", exempt=True)
    assert "none" == run(node.start("a", "main")).policy


def test_whatever_the_kubelet_asks_the_answer_has_the_asked_number(node):
    """
    Repeated, unknown, foreign, too few: never an error, never more or fewer than can be had.
    """
    weird = ("GPU-0-_-1", "GPU-0-_-1", "nonsense", "GPU-9-_-x", "-_-", "GPU-1-_-2")

    answers = run(node.agent.preferred([Ask(weird, ("GPU-1-_-2",), 3), Ask((), (), 2), Ask(weird, (), 0)]))

    assert [3, 0, 0] == [len(set(one)) for one in answers]
    assert "GPU-1-_-2" in answers[0]
