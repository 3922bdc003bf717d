# SPDX-License-Identifier: Apache-2.0
"""A node of mode mps that is planned offers what a real one will: its cards without what their servers have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.observe.pools import make_pool
from autoscaler.providers.registry import PoolSource
from isolation.contract.codec.template import NodeTemplate
from isolation.contract.model import Card, Mode
from isolation.node.inventory import NodeInventory, Terms

GIB, MIB = 1 << 30, 1 << 20
DRIVERS = 247 * MIB


def by_agent(folder, mode, model="Tesla V100-SXM2-16GB"):
    """What the agent of a real node of two such cards states of them."""
    cards = tuple(Card(f"GPU-{at}", at, 16 * GIB, DRIVERS, model=model) for at in range(2))
    inventory = NodeInventory(SimpleNamespace(cards=lambda: cards), Terms(GIB), folder / f"{mode}.json")
    inventory.refresh()
    inventory.serves(mode, whole=False)
    return tuple(inventory.cards())


def planned(mode, profile, learnt=None):
    """Bytes of each card that may be promised on a planned node, and its label of units."""
    one = PoolConfig("p", PoolSource("p", "scale", None), mode=mode, profile=profile)
    pool = make_pool(one, one.shaped(learnt), (0, 5), known=True)
    return [card.allocatable_bytes for card in pool.template.cards], pool.template.labels["gpushare.dev/card-units"]


def stated(cards):
    """By an agent."""
    return [card.allocatable_bytes for card in cards]


@pytest.mark.parametrize(
    ("mode", "of", "learns"),
    [
        (None, Mode.MPS, True),
        (Mode.MPS, Mode.MPS, True),
        (Mode.MPS, Mode.MPS, False),
        (Mode.MPS, Mode.CGPU, True),
        (Mode.MPS, Mode.CORE_MEM, False),
    ],
)
@pytest.mark.parametrize("model", ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA X1"])
def test_planned_is_what_real_ones_state(tmp_path, mode, of, learns, model):
    """Learnt from nodes, or written by the operator; of this mode, or of another that the pool leaves."""
    template = NodeTemplate(mode=of, cards=by_agent(tmp_path, of, model))
    real = by_agent(tmp_path, Mode.MPS, model)
    found = planned(mode, None, template) if learns else planned(mode, template)
    assert found == (stated(real), str(real[0].allocatable_bytes // GIB))


def test_a_description_without_a_mode_is_of_the_pools_nodes_unless_nothing_is_kept_for_a_server(tmp_path):
    real = by_agent(tmp_path, Mode.MPS)
    assert planned(Mode.MPS, NodeTemplate(cards=real))[0] == stated(real)
    by_hand = tuple(replace(card, reserved_bytes=0) for card in real)
    assert planned(Mode.MPS, NodeTemplate(cards=by_hand))[1] == "15", "306 of 16,384 MiB are the server's"
    assert planned(Mode.CGPU, NodeTemplate(cards=by_hand))[1] == "16"


def test_what_is_planned_is_not_made_smaller_again(tmp_path):
    one = PoolConfig("p", PoolSource("p", "scale", None), mode=Mode.MPS)
    once = one.shaped(NodeTemplate(mode=Mode.CGPU, cards=by_agent(tmp_path, Mode.CGPU)))
    assert one.shaped(once) == once
