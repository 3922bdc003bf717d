# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's cache answer: which nodes fit, which is best, and why the others are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import node
from support.scheduler_cache_builders import build_cache, indices
from support.scheduler_harness import at, bound, pod, reserve

from isolation.contract.model import CardChoice, Mode, Refusal
from isolation.contract.quantity import gib


def test_every_node_asked_about_gets_exactly_one_answer():
    """Fits, full, in the wrong mode, too small, without cards, unknown, without its agent: each in its place."""
    full = node("full", 1, 8)
    made = build_cache(
        node("fits", 1, 8),
        full,
        node("exclusive", 1, 8, mode=Mode.EXCLUSIVE),
        node("compute", 1, 8, mode=Mode.CORE_MEM),
        node("small", 1, 2),
        node("cpu", 0),
        replace(node("leaving", 1, 8), serving=False),
    )
    made.set_pod(bound(pod("a", 6), at("full", 0, size=6)))
    names = ["fits", "full", "exclusive", "compute", "small", "cpu", "leaving", "who?"]

    found = made.filter(pod("p", 4), names, 0.0)

    assert ["fits"] == found.fit
    assert {"full", "who?"} == set(found.failed)
    assert {"exclusive", "compute", "small", "cpu", "leaving"} == set(found.unresolvable)
    assert "no card with 4 GiB free" == found.failed["full"]
    assert "no healthy card of 4 GiB or more" == found.unresolvable["small"]
    assert "agent" in found.unresolvable["leaving"]


def test_room_in_sum_but_on_no_card_is_distinguished():
    """4 GiB on each of two cards do not take 6."""
    made = build_cache(node("n", 2, 8))
    made.set_pod(bound(pod("a", 4), at("n", 0)))
    made.set_pod(bound(pod("b", 4), at("n", 1)))

    found = made.filter(pod("p", 6), ["n"], 0.0)

    assert {"n": "no card with 6 GiB free, though enough in total"} == found.failed


def test_whether_a_pod_could_fit_anywhere_follows_every_change():
    """Asked again and again: a bind, an end, a node, a reservation and its end change the answer."""
    made, asked = build_cache(node("n", 1, 8)), pod("p", 5)

    def could() -> bool:
        assert made.could_fit(asked, 0.0) == bool(made.filter(asked, ["n", "m"], 0.0).fit)
        return made.could_fit(asked, 0.0)

    assert could()
    made.assume(pod("a", 5), "n", 0.0)
    assert not could()
    made.forget("a")
    assert could()
    made.set_reservation(reserve("r", "p", at("n", 0, size=8)))
    assert could()
    assert not made.could_fit(pod("q", 5), 0.0)
    made.set_pod(bound(pod("b", 5), at("n", 0, size=5)))
    assert not could()
    made.set_node(node("m", 1, 8))
    assert could()
    made.remove_node("m")
    made.remove_pod("b")
    made.remove_reservation("r")
    assert could()


def test_the_stock_schedulers_business_is_left_to_it():
    """Taints, cordons, readiness and CPU of a node that reached us were weighed already."""
    made = build_cache(node("n", 1, 8, cordoned=True, ready=False, cpu_milli=0, memory_bytes=0, pods=1))

    assert ["n"] == made.filter(pod("p", 4, cpu_milli=9000, memory_bytes=gib(9)), ["n"], 0.0).fit


@pytest.mark.parametrize(("choice", "expected"), [(CardChoice.BINPACK, 1), (CardChoice.SPREAD, 2)])
def test_the_nodes_label_decides_between_its_cards(choice, expected):
    """Binpack fills a card, spread keeps replicas of one owner apart."""
    made = build_cache(node("n", 2, 8, choice=choice))
    cards = {indices(made.assume(pod(f"{i}", 2, owner="ReplicaSet/ml/web"), "n", 0.0)) for i in range(2)}

    assert expected == len(cards)


def test_the_best_node_gets_all_points_and_a_full_one_none():
    """Points are 0 to 10 in the order asked; a node that does not fit is worth nothing."""
    made = build_cache(*(node(f"n{i}", 2, 8) for i in range(4)))
    made.set_pod(bound(pod("a", 4), at("n1", 0)))
    made.set_pod(bound(pod("b", 8), at("n2", 0, size=8)))
    made.set_pod(bound(pod("c", 8), at("n2", 1, size=8)))

    points = made.prioritize(pod("p", 4), ["n0", "n1", "n2", "who?", "n3"], 0.0)

    assert 10 == max(points)
    assert 10 == points[1]
    assert [0, 0] == points[2:4]
    assert points[0] == points[4] < 10


def test_a_pod_without_shares_is_not_this_schedulers():
    """Every node fits, none is better, and it is not bound here."""
    made = build_cache(node("n", 1, 8))
    whole = replace(pod("a"), request=replace(pod("a").request, whole=True))

    assert ["n", "m"] == made.filter(whole, ["n", "m"], 0.0).fit
    assert [0, 0] == made.prioritize(whole, ["n", "m"], 0.0)
    assert isinstance(made.assume(whole, "n", 0.0), Refusal)
    assert isinstance(made.assume(replace(pod("a"), uid=""), "n", 0.0), Refusal)
