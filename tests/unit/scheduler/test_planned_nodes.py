# SPDX-License-Identifier: Apache-2.0
"""Room on nodes that were bought for a pod: who has it when they come up, in which order ever, and when nobody has."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.builders import gib, node
from support.scheduler_cache_builders import build_cache, indices, used
from support.scheduler_harness import at, bound, pod

from isolation.contract.model import Placement, Refusal, Slice, Taint
from isolation.contract.reservation import PURCHASE, Reservation
from isolation.scheduler.core.cache import AssumedPlacement
from isolation.scheduler.core.reservations import ABANDONED_SECONDS, RESERVED_FOR_OTHERS

if TYPE_CHECKING:
    from isolation.contract.model import Node, Pod
    from isolation.scheduler.core.cache import SchedulerCache


def bought(
    uid: str, pool: str, *, size: int = 4, planned: str = "", card: int = 0, expires: float = 1000.0
) -> Reservation:
    """A purchase for one pod of `scheduler_world.pod`."""
    place = Placement("", (Slice("", card, gib(size)),))
    return Reservation(f"purchase-{uid}", uid, place, expires, "ml", PURCHASE, pool=pool, planned_node=planned or uid)


def report(made: SchedulerCache, *pods, **rest) -> None:
    """The watch tells of pods that wait, and of the purchase for each."""
    for one in pods:
        made.set_pod(one)
        made.set_reservation(bought(one.uid, size=one.request.card_bytes // gib(1), **rest))


def test_small_pods_do_not_take_the_large_node_that_comes_first():
    """
    4 + 1 ordered in two sizes: the large node comes up first and waits for the large pod, whoever is asked about first.

    Each small one then finds its own node: as many nodes as were bought.
    """
    made, small = build_cache(), [pod(f"s{i}", 8) for i in range(4)]
    large = pod("large", 14)
    for one in small:
        report(made, one, pool="small")
    report(made, large, pool="large")

    made.set_node(node("big", 1, 16, pool="large"))
    asked = [made.filter(one, ["big"], 0.0) for one in small]
    assert [[]] * 4 == [one.fit for one in asked]
    assert {f"{RESERVED_FOR_OTHERS}; GPU memory is reserved for the pod on the next node of pool small"} == {
        one.failed["big"] for one in asked
    }
    assert [Refusal] * 4 == [type(made.assume(one, "big", 0.0)) for one in small]
    assert ["big"] == made.filter(large, ["big"], 0.0).fit == made.shortlist(large, ["big"], 16, 0.0)
    assert "purchase-large" == made.assume(large, "big", 0.0).reservation
    for i in range(4):
        made.set_node(node(f"n{i}", 1, 8, pool="small"))
    found = [made.filter(one, [f"n{i}" for i in range(4)], 0.0).fit for one in small]
    assert [1] * 4 == [len(fit) for fit in found]
    assert {f"n{i}" for i in range(4)} == {name for (name,) in found}


def test_others_may_use_what_a_purchase_leaves():
    """The node that was bought for 4 of 16 GiB takes whoever fits beside; not more."""
    made = build_cache()
    report(made, pod("a"), pool="p")
    made.set_node(node("n", 1, 16, pool="p"))

    assert ["n"] == made.filter(pod("b", 12), ["n"], 0.0).fit
    assert {"n": RESERVED_FOR_OTHERS} == made.filter(pod("c", 13), ["n"], 0.0).failed
    assert isinstance(made.assume(pod("b", 12), "n", 0.0), AssumedPlacement)
    assert [16] == used(made)


def test_no_node_of_another_pool_and_none_that_the_pod_cannot_use_is_kept():
    """Another pool's, one with a taint that it does not tolerate, one that serves nobody yet; then the right one."""
    made, taint = build_cache(), (Taint("node.kubernetes.io/not-ready", "", "NoSchedule"),)
    report(made, pod("a", 8), pool="p")
    fresh = node("n", 1, 8, pool="p")
    for one in (node("x", 1, 8), replace(fresh, taints=taint), replace(fresh, serving=False)):
        made.set_node(one)
        assert 0 == used(made, one.name)[0]
    made.set_node(fresh)
    assert [8] == used(made)


