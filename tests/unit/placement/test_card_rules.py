# SPDX-License-Identifier: Apache-2.0
"""Rules about cards: a pod gets none that it may not use, whatever the policy, and none is refused it otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import request_of
from isolation.contract.model import Card, CardRules, Mode, Node, Placement, Refusal, Request, Rules, Why
from isolation.contract.names import AVOID_MODELS, AVOID_UUIDS, USE_MODELS, USE_UUIDS
from isolation.contract.quantity import GIB
from isolation.placement.card_sizes import measure_cards
from isolation.placement.engine import Engine
from isolation.placement.policy import POLICIES

MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA A10", "Tesla T4")


def node(name: str, models, gib: int = 16) -> Node:
    """A node whose cards are of these models."""
    cards = tuple(Card(f"{name}-{i}", i, gib * GIB, model=model) for i, model in enumerate(models))
    return Node(name, cards, Mode.CGPU, cpu_milli=1 << 40, memory_bytes=1 << 50)


def request(cards: int, gib: int, rules: CardRules) -> Request:
    """So many cards with so much of each."""
    return Request(cards=cards, card_bytes=gib * GIB, rules=Rules(cards=rules))


@given(
    fleet=st.lists(st.lists(st.sampled_from(MODELS), min_size=1, max_size=8), min_size=1, max_size=4),
    asks=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(1, 16),
            st.frozensets(st.sampled_from(["A10", "A100", "T4"]), max_size=2),
            st.frozensets(st.sampled_from(["SXM4", "TESLA"]), max_size=1),
            st.frozensets(st.sampled_from(["n0-0", "n0-1", "n1-0"]), max_size=2),
        ),
        max_size=12,
    ),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_only_allowed_cards_are_taken_and_a_refusal_is_true(fleet, asks, policy):
    """
    Against the rules themselves, card by card; reasons agree with placements.
    """
    nodes = [node(f"n{i}", models) for i, models in enumerate(fleet)]
    engine = Engine(nodes, policy=policy)
    for at, (count, gib, use, avoid, uuids) in enumerate(asks):
        rules = CardRules(use, avoid, not_uuids=uuids)
        asked = request(count, gib, rules)
        fits = [
            each.name
            for each in nodes
            if sum(
                rules.allow(card) and free >= gib * GIB
                for card, (free, _) in zip(each.cards, engine.room(each.name), strict=True)
            )
            >= count
        ]
        why = engine.why_not(asked, [each.name for each in nodes])
        assert sorted(fits) == sorted(why.get(None, []))
        found = engine.place(asked)
        assert isinstance(found, Placement) == bool(fits)
        if isinstance(found, Placement):
            cards = {card.uuid: card for card in engine.nodes[found.node].cards}
            assert all(rules.allow(cards[part.uuid]) for part in found.slices)
            engine.hold(str(at), asked, found)


def test_a_group_with_rules_may_come_after_others_and_survives_growth():
    """
    Requests without rules keep their answers, also when nodes with more cards come.
    """
    engine = Engine([node("a", MODELS[:1])])
    free, ruled = request(1, 4, CardRules()), request(1, 4, CardRules(frozenset({"T4"})))
    assert isinstance(engine.place(free), Placement)
    refused = engine.place(ruled)
    assert isinstance(refused, Refusal)
    assert refused.why is Why.RULES
    assert "annotations allow" in refused.reason
    for i in range(40):
        engine.put_node(node(f"b{i}", MODELS * 4 if i == 39 else MODELS[:1]))
    found = engine.fork().place(ruled)
    assert isinstance(found, Placement)
    assert ("b39", 2) == (found.node, found.slices[0].index % 3)
    assert isinstance(engine.place(free), Placement)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        (USE_MODELS, "a100, t4", {0, 2}),
        (USE_MODELS, "A10", {0, 1}),
        (AVOID_MODELS, "Tesla", {0, 1}),
        (USE_UUIDS, "n-1", {1}),
        (AVOID_UUIDS, "n-1", {0, 2}),
    ],
)
def test_annotations_name_cards_by_part_of_the_model_or_by_uuid(key, value, allowed):
    """
    In any case of letters, as HAMi has it.
    """
    container = {"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}
    asked = request_of({"annotations": {key: value}}, {"containers": [container]})
    assert isinstance(asked, Request)
    assert allowed == {card.index for card in node("n", MODELS).cards if asked.rules.cards.allow(card)}


@pytest.mark.parametrize("value", ["", ",", "a,,b", ",".join("x" * 65)])
def test_a_list_with_an_empty_name_or_too_many_is_refused(value):
    """
    An empty name would be part of every model.
    """
    spec = {"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}]}
    assert isinstance(request_of({"annotations": {AVOID_MODELS: value}}, spec), Refusal)


def test_sizes_of_cards_follow_the_pods_rules():
    """
    Selectors, models and modes narrow them; a label that names one node does not, since it is not sent.
    """
    small, large = node("s", MODELS[2:], 16), node("l", MODELS[:1], 40)
    nodes = [replace(each, labels={"size": each.name, "kubernetes.io/hostname": each.name}) for each in (small, large)]
    many = [replace(nodes[0], name=f"h{i}", labels={"size": "s", "kubernetes.io/hostname": f"h{i}"}) for i in range(80)]
    sizes = measure_cards([*nodes, *many])
    container = {"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}

    def of(**spec):
        asked = request_of({}, {"containers": [container], **spec})
        return {size // GIB for size in sizes.of(asked.rules, compute=False)}

    assert {16, 40} == of()
    assert {40} == of(nodeSelector={"size": "l"})
    assert {16, 40} == of(nodeSelector={"kubernetes.io/hostname": "h7"})
    assert set() == of(nodeSelector={"size": "x"})
    assert 3 > len(sizes.kinds)
    assert frozenset() == sizes.of(Rules(), compute=True)
    assert {40 * GIB} == sizes.of(Rules(cards=CardRules(frozenset({"A100"}))), compute=False)
