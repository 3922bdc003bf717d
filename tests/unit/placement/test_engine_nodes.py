# SPDX-License-Identifier: Apache-2.0
"""The engine asked about named nodes: one, some, and why not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.builders import ask, node

from isolation.contract.model import CardChoice, Mode, Placement, Refusal, Slice, Why
from isolation.contract.quantity import gib
from isolation.placement.engine import Engine
from isolation.placement.policy import POLICIES

REPLICA = "ReplicaSet/default/web"


def test_each_node_has_its_own_reason():
    """All kinds of no at once, by node; None: it would take the pod."""
    engine = Engine(
        [
            node("fits", 2, 8),
            node("few", 1, 8),
            node("small", 2, 3),
            node("full", 2, 8),
            node("split", 3, 8),
            node("mode", 2, 8, mode=Mode.EXCLUSIVE),
            node("down", 2, 8, ready=False),
            node("cpu", 2, 8, cpu_milli=10),
        ]
    )
    for name, index, size in [("full", 0, 8), ("full", 1, 8), ("split", 0, 5), ("split", 1, 5)]:
        where = Placement(name, (Slice(f"GPU-{name}-{index}", index, gib(size)),))
        engine.hold(f"{name}{index}", ask(size), where)
    names = ["full", "fits", "who?", "split", "few", "small", "mode", "down", "cpu"]

    found = engine.why_not(ask(4, cards=2, cpu_milli=100), names)

    assert {
        None: ["fits"],
        Why.CARDS: ["full"],
        Why.FRAGMENTED: ["split"],
        Why.TOO_FEW_CARDS: ["few"],
        Why.CARD_TOO_SMALL: ["small"],
        Why.MODE: ["mode"],
        Why.NOT_READY: ["down"],
        Why.CPU: ["cpu"],
        Why.NO_NODES: ["who?"],
    } == found


def test_one_node_is_asked_and_no_other():
    """Its cards, or its own reason in few words; a node that is not there is the caller's mistake."""
    engine = Engine([node("n", 2, 8), node("m", 2, 16)])

    assert "n" == engine.place_on(ask(8), "n").node
    refused = engine.place_on(ask(10), "n")
    assert isinstance(refused, Refusal)
    assert (Why.CARD_TOO_SMALL, "no healthy card of 10 GiB or more") == (refused.why, refused.reason)
    with pytest.raises(KeyError):
        engine.place_on(ask(1), "who?")


@pytest.mark.parametrize("names", [[], ["who?"], ["n", "who?", "n"]])
def test_ratings_come_in_the_order_of_the_names(names):
    """Unknown nodes are worth nothing, and a name may come twice."""
    engine = Engine([node("n", 2, 8)])

    scores, masks = engine.rate(ask(4), names)

    assert [name == "n" for name in names] == [math.isfinite(score) for score in scores]
    assert [name == "n" for name in names] == [int(mask).bit_count() == 1 for mask in masks]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([4, 10, 16]), st.booleans()), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2), st.booleans(), st.integers(0, 4)), max_size=20),
    st.sampled_from(sorted(set(POLICIES) - {"random"})),
)
def test_the_best_rated_node_is_where_the_pod_is_placed(specs, pods, policy):
    """Rating some or all nodes, asking one node and placing agree, whatever was asked before."""
    choices = (CardChoice.BINPACK, CardChoice.SPREAD)
    engine = Engine([node(f"n{i}", c, s, choice=choices[wide]) for i, (c, s, wide) in enumerate(specs)], policy=policy)
    names = list(engine.nodes)
    for at, (size, cards, owned, pick) in enumerate(pods):
        request = ask(size, cards, owner=REPLICA if owned else "")
        one = names[pick % len(names)]
        alone = engine.place_on(request, one)
        scores, masks = engine.rate(request, names)
        placed = engine.place(request)
        fitting = engine.why_not(request, names).get(None, [])
        assert [name for name, score in zip(names, scores, strict=True) if math.isfinite(score)] == fitting
        assert isinstance(alone, Placement) == (one in fitting)
        assert isinstance(placed, Placement) == bool(fitting)
        if isinstance(placed, Placement):
            assert scores[names.index(placed.node)] == min(scores)
            assert placed == engine.place_on(request, placed.node)
            assert cards == int(masks[names.index(placed.node)]).bit_count()
            engine.hold(str(at), request, placed)