def test_what_was_counted_on_one_node_stays_together():
    """Two planned nodes of one pool; the first node takes one of them whole, not the largest of each."""
    made = build_cache()
    for uid, size, planned, card in (("a", 5, "l1", 0), ("b", 6, "l1", 1), ("c", 8, "l2", 0), ("d", 4, "l2", 1)):
        made.set_pod(pod(uid, size))
        made.set_reservation(bought(uid, "p", size=size, planned=planned, card=card))

    made.set_node(node("n", 2, 8, pool="p"))
    assert [5, 6] == used(made)
    made.set_node(node("m", 2, 8, pool="p"))
    assert [8, 4] == used(made, "m")
    assert (1,) == indices(made.assume(pod("b", 6), "n", 0.0))


def test_a_node_with_less_room_than_was_counted_on_serves_whom_it_can():
    """One card is taken already, or broken: the other one is still kept for somebody."""
    made = build_cache()
    for uid in ("a", "b"):
        made.set_pod(pod(uid, 8))
        made.set_reservation(bought(uid, "p", size=8, planned="l", card=int(uid == "b")))
    made.set_pod(bound(pod("early", 4), at("n", 0)))
    made.set_node(node("n", 2, 8, pool="p"))

    assert [4, 8] == used(made)
    assert [["n"], []] == [made.filter(pod(uid, 8), ["n"], 0.0).fit for uid in ("a", "b")]


def test_a_purchase_goes_on_to_the_next_node_when_its_own_goes():
    """A node that dies, or is cordoned, before the pod is bound: the place is kept on the next one."""
    made = build_cache()
    report(made, pod("a", 8), pool="p")
    made.set_node(node("n", 1, 8, pool="p"))
    made.set_node(node("m", 1, 8, pool="p"))
    assert ([8], [0]) == (used(made), used(made, "m"))
    made.set_node(replace(node("n", 1, 8, pool="p"), cordoned=True))
    assert ([0], [8]) == (used(made), used(made, "m"))
    made.remove_node("m")
    made.set_node(node("k", 1, 8, pool="p"))
    assert [8] == used(made, "k")


def test_a_purchase_whose_node_is_up_already_is_kept_there():
    """The leader stored it late, or the scheduler has just begun: nodes, pods and purchases in any order."""
    for order in (("node", "pod", "kept"), ("kept", "node", "pod"), ("pod", "node", "kept"), ("kept", "pod", "node")):
        made = build_cache()
        for what in order:
            if what == "node":
                made.set_node(node("n", 1, 8, pool="p"))
            elif what == "pod":
                made.set_pod(pod("a", 8))
            else:
                made.set_reservation(bought("a", "p", size=8))
        assert [8] == used(made), order


@pytest.mark.parametrize("how", ["expired", "deleted", "bound elsewhere", "withdrawn"])
def test_room_that_was_bought_is_everybodys_when_nobody_will_come(how):
    """Its time is up, its pod is gone or has its place elsewhere, or the autoscaler thought better of it."""
    made = build_cache(node("else", 1, 8))
    report(made, pod("a", 8), pool="p")
    made.set_node(node("n", 1, 8, pool="p"))
    now = 1001.0 if how == "expired" else 1.0
    if how == "deleted":
        made.remove_pod("a")
    elif how == "bound elsewhere":
        made.set_pod(bound(pod("a", 8), at("else", 0, size=8)))
    elif how == "withdrawn":
        made.remove_reservation("purchase-a")

    assert ["n"] == made.filter(pod("b", 8), ["n"], now).fit
    assert [] == [one for one in made.find_stale_reservations(now) if how == "withdrawn"]
    assert how == "withdrawn" or ["purchase-a"] == [one.name for one in made.find_stale_reservations(now)]


