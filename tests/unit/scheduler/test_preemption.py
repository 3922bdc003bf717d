# SPDX-License-Identifier: Apache-2.0
"""Pre-emption: victims free cards that fit, as few and as unimportant as can be, and nobody goes for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.builders import node
from support.scheduler_harness import at, bound, pod, reserve

from isolation.contract.model import Mode, Node, Placement, Pod, Slice
from isolation.contract.quantity import gib
from isolation.scheduler.core.cache import DELETING_SECONDS, SchedulerCache
from isolation.scheduler.core.preemption import MAX_OFFERS, OFFER_SECONDS, Victims


def running(uid: str, placement: Placement, **rest: object) -> Pod:
    """A pod on these cards, movable unless said otherwise."""
    size = placement.slices[0].bytes // gib(1)
    core = placement.slices[0].core
    return bound(pod(uid, size, len(placement.slices), core=core, **rest), placement)


def cache(*pods: Pod, nodes: tuple[Node, ...] = ()) -> SchedulerCache:
    """A cache with these pods."""
    made = SchedulerCache()
    for one in nodes or (node("n", 2, 8),):
        made.set_node(one)
    for one in pods:
        made.set_pod(one)
    return made


def verb(made: SchedulerCache, asked: Pod, *uids: str, violations: int = 0) -> tuple[str, ...] | None:
    """The victims that stay on node n; None: the node is left out."""
    found = made.preempt(asked, {"n": Victims(uids, violations)}, 0.0)
    return found["n"].uids if "n" in found else None


HIGH = pod("high", 8, priority=10)


def test_victims_by_sum_are_corrected_to_victims_of_one_card():
    """Two cards hold 4 and 4; one of each frees a sum of 8 and no card: two of one card do."""
    parts = {"a0": 0, "b0": 0, "a1": 1, "b1": 1}
    made = cache(*(running(uid, at("n", card), priority=1) for uid, card in parts.items()))

    found = verb(made, HIGH, "a0", "a1")

    assert {frozenset(("a0", "b0")), frozenset(("a1", "b1"))} >= {frozenset(found)}


def test_needless_victims_are_spared():
    """One card holds 2 of 8: only its pod needs to go."""
    made = cache(running("small", at("n", 0, size=2)), running("large", at("n", 1, size=8)))

    assert ("small",) == verb(made, HIGH, "small", "large")


def test_a_node_where_only_the_important_would_free_a_card_is_left_out():
    """Pods of the same or higher priority never go."""
    made = cache(running("a", at("n", 0), priority=10), running("b", at("n", 1), priority=11))

    assert None is verb(made, HIGH, "a", "b")


def test_a_node_where_cards_are_free_is_somebody_elses_reason():
    """They go for CPU or a port: that proposal is not ours to change; and strangers always stay in it."""
    made = cache(running("a", at("n", 0)))

    assert ("a", "stranger") == verb(made, HIGH, "a", "stranger")
    made.set_pod(running("b", at("n", 1)))
    assert {"stranger"} < set(verb(made, HIGH, "a", "b", "stranger"))


def test_a_node_without_victims_is_never_answered():
    """The cards are free and nobody was proposed: kube-scheduler takes an empty answer for an error."""
    made = cache(running("a", at("n", 0)))

    assert None is verb(made, HIGH)
    assert ("a",) == verb(made, HIGH, "a")


def test_a_victim_that_was_counted_on_for_cpu_stays():
    """A spared pod would have freed CPU which the one that goes instead does not."""
    asked = pod("high", 8, priority=10, cpu_milli=2000)
    made = cache(
        running("gpu", at("n", 0, size=8), cpu_milli=100, priority=1),
        running("cpu", at("n", 1, size=8), cpu_milli=4000, priority=5),
    )

    assert {"gpu", "cpu"} == set(verb(made, asked, "gpu", "cpu"))
    assert ("gpu",) == verb(made, HIGH, "gpu", "cpu")


def test_nobody_goes_where_pods_are_ending_already():
    """Room is on its way; but a pod that does not end for long is not waited for any more."""
    made = cache(running("ending", at("n", 0, size=8)), running("b", at("n", 1, size=8)))
    made.set_pod(replace(running("ending", at("n", 0, size=8)), deleting=True))

    assert {} == made.preempt(HIGH, {"n": Victims(("b",))}, 0.0)
    assert None is made.find_preemption(HIGH, ["n"], 0.0)
    late = made.preempt(HIGH, {"n": Victims(("b",))}, DELETING_SECONDS)
    assert {"n": Victims(("b",))} == late


def test_violations_are_carried_and_never_exceed_the_victims():
    """What the proposer counted stays where its victims stay."""
    made = cache(running("a", at("n", 0, size=2)), running("b", at("n", 1, size=8)))

    found = made.preempt(HIGH, {"n": Victims(("a", "b"), 2)}, 0.0)

    assert {"n": Victims(("a",), 1)} == found


def test_the_verb_of_a_pod_without_shares_and_of_unknown_nodes():
    """The first is not ours to judge; on the second nothing can be freed."""
    made = cache(running("a", at("n", 0)))
    whole = replace(HIGH, request=replace(HIGH.request, whole=True))

    assert {"n": Victims(("a",))} == made.preempt(whole, {"n": Victims(("a",))}, 0.0)
    assert {} == made.preempt(HIGH, {"who?": Victims(("a",))}, 0.0)


def nominated(made: SchedulerCache, *victims: str) -> None:
    """The verb's answer is taken, and these victims are told to end."""
    answer = made.preempt(HIGH, {"n": Victims(("a0", "a1")), "m": Victims(("c0",))}, 0.0)
    assert {"n", "m"} == set(answer)
    for uid in victims or answer["n"].uids:
        made.set_pod(replace(made._pods[uid], deleting=True))


