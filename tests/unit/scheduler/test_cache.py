# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's cache hold: no event in any order makes them promise room twice, or forget any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import card, node
from support.scheduler_cache_builders import build_cache, indices, used
from support.scheduler_harness import at, bound, pod

from isolation.contract.model import Phase, Placement, Refusal, Why
from isolation.contract.quantity import gib
from isolation.scheduler.core.cache import AssumedPlacement


def test_two_binds_for_the_last_card_get_it_once():
    """Room is taken before anybody waits for anything."""
    made = build_cache(node("n", 1, 8))

    assert isinstance(made.assume(pod("a", 5), "n", 0.0), AssumedPlacement)
    refused = made.assume(pod("b", 5), "n", 0.0)

    assert isinstance(refused, Refusal)
    assert Why.CARDS is refused.why
    assert [5] == used(made)


def test_the_same_bind_asked_twice_takes_room_once_and_gets_the_same_answer():
    """kube-scheduler tries again while the first try is still on its way."""
    made = build_cache(node("n", 2, 8), node("m", 2, 8))
    first = made.assume(pod("a", 5), "n", 0.0)

    assert first == made.assume(pod("a", 5), "n", 1.0)
    assert isinstance(made.assume(pod("a", 5), "m", 1.0), Refusal)
    assert ["n"] == made.filter(pod("a", 5), ["n", "m"], 1.0).fit
    assert 5 == sum(used(made))


@pytest.mark.parametrize(
    "events",
    [
        ("confirm", "bound"),
        ("bound", "confirm"),
        ("pending", "confirm", "bound", "bound"),
        ("bound", "forget"),
        ("bound", "pending", "confirm"),
        ("confirm", "pending", "bound", "pending"),
    ],
)
def test_the_echo_of_a_bind_may_come_before_during_or_after_the_answer(events):
    """Whatever the order, the pod holds its room once, and lets go of it once."""
    made = build_cache(node("n", 1, 8))
    asked = pod("a", 5)
    placed = made.assume(asked, "n", 0.0)
    assert isinstance(placed, AssumedPlacement)
    for event in events:
        match event:
            case "confirm":
                made.confirm("a")
            case "forget":
                made.forget("a")
            case "pending":
                made.set_pod(asked)
            case _:
                made.set_pod(bound(asked, placed.placement))

    assert [5] == used(made)
    assert {} == made.assumed_pods()
    made.remove_pod("a")
    made.remove_pod("a")
    assert [0] == used(made)


def test_a_pod_deleted_while_its_bind_is_under_way_leaves_nothing_behind():
    """Neither answer, late as it comes, may bring the hold back."""
    for answer in ("confirm", "forget"):
        made = build_cache(node("n", 1, 8))
        made.set_pod(pod("a", 5))
        made.assume(pod("a", 5), "n", 0.0)
        made.remove_pod("a")
        getattr(made, answer)("a")

        assert [0] == used(made)
        assert {} == made.assumed_pods()


def test_undo_gives_room_back_for_others():
    """A refused binding has taken nothing."""
    made = build_cache(node("n", 1, 8))
    made.assume(pod("a", 5), "n", 0.0)
    made.forget("a")

    assert isinstance(made.assume(pod("b", 5), "n", 0.0), AssumedPlacement)


def test_a_name_used_again_is_another_pod():
    """Holds go by UID; the end of the first does not touch the second."""
    made = build_cache(node("n", 1, 8))
    old, new = pod("a", 4, name="web"), pod("b", 4, name="web")
    made.set_pod(bound(old, at("n", 0)))
    made.assume(new, "n", 0.0)
    made.remove_pod("a")

    assert [4] == used(made)
    assert isinstance(made.assume(pod("c", 5), "n", 0.0), Refusal)


def test_terminating_pods_hold_and_finished_ones_do_not():
    """A request to end frees nothing; an end does, once."""
    made = build_cache(node("n", 1, 8))
    running = bound(pod("a", 5), at("n", 0, size=5))
    made.set_pod(running)
    made.set_pod(replace(running, deleting=True))
    assert [5] == used(made)

    made.set_pod(replace(running, phase=Phase.DONE))
    made.set_pod(replace(running, phase=Phase.DONE))
    made.remove_pod("a")
    assert [0] == used(made)


def test_a_pod_that_is_being_deleted_is_not_bound():
    """Nor is one that is bound already."""
    made = build_cache(node("n", 1, 8))
    made.set_pod(replace(pod("a"), deleting=True))
    made.set_pod(bound(pod("b"), at("n", 0)))

    assert isinstance(made.assume(pod("a"), "n", 0.0), Refusal)
    assert isinstance(made.assume(pod("b"), "n", 0.0), Refusal)
    assert [] == made.filter(pod("b"), ["n"], 0.0).fit


