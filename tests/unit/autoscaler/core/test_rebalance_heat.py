# SPDX-License-Identifier: Apache-2.0
"""Moves away from hot cards, and moves that put fragments together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import ask, node
from support.moves_harness import LIMITS, NOW, steps_of
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.decide import decide
from autoscaler.core.rebalance.defragment import stranded_ratio
from autoscaler.core.rebalance.hot_cards import track_hot_cards
from autoscaler.core.state import AutoscalerState


def hot(heat, busy, *, seconds=700.0, quiet=0.1):
    """Two pods on a card of one node, another node beside it."""
    one, two = node("one", 1, 15, pool="p"), node("two", 1, 15, pool="p")
    pods = [pod(ask(2, owner=f"R/{i}"), f"pod-{i}", on=on_card(one, 0, 2)) for i in range(2)]
    pods.append(pod(ask(12, owner="R/wall"), on=on_card(two, 0, 12)))
    observation = seen([pool(min_nodes=2)], pods, [one, two], at=NOW)
    cards = {"GPU-one-0": heat} | ({} if quiet is None else {"GPU-two-0": quiet})
    measured = {pods[at].uid: used for at, used in enumerate(busy) if used is not None}
    observation = replace(observation, card_utilization=cards, pod_utilization=measured)
    return observation, AutoscalerState(hot={"GPU-one-0": NOW - seconds})


def test_a_pod_leaves_a_card_that_has_been_hot_for_long():
    """
    For a quieter one, with the load in the reason.
    """
    observation, memory = hot(0.97, (0.5, 0.4))

    (move,) = steps_of(observation, memory=memory)

    assert ("mitigate_hot_card", "two") == (move.kind, move.reservation.placement.node)
    assert "97%" in move.reason


def test_a_relieved_card_must_be_hot_again_before_another_pod_leaves_it():
    """
    Its figures are still those of before the move; a relief that the cluster would not have changes nothing.
    """
    observation, before = hot(0.97, (0.5, 0.4))
    plan, memory = decide(observation, LIMITS, before)

    moved, refused = memory.record(plan, LIMITS), memory.record(plan, LIMITS, plan.steps)

    assert "GPU-one-0" == plan.steps[0].card
    assert {} == moved.hot
    assert before.hot == refused.hot


@pytest.mark.parametrize(
    ("heat", "busy", "rest"),
    [
        pytest.param(0.97, (0.5, 0.4), {"seconds": 300.0}, id="not for long enough"),
        pytest.param(0.85, (0.5, 0.4), {}, id="not hot"),
        pytest.param(0.97, (None, None), {}, id="nobody's use is known"),
        pytest.param(0.97, (0.97, 0.0), {}, id="alone"),
        pytest.param(0.97, (0.5, 0.4), {"quiet": 0.4}, id="nowhere quiet"),
        pytest.param(0.97, (0.5, 0.4), {"quiet": None}, id="nowhere known to be quiet"),
        pytest.param(0.97, (0.02, 0.03), {}, id="its leaving would not cool the card"),
    ],
)
def test_heat_moves_nobody_without_need_and_knowledge(heat, busy, rest):
    """
    What is unknown is neither hot nor quiet.
    """
    observation, memory = hot(heat, busy, **rest)

    assert () == steps_of(observation, memory=memory)


def test_a_card_that_was_not_measured_is_hot_again():
    """
    A gap in the measurements ends the spell.
    """
    observation, memory = hot(0.97, (0.5, 0.4))

    assert memory.hot == track_hot_cards(observation.card_utilization, NOW, LIMITS, memory.hot)
    assert {} == track_hot_cards({}, NOW, LIMITS, memory.hot)
    assert {"GPU-one-0": NOW} == track_hot_cards(observation.card_utilization, NOW, LIMITS, {})


def fragments():
    """Two nodes with 5 and 10 of 15 GiB taken, and a workload of whole-card pods."""
    nodes = [node(f"n{i}", 1, 15, pool="p") for i in range(3)]
    pods = [pod(ask(5, owner=f"R/{i}"), on=on_card(nodes[i], 0, 5), created=i) for i in range(2)]
    pods += [pod(ask(15, owner=f"W/{i}"), on=on_card(nodes[2], 0, 15), created=2) for i in range(1)]
    observation = seen([pool(min_nodes=3)], pods, nodes, at=NOW)
    observation.engine.teach([ask(15)] * 200)
    return observation


def test_above_the_high_mark_moves_make_idle_cards_useful_until_the_low_one():
    """
    One pod joins the other, and a whole card is free; between the marks only what has begun goes on.
    """
    observation = fragments()
    idle, lost = observation.engine.fragments()
    calm = replace(LIMITS, defragment_start_ratio=1.0, defragment_stop_ratio=0.1)

    moves = steps_of(observation)

    assert stranded_ratio(idle, lost) > LIMITS.defragment_start_ratio
    assert ["defragment"] == [move.kind for move in moves]
    assert {"n0", "n1"} == {moves[0].node, moves[0].reservation.placement.node}
    assert () == steps_of(observation, calm)
    assert 1 == len(steps_of(observation, calm, AutoscalerState(defragmenting=True)))


def test_nothing_is_defragmented_while_a_node_waits_to_go():
    """
    A node that goes saves more than fewer fragments.
    """
    observation = replace(fragments(), pools={"p": pool()})

    plan, memory = decide(observation, LIMITS, AutoscalerState())

    assert ((), True) == (plan.steps, memory.defragmenting)