def two_nodes() -> SchedulerCache:
    """Node n full of halves, node m with one whole card."""
    pods = [running(f"{letter}{card}", at("n", card), priority=1) for letter in "ab" for card in (0, 1)]
    pods += [running("c0", at("m", 0, size=8), priority=1), running("d1", at("m", 1, size=8), priority=20)]
    return cache(*pods, nodes=(node("n", 2, 8), node("m", 2, 8)))


def test_room_that_victims_of_the_verb_leave_is_kept_for_whom_they_left():
    """Trap 14: a smaller pod in between does not get a part of the card; the one who pre-empted does, once."""
    made = two_nodes()
    nominated(made)
    ending = [uid for uid, p in made._pods.items() if p.deleting]
    for uid in ending:
        made.remove_pod(uid)

    assert [] == made.filter(pod("rival", 1), ["n", "m"], 1.0).fit
    assert ["n"] == made.filter(HIGH, ["n", "m"], 1.0).fit
    assert [] == made.find_stale_reservations(1.0)
    placed = made.assume(HIGH, "n", 1.0)
    assert "" == placed.reservation
    made.confirm("high")
    made.set_pod(bound(HIGH, placed.placement))
    made.remove_pod("high")
    assert ["n"] == made.filter(pod("rival", 8), ["n"], 1.0).fit


@pytest.mark.parametrize("end", ["time", "gone", "elsewhere"])
def test_room_for_a_nominator_pod_is_not_kept_for_ever(end):
    """Its time is over, it is gone, or it found another place."""
    made = two_nodes()
    nominated(made)
    for uid in [uid for uid, p in made._pods.items() if p.deleting]:
        made.remove_pod(uid)
    match end:
        case "gone":
            made.remove_pod("high")
        case "elsewhere":
            made.set_pod(bound(HIGH, at("x", 0, size=8)))

    assert ["n"] == made.filter(pod("rival", 8), ["n"], DELETING_SECONDS + 1 if end == "time" else 1.0).fit
    assert not made._reservations._stored


def test_a_nominator_pod_that_another_replica_bound_keeps_no_room_twice():
    """Told by the server before the watch: its room is where it is, and what was kept for it is free."""
    made = two_nodes()
    nominated(made)
    for uid in [uid for uid, p in made._pods.items() if p.deleting]:
        made.remove_pod(uid)
    made.assume(HIGH, "n", 1.0)
    made.record_binding("high", at("x", 0, size=8))

    assert ["n"] == made.filter(pod("rival", 8), ["n"], 1.0).fit
    assert not made._reservations._stored


