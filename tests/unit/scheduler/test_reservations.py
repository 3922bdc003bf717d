# SPDX-License-Identifier: Apache-2.0
"""Reserved room: who may have it, what uses it up, and when it is everybody's again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import node
from support.scheduler_cache_builders import build_cache, indices, used
from support.scheduler_harness import at, bound, pod, reserve

from isolation.contract.model import Refusal
from isolation.scheduler.core.cache import AssumedPlacement
from isolation.scheduler.core.reservations import ABANDONED_SECONDS, PREEMPTION


def test_a_reservation_takes_room_from_all_but_its_holder():
    """Nobody else fits; the holder does, is steered there, and gets exactly the cards that were kept."""
    made = build_cache(node("n", 2, 8), node("m", 2, 8))
    made.set_reservation(reserve("r", "a", at("n", 1, size=8)))

    assert 8 == sum(used(made))
    assert [] == made.filter(pod("b", 8, 2), ["n"], 0.0).fit
    assert ["n"] == made.filter(pod("a", 8), ["n"], 0.0).fit
    assert [10, 9] == made.prioritize(pod("a", 8), ["n", "m"], 0.0)
    found = made.assume(pod("a", 8), "n", 0.0)
    assert ((1,), "r") == (indices(found), found.reservation)
    assert 8 == sum(used(made))


def test_a_reservation_for_a_controller_serves_its_next_pod_and_no_third():
    """Two reservations, two replicas; the next one gets what is left over."""
    made = build_cache(node("n", 2, 8))
    for i in range(2):
        made.set_reservation(reserve(f"r{i}", "rs", at("n", i, size=8)))
    replicas = [pod(f"p{i}", 8, owner_uid="rs") for i in range(3)]

    kept = {made.assume(one, "n", 0.0).reservation for one in replicas[:2]}

    assert {"r0", "r1"} == kept
    assert isinstance(made.assume(replicas[2], "n", 0.0), Refusal)


def test_a_reservation_is_used_up_by_the_binding_that_names_it():
    """Then it keeps nothing, also if it is told again, and can be deleted; before it is certain, it cannot."""
    made = build_cache(node("n", 1, 8))
    kept = reserve("r", "a", at("n", 0, size=8))
    made.set_reservation(kept)
    placed = made.assume(pod("a", 8), "n", 0.0)
    assert [] == made.find_stale_reservations(0.0)
    made.confirm("a")
    made.set_pod(bound(pod("a", 8), placed.placement, "r"))
    made.set_reservation(kept)

    assert [8] == used(made)
    assert [kept] == made.find_stale_reservations(0.0)
    made.remove_reservation("r")
    made.remove_pod("a")
    assert [0] == used(made)


def test_a_rebuilt_replica_knows_that_a_reservation_was_used_up():
    """Pods are read before reservations: the room is not counted twice."""
    made = build_cache(node("n", 1, 8))
    made.set_pod(bound(pod("a", 4), at("n", 0), "r"))
    made.set_reservation(reserve("r", "a", at("n", 0)))

    assert [4] == used(made)


def test_another_pod_cannot_use_up_somebody_elses_reservation():
    """A pod that names a reservation which was not made for it changes nothing."""
    made = build_cache(node("n", 1, 8))
    made.set_reservation(reserve("r", "a", at("n", 0)))
    made.set_pod(bound(pod("thief", 4), at("n", 0), "r"))

    assert [8] == used(made)
    assert [] == made.find_stale_reservations(0.0)


def test_a_tenant_who_names_somebody_elses_controller_gets_nothing_of_its_reservation():
    """Owner references are the tenant's own words; the namespace is not."""
    made = build_cache(node("n", 1, 8))
    made.set_reservation(reserve("r", "rs", at("n", 0, size=8), namespace="ml"))

    assert [] == made.filter(pod("thief", 8, owner_uid="rs", namespace="evil"), ["n"], 0.0).fit
    assert ["n"] == made.filter(pod("a", 8, owner_uid="rs"), ["n"], 0.0).fit


@pytest.mark.parametrize("answer", ["forget", "remove_pod"])
def test_a_bind_that_failed_gives_the_reservation_back(answer):
    """Not to everybody: to the next pod of its controller."""
    made = build_cache(node("n", 1, 8))
    made.set_reservation(reserve("r", "rs", at("n", 0, size=8)))
    made.assume(pod("a", 8, owner_uid="rs"), "n", 0.0)
    getattr(made, answer)("a")

    assert isinstance(made.assume(pod("x", 1), "n", 0.0), Refusal)
    assert "r" == made.assume(pod("b", 8, owner_uid="rs"), "n", 0.0).reservation