def test_what_others_bound_is_booked_and_seen_as_over_commitment():
    """An over-committed card has no room, never a wrapped-round lot of it, and raises an alarm."""
    made = build_cache(node("n", 2, 8))
    for i in range(3):
        made.set_pod(bound(pod(f"x{i}", 5), at("n", 0, size=5)))

    assert [15, 0] == used(made)
    (over,) = made.find_overcommitted()
    assert ("n", "GPU-n-0", gib(7)) == (over.node, over.uuid, over.bytes)
    assert (1,) == indices(made.assume(pod("a", 8), "n", 0.0))
    assert isinstance(made.assume(pod("b", 1), "n", 0.0), Refusal)


def test_a_pod_bound_by_somebody_else_loses_what_was_assumed_for_it():
    """Its own record counts, on whatever node it is."""
    made = build_cache(node("n", 1, 8), node("m", 1, 8))
    made.assume(pod("a", 5), "n", 0.0)
    made.set_pod(bound(pod("a", 5), at("m", 0, size=5)))

    assert [0] == used(made, "n")
    assert [5] == used(made, "m")
    assert {} == made.assumed_pods()


def test_a_bound_pod_without_a_record_holds_nothing():
    """What it uses is unknown."""
    made = build_cache(node("n", 1, 8))
    made.set_pod(bound(pod("a", 5), Placement("n")))

    assert [0] == used(made)


def test_a_node_that_comes_back_finds_its_holds_again():
    """A node object deleted and recreated under running pods; its cards are held all the time."""
    made = build_cache(node("n", 1, 8))
    made.set_pod(bound(pod("a", 5), at("n", 0, size=5)))
    made.remove_node("n")
    assert isinstance(made.assume(pod("b", 5), "n", 0.0), Refusal)
    made.set_pod(bound(pod("c", 2), at("n", 0, size=2)))
    made.set_node(node("n", 1, 8))
    made.set_node(node("n", 1, 8))

    assert [7] == used(made)
    made.remove_pod("a")
    made.remove_pod("c")
    assert [0] == used(made)


def test_cards_are_known_by_uuid_and_not_by_index():
    """The node comes back with other cards in other order; a hold stays with its card."""
    made = build_cache(node("n", 2, 8))
    made.set_pod(bound(pod("a", 5), at("n", 1, size=5)))
    swapped = (replace(card(0, 8), uuid="GPU-n-1"), replace(card(1, 16), uuid="GPU-new"))
    made.set_node(replace(node("n", 2, 8), cards=swapped))

    assert [5, 0] == used(made)
    made.set_pod(bound(pod("b", 5), at("n", 0, size=5)))  # its card is gone: it holds nothing that is there
    assert [5, 0] == used(made)
    made.set_node(node("n", 2, 8))
    assert [5, 5] == used(made)


@pytest.mark.parametrize("named_first", [True, False])
def test_a_card_without_a_name_yet_is_the_card_of_its_index(named_first):
    """Records made before the agent named the cards, or read while the name is missing, count on the same card."""
    nameless = replace(node("n", 2, 8), cards=tuple(replace(card(i, 8), uuid=f"n/{i}") for i in range(2)))
    named = node("n", 2, 8)
    first, then = (named, nameless) if named_first else (nameless, named)
    made = build_cache(first)
    placed = made.assume(pod("a", 5), "n", 0.0)
    made.set_node(then)

    assert 5 == sum(used(made))
    assert used(made).index(5) == indices(placed)[0]


def test_an_unhealthy_card_takes_nobody_and_is_no_alarm():
    """What it holds stays; what comes goes elsewhere; it is not over-committed."""
    made = build_cache(node("n", 2, 8))
    made.set_pod(bound(pod("a", 5), at("n", 0, size=5)))
    unhealthy = replace(node("n", 2, 8), cards=(replace(card(0, 8), healthy=False), card(1, 8)))
    made.set_node(unhealthy)

    assert [] == made.find_overcommitted()
    assert (1,) == indices(made.assume(pod("b", 2), "n", 0.0))
    made.set_node(node("n", 2, 8))
    assert (0,) == indices(made.assume(pod("c", 3), "n", 0.0)) or (1,) == indices(made.assume(pod("c", 3), "n", 0.0))


def test_room_that_nobody_saw_taken_is_told_of_as_it_becomes_free():
    """
    Assumed, never seen bound, and found gone, unbound or elsewhere by the server's word: others may be waiting.
    """
    made, notified = build_cache(node("n", 1, 8), node("m", 1, 8)), []
    made.on_capacity_freed(lambda: notified.append(sum(used(made)) + sum(used(made, "m"))))

    for uid in ("gone", "undone", "elsewhere"):
        made.assume(pod(uid, 2), "n", 0.0)
    made.confirm("gone")
    assert [] == notified
    made.remove_pod("gone")
    made.forget("undone")
    assert [4, 2] == notified
    made.set_pod(bound(pod("elsewhere", 2), at("n", 0, size=2)))
    assert 2 == len(notified)  # where it was assumed: nothing is free
    made.assume(pod("moved", 2), "n", 0.0)
    made.record_binding("moved", at("m", 0, size=2))
    assert 3 == len(notified)
    made.remove_pod("never known")
    assert 3 == len(notified)