def test_a_bind_that_failed_keeps_the_nominator_pods_room():
    """It tries again; nobody comes in between."""
    made = two_nodes()
    nominated(made)
    for uid in [uid for uid, p in made._pods.items() if p.deleting]:
        made.remove_pod(uid)
    made.assume(HIGH, "n", 1.0)
    made.forget("high")

    assert [] == made.filter(pod("rival", 1), ["n"], 1.0).fit
    assert ["n"] == made.filter(HIGH, ["n"], 1.0).fit


def test_nothing_is_kept_while_not_all_victims_of_a_node_end():
    """One of two victims ends for a reason of its own: that is no choice of this node."""
    made = two_nodes()
    first = made.preempt(HIGH, {"n": Victims(("a0", "a1"))}, 0.0)["n"].uids[0]
    made.remove_pod(first)

    assert ["n"] == made.filter(pod("rival", 4), ["n"], 1.0).fit


def test_offers_that_nobody_takes_do_not_pile_up():
    """Asked for ever more pods, about victims that never end."""
    made = two_nodes()
    for i in range(3 * MAX_OFFERS):
        made.preempt(replace(HIGH, uid=f"h{i}"), {"m": Victims(("c0",))}, float(i))
    offers = made._nominator
    assert MAX_OFFERS == len(offers._offers)
    assert {"c0"} == set(offers._offered_to)

    made.remove_pod("c0")

    assert (0, {}, set()) == (len(offers._offers), offers._offered_to, offers._ended)
    assert 0 < len(made._reservations._stored) <= OFFER_SECONDS


# Relief.


def test_relief_frees_a_card_where_the_sum_fits_already():
    """4 of 8 GiB taken on each of two cards; a pod of 8 of higher priority gets one of them."""
    made = cache(running("a", at("n", 0), priority=5, evictable=True), running("b", at("n", 1), priority=3))

    found = made.find_preemption(HIGH, ["n"], 0.0)

    assert ("n", ("b",)) == (found.node, found.victims)
    assert (Slice("GPU-n-1", 1, gib(8)),) == found.placement.slices


@pytest.mark.parametrize(
    ("first", "second", "victim"),
    [
        ({"priority": 5}, {"priority": 3}, "second"),
        ({"created": 50.0}, {"created": 10.0}, "first"),
        ({"evictable": False}, {}, "second"),
        ({"priority": 10}, {}, "second"),
    ],
)
def test_relief_takes_the_least_important_then_the_youngest(first, second, victim):
    """Never one that is as important as who comes; a pod that nobody makes again is spared among equals."""
    made = cache(running("first", at("n", 0), **first), running("second", at("n", 1), **second))

    assert (victim,) == made.find_preemption(HIGH, ["n"], 0.0).victims


def test_relief_ends_pods_that_nobody_makes_again_but_no_static_ones():
    """As in-tree pre-emption does, which is not asked where the sum fits; a node's own static pod cannot be ended."""
    made = cache(
        running("bare", at("n", 0), evictable=False),
        running("static", at("n", 1), evictable=False, static=True, priority=-1),
    )

    assert ("bare",) == made.find_preemption(HIGH, ["n"], 0.0).victims


def test_who_says_that_it_preempts_nobody_is_believed():
    """`preemptionPolicy: Never`: it waits for room, whatever its priority."""
    made = cache(running("a", at("n", 0)), running("b", at("n", 1)))
    meek = replace(HIGH, preempts=False)

    assert made.find_preemption(meek, ["n"], 0.0) is None
    assert {} == made.preempt(meek, {"n": Victims(("a",))}, 0.0)


