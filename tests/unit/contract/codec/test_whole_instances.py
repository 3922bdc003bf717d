# SPDX-License-Identifier: Apache-2.0
"""Whole MIG instances, as the vendor's plugin offers them by profile and pods ask for them."""

from __future__ import annotations

import pytest

from isolation.contract.codec import node_of, request_of
from isolation.contract.codec.cursor import CodecError
from isolation.contract.model import Mode
from isolation.contract.quantity import GIB
from isolation.node.status import read

SMALL, LARGE, WHOLE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/gpu"


def request(*containers):
    """What a pod of these containers asks for."""
    made = [{"name": f"c{at}", "resources": {"limits": limits}} for at, limits in enumerate(containers)]
    return request_of({"name": "p"}, {"containers": made})


def node(capacity, allocatable=None, **labels):
    """A node that states these resources."""
    status = {"capacity": capacity, "allocatable": allocatable or capacity}
    return {"metadata": {"name": "n", "labels": labels}, "status": status}


def test_instances_are_asked_for_by_profile():
    found = request({SMALL: 2}, {SMALL: "1"}, {})

    assert (3, True, "1g.10gb", ()) == (found.cards, found.whole, found.rules.cards.profile, found.unmodelled)
    assert [("c0", 2), ("c1", 1)] == [(ask.container, ask.whole) for ask in found.asks]


@pytest.mark.parametrize(
    ("containers", "cards", "unmodelled"),
    [
        (({SMALL: 1, LARGE: 1},), 0, (SMALL, LARGE)),
        (({SMALL: 1}, {LARGE: 1}), 0, (SMALL, LARGE)),
        (({WHOLE: 1}, {SMALL: 1}), 1, (SMALL,)),
        (({WHOLE: 1, SMALL: 1},), 1, (SMALL,)),
        (({"aliyun.com/gpu-mem": 3}, {SMALL: 1}), 1, (SMALL,)),
        (({SMALL: 0},), 0, ()),
    ],
)
def test_what_only_the_vendors_plugin_can_weigh_is_named(containers, cards, unmodelled):
    """Several profiles, or instances beside cards: as any other resource of somebody else's."""
    found = request(*containers)

    assert (cards, "") == (found.cards, found.rules.cards.profile)
    assert {f"resource '{name}'" for name in unmodelled} == {each.replace('"', "'") for each in found.unmodelled}


def test_a_node_of_instances_has_each_as_a_card():
    """Beside its whole cards, by profile, as many as the kubelet leaves sound."""
    found = node_of(node({SMALL: "3", LARGE: 1, WHOLE: 1}, {SMALL: "2", LARGE: 1, WHOLE: 1}))

    assert Mode.EXCLUSIVE is found.mode
    assert [("", 0, True), ("1g.10gb", 1, True), ("1g.10gb", 2, True), ("1g.10gb", 3, False), ("3g.40gb", 4, True)] == [
        (card.instance.profile if card.instance else "", card.index, card.healthy) for card in found.cards
    ]
    assert [10 * GIB, 40 * GIB] == [found.cards[1].total_bytes, found.cards[4].total_bytes]
    assert 5 == len({card.uuid for card in found.cards})


def test_a_node_that_offers_whole_instances_offers_no_shares():
    """The vendor's plugin and ours would give the same instance twice."""
    assert read(node({SMALL: 7}, **{"ack.node.gpu.schedule": "cgpu"}))[2]
    assert not read(node({SMALL: 0}, **{"ack.node.gpu.schedule": "cgpu"}))[2]


@pytest.mark.parametrize("count", ["65", "1000000"])
def test_more_instances_than_any_machine_has_are_refused(count):
    with pytest.raises(CodecError, match="MIG instances are more than any machine has"):
        node_of(node({SMALL: count}))
