# SPDX-License-Identifier: Apache-2.0
"""Quotas of namespaces, and numbers of strangers: nobody gets more than there is."""

from __future__ import annotations

from dataclasses import replace

from support.builders import card, node
from support.scheduler_cache_builders import build_cache, used
from support.scheduler_harness import at, bound, pod, reserve

from isolation.contract.model import Refusal
from isolation.contract.quantity import gib
from isolation.scheduler.core.cache import AssumedPlacement


def test_a_namespace_gets_no_more_of_a_card_model_than_its_quota():
    """Counted in units, over all nodes of the model, and checked again when the room is taken."""
    made = build_cache(node("t", 2, 8, model="T4"), node("t2", 2, 8, model="T4"), node("a", 2, 8, model="A10"))
    made.set_quota("ml", {"T4": 10})
    made.set_pod(bound(pod("old", 4), at("t", 0)))
    made.assume(pod("new", 4), "t2", 0.0)

    found = made.filter(pod("p", 4), ["t", "t2", "a"], 0.0)

    assert ["a"] == found.fit
    assert "exceeds the quota of namespace ml for T4: 8 GiB of 10 GiB used" == found.failed["t"]
    assert isinstance(made.assume(pod("p", 4), "t", 0.0), Refusal)
    assert isinstance(made.assume(pod("q", 2), "t", 0.0), AssumedPlacement)
    assert isinstance(made.assume(pod("r", 4, namespace="other"), "t", 0.0), AssumedPlacement)


def test_a_pod_over_several_cards_counts_with_all_of_them():
    """4 GiB on each of two cards are 8 of the quota."""
    made = build_cache(node("t", 2, 8, model="T4"))
    made.set_quota("ml", {"T4": 7})

    assert isinstance(made.assume(pod("p", 4, cards=2), "t", 0.0), Refusal)
    assert isinstance(made.assume(pod("q", 3, cards=2), "t", 0.0), AssumedPlacement)


def test_quotas_follow_what_ends_what_changes_and_what_is_reserved():
    """A pod's end, another quota, a node whose cards turn out to be of another model, a reservation."""
    made = build_cache(node("t", 2, 8, model="T4"))
    made.set_quota("ml", {"T4": 8})
    made.set_pod(bound(pod("old", 6), at("t", 0, size=6)))
    assert isinstance(made.assume(pod("p", 4), "t", 0.0), Refusal)
    made.set_node(node("t", 2, 8, model="V100"))
    assert ["t"] == made.filter(pod("p", 4), ["t"], 0.0).fit
    made.set_node(node("t", 2, 8, model="T4"))
    made.set_quota("ml", {"T4": 12})
    made.set_reservation(reserve("r", "a", at("t", 1), namespace="ml"))
    assert [] == made.filter(pod("p", 4), ["t"], 0.0).fit
    assert ["t"] == made.filter(pod("a", 4), ["t"], 0.0).fit
    made.remove_pod("old")
    assert ["t"] == made.filter(pod("p", 4), ["t"], 0.0).fit
    made.set_quota("ml", {"T4": 0})
    assert [] == made.filter(pod("p", 1), ["t"], 0.0).fit
    made.set_quota("ml", None)
    assert ["t"] == made.filter(pod("p", 4), ["t"], 0.0).fit


def test_forged_amounts_never_wrap_a_card_round_to_free():
    """Thousands of pods on one card by forged records, each of the most that the codec lets through."""
    made = build_cache(node("n", 1, 8))
    most = pod("x", (1 << 50) // gib(1) - 1)
    for i in range(9000):
        made.set_pod(bound(replace(most, uid=f"x{i}"), at("n", 0, size=(1 << 50) // gib(1) - 1)))
        if i % 1000 == 0:
            assert isinstance(made.assume(pod("a", 1), "n", 0.0), Refusal)

    assert [] == made.filter(pod("a", 1), ["n"], 0.0).fit
    for i in range(9000):
        made.remove_pod(f"x{i}")
    assert ["n"] == made.filter(pod("a", 8), ["n"], 0.0).fit


def test_a_card_of_any_size_that_a_node_claims_is_counted_without_overflow():
    """Sixty-four cards of the most bytes that an annotation may say."""
    huge = tuple(replace(card(i), total_bytes=(1 << 62) - 1) for i in range(64))
    made = build_cache(replace(node("n"), cards=huge))

    assert ["n"] == made.filter(pod("a", 1 << 15, 64), ["n"], 0.0).fit
    assert isinstance(made.assume(pod("a", 1 << 15, 64), "n", 0.0), AssumedPlacement)
    assert [] == made.find_overcommitted()


def test_card_sizes_that_come_and_go_are_forgotten_and_holds_are_not():
    """A node that claims another size each second costs neither memory without end nor anybody's room."""
    made = build_cache(node("n", 1, 8), node("m", 1, 8))
    made.set_pod(bound(pod("a", 5), at("n", 0, size=5)))
    made.set_reservation(reserve("r", "b", at("n", 0, size=3)))
    for i in range(1000):
        made.set_node(replace(node("m"), cards=(replace(card(0, node="m"), total_bytes=gib(10) + i * gib(1)),)))

    assert 200 > len(made._capacity.engine.fleet.kinds)
    assert [8] == used(made)
    made.remove_pod("a")
    made.remove_reservation("r")
    assert [0] == used(made)