def test_relief_takes_the_node_with_the_fewest_victims():
    """Two victims on one node, one on the other."""
    pods = [running(f"n{i}", at("n", i // 2, size=2)) for i in range(4)]
    pods += [running("m0", at("m", 0), priority=9), running("m1", at("m", 1), priority=9)]
    made = cache(*pods, nodes=(node("n", 2, 8), node("m", 2, 8)))

    found = made.find_preemption(HIGH, ["n", "m"], 0.0)

    assert ("m", 1) == (found.node, len(found.victims))


def test_relief_frees_a_whole_card_set():
    """Two cards of one node, with a victim that is on both rather than one on each."""
    pods = [running("both", at("n", 0, 1, size=4)), running("c", at("n", 2)), running("d", at("n", 3))]
    made = cache(*pods, nodes=(node("n", 4, 8),))

    found = made.find_preemption(pod("high", 8, 2, priority=10), ["n"], 0.0)

    assert ("both",) == found.victims
    assert [0, 1] == [part.index for part in found.placement.slices]


def test_no_relief_where_none_is_needed_wanted_or_possible():
    """It fits; it is being bound; room is kept for it; nobody may go; the card is too small."""
    full = [running("a", at("n", 0)), running("b", at("n", 1))]
    assert None is cache(full[0]).find_preemption(HIGH, ["n"], 0.0)
    made = cache(*full)
    made.set_reservation(reserve("r", "high", at("n", 0, size=8)))
    assert None is made.find_preemption(HIGH, ["n"], 0.0)
    assert None is cache(*full).find_preemption(replace(HIGH, priority=0), ["n"], 0.0)
    assert None is cache(*full).find_preemption(pod("huge", 9, priority=10), ["n"], 0.0)
    made = cache(full[0])
    made.assume(HIGH, "n", 0.0)
    made.set_pod(full[1])
    assert None is made.find_preemption(HIGH, ["n"], 0.0)


def test_relief_is_kept_by_a_reservation_until_the_victims_are_gone():
    """The whole way: victims, reservation, a rival in between, the end of the victims, the pod."""
    made = cache(running("a", at("n", 0)), running("b", at("n", 1)))
    found = made.find_preemption(HIGH, ["n"], 0.0)
    made.set_reservation(reserve("r", "high", found.placement))
    (victim,) = found.victims
    made.set_pod(replace(running(victim, found.placement), deleting=True))

    assert None is made.find_preemption(HIGH, ["n"], 1.0)
    made.remove_pod(victim)
    assert [] == made.filter(pod("rival", 5), ["n"], 2.0).fit
    assert found.placement == made.assume(HIGH, "n", 2.0).placement


def test_victims_do_not_help_beyond_a_quota():
    """Another namespace's pods free the card, but the own quota is used up."""
    made = cache(
        running("a", at("n", 0), namespace="other"),
        running("b", at("n", 1)),
        nodes=(node("n", 2, 8, model="T4"),),
    )
    made.set_quota("ml", {"T4": 10})

    assert ("b",) == verb(made, HIGH, "a")
    assert ("b",) == made.find_preemption(HIGH, ["n"], 0.0).victims
    made.set_quota("ml", {"T4": 7})
    assert None is verb(made, HIGH, "a", "b")


PODS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 4), st.booleans(), st.integers(0, 3)), max_size=14
)


@settings(max_examples=examples(120), deadline=None)
@given(PODS, st.integers(1, 8), st.integers(1, 2), st.integers(0, 5), st.sampled_from([0, 0, 5, 12]))
def test_relief_is_sufficient_and_has_no_needless_victim(specs, size, cards, priority, core):
    """Without the victims the pod fits; with any one of them left it does not; none of them is important."""
    placed = []
    for i, (card, part, rank, evictable, age) in enumerate(specs):
        where = at("n", card, size=part, core=core * ((i + part) % 4))
        one = running(f"p{i}", where, priority=rank, evictable=evictable, created=float(age))
        taken = sum(p.request.card_bytes for p in placed if p.placement.slices[0].index == card)
        busy = sum(p.request.card_core for p in placed if p.placement.slices[0].index == card)
        if taken + gib(part) <= gib(8) and busy + where.slices[0].core <= 100:
            placed.append(one)
    there = (node("n", 4, 8, mode=Mode.CORE_MEM if core else Mode.CGPU),)
    made = cache(*placed, nodes=there)
    asked = pod("high", size, cards, priority=priority, core=5 * core)
    fits = bool(made.filter(asked, ["n"], 0.0).fit)
    found = made.find_preemption(asked, ["n"], 0.0)

    if found is None:
        for one in placed:
            if one.priority < priority:
                made.remove_pod(one.uid)
        assert fits or not made.filter(asked, ["n"], 0.0).fit
        return
    assert not fits
    known = {p.uid: p for p in placed}
    assert all(known[uid].priority < priority for uid in found.victims)
    for spared in found.victims:
        rest = cache(*(p for p in placed if p.uid not in found.victims or p.uid == spared), nodes=there)
        assert [] == rest.filter(asked, ["n"], 0.0).fit
    for uid in found.victims:
        made.remove_pod(uid)
    assert ["n"] == made.filter(asked, ["n"], 0.0).fit