def test_a_purchase_for_a_pod_that_nobody_knows_is_given_up():
    """The pod went while no scheduler ran: the leader deletes the purchase, and no node is kept meanwhile."""
    made = build_cache(node("n", 1, 8, pool="p"))
    made.set_reservation(bought("ghost", "p", size=8))

    assert [0] == used(made)
    assert [] == made.find_stale_reservations(0.0)
    assert ["purchase-ghost"] == [one.name for one in made.find_stale_reservations(ABANDONED_SECONDS)]


def test_a_purchase_is_used_up_by_its_pod_alone():
    """Another pod of the same name in another namespace, or of another size, has no claim; a failed bind leaves it."""
    made = build_cache()
    report(made, pod("a", 8), pool="p")
    made.set_node(node("n", 1, 16, pool="p"))
    assert "" == made.assume(pod("b", 8), "n", 0.0).reservation
    found = made.assume(pod("a", 8), "n", 0.0)
    assert ("purchase-a", [16]) == (found.reservation, used(made))
    made.forget("a")
    assert [16] == used(made)
    made.assume(pod("a", 8), "n", 0.0)
    made.remove_node("n")
    made.set_node(node("m", 1, 8, pool="p"))
    made.forget("a")
    assert [8] == used(made, "m")


class _Story:
    """One cluster as a scheduler is told of it, in a random order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 (a seed must play the same story again)
        self.made = build_cache()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.kept: dict[str, Reservation] = {}

    def node(self, number: int) -> None:
        self.nodes[f"n{number}"] = node(f"n{number}", 2, 8, pool=f"p{number % 2}")
        self.made.set_node(self.nodes[f"n{number}"])

    def pod(self, number: int) -> None:
        if f"u{number}" not in self.pods:
            self.pods[f"u{number}"] = pod(f"u{number}", 1 + number % 8)
            self.made.set_pod(self.pods[f"u{number}"])

    def purchase(self, number: int) -> None:
        if f"u{number}" in self.pods:
            planned, card = f"l{number // 3}", self.rng.randrange(2)
            one = bought(f"u{number}", f"p{number % 2}", size=1 + number % 8, planned=planned, card=card)
            self.kept[one.name] = one
            self.made.set_reservation(one)

    def bind(self, number: int) -> None:
        waiting = self.pods.get(f"u{number}")
        if waiting is None or waiting.placement is not None:
            return
        fit = self.made.filter(waiting, sorted(self.nodes), 0.0).fit
        if not fit:
            return
        found = self.made.assume(waiting, self.rng.choice(fit), 0.0)
        assert isinstance(found, AssumedPlacement)
        if self.rng.random() < 0.3:
            self.made.forget(waiting.uid)
            return
        self.pods[waiting.uid] = bound(waiting, found.placement, found.reservation)
        self.made.set_pod(self.pods[waiting.uid])

    def end(self, number: int) -> None:
        if self.pods.pop(f"u{number}", None) is not None:
            self.made.remove_pod(f"u{number}")

    def lose(self, number: int) -> None:
        busy = {one.placement.node for one in self.pods.values() if one.placement is not None}
        if f"n{number}" in self.nodes.keys() - busy:
            del self.nodes[f"n{number}"]
            self.made.remove_node(f"n{number}")

    def restart(self, _: int) -> None:
        """Another leader reads everything, kind by kind or mixed."""
        self.made = build_cache()
        things = [(self.made.set_node, one) for one in self.nodes.values()]
        things += [(self.made.set_pod, one) for one in self.pods.values()]
        things += [(self.made.set_reservation, one) for one in self.kept.values()]
        self.rng.shuffle(things)
        for tell, thing in things:
            tell(thing)

    def step(self) -> None:
        story = (self.node, self.pod, self.purchase, self.bind, self.bind, self.end, self.lose, self.restart)
        self.rng.choice(story)(self.rng.randrange(12))


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_events_promises_room_twice(seed):
    """Pods, purchases, nodes and binds as they come, a restart anywhere: no card ever has more than it holds."""
    story = _Story(seed)
    for _ in range(80):
        story.step()
        assert all(card.used <= card.total for one in story.made.inspect() for card in one.cards)
