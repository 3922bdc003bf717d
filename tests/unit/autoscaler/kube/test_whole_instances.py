# SPDX-License-Identifier: Apache-2.0
"""The autoscaler counts MIG instances: shares of them, and whole ones that the vendor's plugin gives."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.builders import ask, node
from support.pools_builder import pod, seen

from autoscaler.apis.rpc.core.templates import build_template
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.pools import Pool
from autoscaler.core.scale_up import compute_demand
from autoscaler.kube.observe.capacity import build_engine
from autoscaler.providers.core.profile import decode, encode, make_template
from isolation.contract.codec import decode_cards, node_of
from isolation.contract.model import CardRules, Instance, Mode, Placement, Request, Rules, Why
from isolation.contract.names import CARDS
from isolation.placement.engine import Engine

LIMITS = ScalingLimits()


def divided(name, *profiles, mode=Mode.CGPU):
    """A node with one card that MIG divides into these; GiB by the profile's name."""
    cards = tuple(
        replace(card, total_bytes=int(profile[3:5]) << 30, instance=Instance(f"GPU-{name}", profile))
        for card, profile in zip(node(name, len(profiles), mode=mode).cards, profiles, strict=True)
    )
    return replace(node(name, mode=mode), cards=cards)


def whole(profile, count=1):
    """A pod's request for whole instances."""
    return Request(cards=count, whole=True, rules=Rules(cards=CardRules(profile=profile)))


SEVEN = ("1g.10gb",) * 7


@pytest.mark.parametrize(("pods", "nodes"), [(1, 1), (7, 1), (8, 2), (21, 3)])
@pytest.mark.parametrize("request_", [ask(8), whole("1g.10gb")], ids=["share", "whole"])
def test_as_many_nodes_are_added_as_instances_are_missing(request_, pods, nodes):
    mode = Mode.EXCLUSIVE if request_.whole else Mode.CGPU
    pools = [Pool("p", divided("t", *SEVEN, mode=mode), 0, 100, 1.0)]

    found = compute_demand(seen(pools, [pod(request_) for _ in range(pods)]), LIMITS)

    assert ["p"] * nodes == [each.pool for each in found.planned_nodes]


@pytest.mark.parametrize(
    "request_", [ask(4, 2), ask(4, core=30), whole("3g.40gb")], ids=["two cards", "compute", "other profile"]
)
def test_a_pool_whose_instances_cannot_serve_a_pod_is_not_grown_for_it(request_):
    mode = Mode.EXCLUSIVE if request_.whole else Mode.CORE_MEM if request_.card_core else Mode.CGPU
    waiting = pod(request_)

    found = compute_demand(seen([Pool("p", divided("t", *SEVEN, mode=mode), 0, 100, 1.0)], [waiting]), LIMITS)

    assert [] == found.planned_nodes
    assert Why.NO_NODES is found.refusals[waiting.uid].why or Why.INSTANCES is found.refusals[waiting.uid].why


def test_running_pods_take_the_instances_that_they_have():
    """Which ones is recorded nowhere; as many as they asked for are counted as taken, of their profile."""
    one = divided("n", "1g.10gb", "1g.10gb", "3g.40gb", mode=Mode.EXCLUSIVE)
    running = [pod(whole("1g.10gb"), on=Placement("n")), pod(whole("3g.40gb"), on=Placement("n"))]

    engine, load = build_engine([one], {"n": {each.uid: each for each in running}})

    assert {"n": pytest.approx(2 / 3)} == load
    assert isinstance(engine.place(whole("1g.10gb")), Placement)
    assert Why.CARDS is engine.place(whole("1g.10gb", 2)).why
    assert Why.CARDS is engine.place(whole("3g.40gb")).why


def test_a_learnt_pool_keeps_its_instances():
    """As remembered, and as cluster-autoscaler is told: the same pods fit on a node of the template."""
    one = divided("n", "4g.40gb", "2g.20gb", "1g.10gb")
    kept, problems = decode(encode({"p": make_template(one)}))

    assert ({"p": make_template(one)}, ()) == (kept, problems)
    assert make_template(one) == make_template(divided("m", "4g.40gb", "2g.20gb", "1g.10gb"))
    told = build_template(one, "p", {})
    assert [card.instance.profile for card in one.cards] == [
        card.instance.profile for card in decode_cards(told["metadata"]["annotations"][CARDS])
    ]


def test_cluster_autoscaler_is_told_whole_instances_by_profile():
    told = build_template(divided("n", "3g.40gb", "1g.10gb", "1g.10gb", mode=Mode.EXCLUSIVE), "p", {})

    amounts = told["status"]["allocatable"]
    assert {"nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-1g.10gb": "2"} == {
        name: amount for name, amount in amounts.items() if name.startswith("nvidia")
    }
    again = node_of(json.loads(json.dumps(told)))
    assert isinstance(Engine([again]).place(whole("1g.10gb", 2)), Placement)