def test_a_reservation_ends_with_its_time_its_object_or_its_pod():
    """Expired, deleted, its pod gone, its pod bound elsewhere: the room is everybody's."""
    ends = {
        "time": lambda made: made.filter(pod("x"), ["n"], 50.0),
        "object": lambda made: made.remove_reservation("r"),
        "pod": lambda made: made.remove_pod("a"),
        "elsewhere": lambda made: made.set_pod(bound(pod("a", 8), at("m", 0, size=8))),
    }
    for name, end in ends.items():
        made = build_cache(node("n", 1, 8), node("m", 1, 8))
        made.set_pod(pod("a", 8))
        made.set_reservation(reserve("r", "a", at("n", 0, size=8), 50.0))
        assert isinstance(made.assume(pod("b", 1), "n", 49.0), Refusal), name
        end(made)

        assert isinstance(made.assume(pod("c", 8), "n", 51.0), AssumedPlacement), name
        assert (name != "object") == bool(made.find_stale_reservations(51.0)), name


def test_a_reservation_waits_for_room_that_victims_still_hold():
    """Made before they end, it keeps what they leave from everybody else."""
    made = build_cache(node("n", 1, 8))
    made.set_pod(bound(pod("victim", 8), at("n", 0, size=8)))
    made.set_reservation(reserve("r", "a", at("n", 0, size=8)))

    assert [] == made.find_overcommitted()
    assert [] == made.filter(pod("a", 8), ["n"], 0.0).fit
    made.remove_pod("victim")
    assert [] == made.filter(pod("b", 1), ["n"], 0.0).fit
    assert ["n"] == made.filter(pod("a", 8), ["n"], 0.0).fit


def test_reserved_room_is_told_of_as_its_time_ends():
    """
    Whoever waits need not wait until somebody has deleted the object.
    """
    made, notified = build_cache(node("n", 1, 8)), []
    made.on_capacity_freed(lambda: notified.append("room"))
    made.set_reservation(reserve("r", "somebody", at("n", 0, size=8), expires=10.0))

    assert [] == made.filter(pod("p", 4), ["n"], 9.0).fit
    assert [] == notified
    assert ["n"] == made.filter(pod("p", 4), ["n"], 11.0).fit
    assert ["room"] == notified


@pytest.mark.parametrize(
    ("reason", "ends", "expected"),
    [(PREEMPTION, None, ["r"]), (PREEMPTION, 3.0, []), (PREEMPTION, "its pod", ["r"]), ("move", None, [])],
    ids=["nobody goes", "the victim goes", "its pod never came", "not for pre-emption"],
)
def test_a_reservation_for_which_nobody_goes_is_given_up(reason, ends, expected):
    """
    Its maker died before it asked the victim to go, or its pod went meanwhile: after a moment the leader starts over.
    """
    made, victim = build_cache(node("n", 1, 8)), bound(pod("victim", 6), at("n", 0, size=6))
    made.set_pod(victim)
    if ends == "its pod":
        made.remove_pod("victim")
    else:
        made.set_pod(pod("a", 4))
    made.set_reservation(reserve("r", "a", at("n", 0, size=4), reason=reason))

    assert [] == made.find_stale_reservations(1.0)
    if ends == 3.0:
        made.set_pod(replace(victim, deleting=True))
    assert [] == made.find_stale_reservations(1.0 + ABANDONED_SECONDS - 0.1)
    assert expected == [one.name for one in made.find_stale_reservations(1.0 + ABANDONED_SECONDS)]


def test_a_reservation_whose_room_has_come_is_not_given_up():
    """
    However long its pod takes to use it: who looked short for a moment counts again.
    """
    made = build_cache(node("n", 1, 8))
    made.set_pod(bound(pod("victim", 6), at("n", 0, size=6)))
    made.set_pod(pod("a", 4))
    made.set_reservation(reserve("r", "a", at("n", 0, size=4), reason=PREEMPTION))

    assert [] == made.find_stale_reservations(0.0)
    made.remove_pod("victim")
    assert [] == made.find_stale_reservations(4.0)
    made.set_pod(bound(pod("intruder", 6), at("n", 0, size=6)))
    assert [] == made.find_stale_reservations(6.0)
    assert ["r"] == [one.name for one in made.find_stale_reservations(6.0 + ABANDONED_SECONDS)]
