# SPDX-License-Identifier: Apache-2.0
"""
What to do in one reconcile cycle: the order in which the deciders are asked, and which of them wait for a calm cycle.

`scale_up` answers for pending pods, `rebalance` moves single pods, `scale_down` removes nodes, `rightsizing` resizes
pods that stay. Pure: an observation, the limits and the state of the last cycle go in, a plan and the next state come
out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.core.disruption_budget import count_removals_left
from autoscaler.core.lifecycle import MachineState
from autoscaler.core.plan import Evict, Move, Plan
from autoscaler.core.rebalance.cost import DisruptionCost, RebalanceInputs
from autoscaler.core.rebalance.moves import plan_make_room, plan_rebalance, plan_returns, remember_hot_cards
from autoscaler.core.rightsizing.trial import find_wasteful, judge, plan_shrinks
from autoscaler.core.scale_down import (
    continue_drains,
    find_failed_machines,
    find_unneeded,
    may_remove,
    plan_drains,
)
from autoscaler.core.scale_up import cancel_drains, cancel_orders, compute_demand, plan_scale_up
from autoscaler.core.state import is_removal
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Step
    from autoscaler.core.rightsizing.containers import LivePod
    from autoscaler.core.rightsizing.trial import TrialState
    from autoscaler.core.scale_up import Demand
    from autoscaler.core.state import AutoscalerState


def decide(observation: Observation, limits: ScalingLimits, state: AutoscalerState) -> tuple[Plan, AutoscalerState]:
    """The plan, and the state before any of its steps is done (`AutoscalerState.record` adds those that were)."""
    at, removals_left = observation.at, count_removals_left(state.removals, limits, observation.at)
    failed = list(find_failed_machines(observation.machines, limits, at, observation.with_node))
    demand = compute_demand(observation, limits, state.pools_in_backoff(at) | {step.pool for step in failed})
    failed = [step for step in failed if may_remove(step, observation.pools.get(step.pool))]
    cost = DisruptionCost.of(observation, limits)
    inputs = RebalanceInputs(observation, state.budget(observation, limits, cost.replicas), cost)
    # before any purchase: a move may make it unnecessary
    room_moves, demand = plan_make_room(inputs, demand)
    drain_steps = list(continue_drains(observation, demand.keep, inputs.budget, len(room_moves)))
    steps: list[Step] = [*failed, *cancel_orders(observation, demand, failed), *cancel_drains(demand), *room_moves]
    steps += [*plan_scale_up(observation, demand, limits), *drain_steps]
    steps, held = _drop_removals(steps, removals_left)

    unneeded = {name: state.unneeded.get(name, at) for name in sorted(find_unneeded(observation, limits))}
    state = remember_hot_cards(inputs, replace(state, unneeded=unneeded, demand=demand))
    # a node removed while another is added would be flapping
    is_busy = demand.planned_nodes or demand.keep or demand.nominations or room_moves
    if not is_busy and at - state.last_add >= limits.scale_down_delay_after_add_seconds:
        draining = sum(machine.state is MachineState.DRAINING for machine in observation.machines.values())
        most = removals_left - draining
        drains = plan_drains(observation, limits, unneeded, inputs.budget, cost, most=most)
        steps += drains
        if not drains:
            evicted = sum(isinstance(step, Evict) for step in drain_steps)
            most_moves = min(inputs.budget.free, limits.max_moves_per_cycle - evicted)
            # a removed node saves more than fewer fragments do: the moves are kept for nodes that are nearly due
            patient = all(at - since >= limits.scale_down_unneeded_seconds for since in unneeded.values())
            moves, state = plan_rebalance(inputs, state, most_moves, defragment=patient)
            steps += moves
    resizes, trials = judge(state.trials, observation.live, at, limits)
    steps += resizes
    late = [observation.live[key].uid for key in trials.waiting if observation.live[key].deferred]
    moved = sum(isinstance(step, Evict | Move) for step in steps)
    steps += plan_returns(inputs, late, min(inputs.budget.free, limits.max_moves_per_cycle) - moved)
    # a pod that moves is another one soon
    staying = [pod for pod in observation.live.values() if pod.uid not in observation.reserved]
    moving = {step.pod for step in steps if isinstance(step, Evict | Move)}
    steps += plan_shrinks(trials, [pod for pod in staying if pod.uid not in moving], at, limits)
    capped = [*_explain_caps(demand, held, limits), *_explain_waste(trials, staying, limits)]
    return Plan(at, tuple(steps), tuple(capped), demand.nominations), replace(state, trials=trials)


def _drop_removals(steps: Iterable[Step], left: float) -> tuple[list[Step], int]:
    """The steps without removals beyond those that the hour has `left`, and the number of those dropped."""
    found: list[Step] = []
    held = 0
    for step in steps:
        if is_removal(step):
            held += left < 1
            if left < 1:
                continue
            left -= 1
        found.append(step)
    return found, held


def _explain_caps(demand: Demand, held: int, limits: ScalingLimits) -> Iterable[str]:
    """What fleet-wide limits prevent, for people."""
    if demand.refused_growth:
        yield f"no scale-up for {len(demand.capped)} pending pods: {demand.refused_growth}"
    if held:
        most = limits.max_node_removals_per_hour
        yield f"{held} empty or failed nodes are not removed yet: max_node_removals_per_hour is {most}"


def _explain_waste(trials: TrialState, pods: Iterable[LivePod], limits: ScalingLimits) -> Iterable[str]:
    """What would be made smaller if it was allowed, for people."""
    wasteful = [] if limits.max_resizes_per_hour else list(find_wasteful(trials, pods, limits))
    if wasteful:
        freed = sum(pod.promised_bytes - pod.recommended_bytes for pod in wasteful)
        yield f"{len(wasteful)} running pods could free {show_bytes(freed)} each card: max_resizes_per_hour is 0"
