# SPDX-License-Identifier: Apache-2.0
"""Which nodes go, in which order, at what disruption, and when none does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask, node
from support.moves_harness import FULL, LIMITS, NOW, steps_of, waiting_for_six
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.disruption_budget import Budget
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import LimitsError, ScalingLimits
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import Drain, Evict, Move, Plan, RemoveNode
from autoscaler.core.rebalance.cost import DisruptionCost, disruption_seconds
from autoscaler.core.scale_down import find_removals, find_unneeded
from autoscaler.core.state import AutoscalerState
from isolation.contract.model import Placement
from isolation.contract.quantity import gib


def test_disruption_grows_with_what_must_be_loaded_with_priority_and_deletion_cost():
    """
    A large pod is away for longer; who asked to go last is slow; all within bounds.
    """
    light, heavy = pod(ask(1)), pod(ask(40))
    costly = replace(light, priority=10**9)

    assert 30 + 2 == pytest.approx(disruption_seconds(light, LIMITS))
    assert disruption_seconds(light, LIMITS) < disruption_seconds(heavy, LIMITS)
    assert 320 == pytest.approx(disruption_seconds(costly, LIMITS))
    assert 3.2 == pytest.approx(disruption_seconds(light, LIMITS, -(2**31) + 1))
    assert 64 == pytest.approx(disruption_seconds(light, LIMITS, 2**27))


def test_daemons_neither_keep_a_node_nor_move():
    """
    They go with their node: it drains without them, and goes when only they are left.
    """
    busy, light = node("busy", 1, 15, pool="p"), node("light", 1, 15, pool="p")
    daemon = pod(ask(0, 0, owner="DaemonSet/kube-system/proxy"), on=Placement("light"), evictable=False)
    mover = pod(ask(2, owner="R/a"), on=on_card(light, 0, 2))
    pods = [pod(ask(8, owner="R/b"), on=on_card(busy, 0, 8)), mover, daemon]
    observation = seen([pool(min_nodes=1)], pods, [busy, light], at=NOW)
    patient = AutoscalerState(unneeded={"light": 0.0})

    (drain,) = steps_of(observation, memory=patient)
    machines = {**observation.machines, "light": PoolMachine("light", "p", MachineState.DRAINING, NOW - 300)}
    left = replace(observation, machines=machines, on={**observation.on, "light": {daemon.uid: daemon}})

    assert ("light", (mover.uid,)) == (drain.node, tuple(home.pod for home in drain.reservations))
    assert (drain,) == Plan(NOW, (drain,)).still_valid(observation).steps
    assert (RemoveNode("light", "empty, tainted for 300 s"),) == Plan(NOW, steps_of(left)).still_valid(left).steps


def test_a_node_whose_pod_is_on_the_move_already_is_not_drained_yet():
    """
    A move that was cut off between its reservation and its eviction comes to its end first: one home for each pod.
    """
    left, right = node("left", 1, 15, pool="p"), node("right", 1, 15, pool="p")
    mover = pod(ask(2, owner="R/a"), on=on_card(left, 0, 2))
    observation = seen([pool(min_nodes=1)], [mover, pod(ask(8, owner="R/b"), on=on_card(right, 0, 8))], [left, right])
    home = SuccessorReservation(mover.uid, mover.request, on_card(right, 0, 2), NOW)
    observation = replace(observation, at=NOW, reserved={mover.uid: home})
    observation.engine.hold(home.hold, home.request, home.placement)

    steps = steps_of(observation, memory=AutoscalerState(unneeded={"left": 0.0}))
    assert [(Evict, mover.uid)] == [(type(step), step.pod) for step in steps]


def test_a_node_goes_only_if_those_who_came_lately_could_come_again():
    """
    Giving back the room they would need tomorrow morning is a flap.
    """
    empty, busy = node("empty", 1, 15, pool="p"), node("busy", 1, 15, pool="p")
    old = [pod(ask(12, owner="R/a"), on=on_card(busy, 0, 12))]
    late = [pod(ask(12, owner="R/a"), on=on_card(busy, 0, 12), created=NOW - 60)]
    patient = AutoscalerState(unneeded={"empty": 0.0})

    def kinds(pods):
        return [type(step) for step in steps_of(seen([pool()], pods, [empty, busy], at=NOW), memory=patient)]

    assert ([Drain], []) == (kinds(old), kinds(late))


def test_a_node_just_bought_is_left_alone():
    """
    Whatever its load.
    """
    empty = node("empty", 1, 15, pool="p")
    fresh = seen([pool()], [], [empty], machines=[PoolMachine("empty", "p", MachineState.READY, NOW - 3599)], at=NOW)

    assert frozenset() == find_unneeded(fresh, LIMITS)
    assert {"empty"} == find_unneeded(replace(fresh, at=NOW + 1), LIMITS)


def test_moves_promised_are_not_promised_again():
    """
    What is reserved and not yet evicted counts against the hour.
    """
    budget = Budget(LIMITS, NOW, pods=100, promised=8)

    assert (10, 2) == (budget.left, budget.free)
    assert 160 == Budget(LIMITS, NOW, pods=8000).left


def test_what_the_cluster_refused_is_remembered_as_a_rest_and_not_as_a_move():
    """
    Longer each time, for the owner.
    """
    observation, _ = waiting_for_six()
    plan = Plan(NOW, steps_of(observation))

    once = AutoscalerState().record(plan, LIMITS, plan.steps)
    again = once.record(replace(plan, at=NOW + 400), LIMITS, plan.steps)

    assert ((), {}) == (once.moves, dict(once.moved))
    assert [300, 600] == [memory.refused["R/mover"].seconds for memory in (once, again)]
    assert 1 == len(AutoscalerState().record(plan, LIMITS).moves)


def test_limits_that_contradict_each_other_are_refused():
    """
    All at once.
    """
    with pytest.raises(LimitsError, match=r"defragment_stop_ratio.*hot_card_target_ratio"):
        ScalingLimits(
            defragment_stop_ratio=0.5,
            defragment_start_ratio=0.1,
            hot_card_target_ratio=0.95,
            hot_card_threshold_ratio=0.9,
        )


spots = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 9)), max_size=12)


@given(spots, st.lists(st.integers(2, 15), min_size=1, max_size=4))
def test_whatever_moves_has_a_true_home_and_whom_it_serves_has_room(placed, sizes):
    """
    Counted by hand: homes fit beside everything that stands; when the movers have left, the served fit as well.
    """
    nodes = [node(f"n{i}", 2, 15, pool="p") for i in range(4)]
    free = {card.uuid: gib(15) for each in nodes for card in each.cards}
    pods = []
    for at, index, size in placed:
        card = nodes[at].cards[index]
        if free[card.uuid] >= gib(size):
            free[card.uuid] -= gib(size)
            pods.append(pod(ask(size, owner=f"R/{len(pods)}"), on=on_card(nodes[at], index, size)))
    waiting = [pod(ask(size), created=NOW) for size in sizes]
    observation = seen([FULL], [*pods, *waiting], nodes, at=NOW)

    moves = [step for step in steps_of(observation) if isinstance(step, Move)]
    by = {each.uid: each for each in pods}
    for move in moves:
        for part in move.reservation.placement.slices:
            free[part.uuid] -= part.bytes
    assert all(room >= 0 for room in free.values())
    for move in moves:
        for part in by[move.pod].placement.slices:
            free[part.uuid] += part.bytes
    served = {uid for move in moves for uid in move.pods}
    for each in sorted((each for each in waiting if each.uid in served), key=lambda each: -each.request.card_bytes):
        card = min((uuid for uuid in free if free[uuid] >= each.request.card_bytes), key=lambda uuid: free[uuid])
        free[card] -= each.request.card_bytes
    assert all(len({move.owner for move in moves if uid in move.pods}) <= 2 for uid in served)


def test_drains_go_by_cards_freed_for_each_move():
    """
    Eight cards for one pod before one card for one pod, though the latter is emptier.
    """
    wide, slim, home = node("wide", 8, 15, pool="p"), node("slim", 1, 15, pool="p"), node("zhome", 2, 15, pool="p")
    pods = [
        pod(ask(4, owner="R/a"), on=on_card(wide, 0, 4)),
        pod(ask(4, owner="R/b"), on=on_card(slim, 0, 4)),
        pod(ask(10, owner="R/c"), on=on_card(home, 0, 10)),
        pod(ask(10, owner="R/d"), on=on_card(home, 1, 10)),
    ]
    observation = seen([pool()], pods, [wide, slim, home], at=NOW)
    unneeded = dict.fromkeys(("slim", "wide"), 0.0)
    one = Budget(LIMITS, NOW, pods=4, moves=(NOW,) * (LIMITS.min_moves_per_hour - 1))

    assert ["wide"] == [each.node for each in find_removals(observation, LIMITS, unneeded, one)]
    assert DisruptionCost.of(observation, LIMITS).is_worth(1.0, pods)
