# SPDX-License-Identifier: Apache-2.0
"""
One turn's decision: first who waits, then what can go; each step with its reason.

Pure: an observation, the limits and what was remembered go in, a plan and what to remember
come out. What moves without a node going back is `rebalance`'s answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.core.fleet_caps import FleetGrowth, count_removals_left
from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.lifecycle import MachineState, overdue
from autoscaler.core.plan import CancelDrain, CancelScaleUp, Drain, Evict, Plan, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.core.rebalance.cost import DisruptionCost
from autoscaler.core.rebalance.inputs import RebalanceInputs
from autoscaler.core.rebalance.moves import plan_make_room, plan_rebalance, remember_hot_cards
from autoscaler.core.scale_down import find_removals, find_unneeded
from autoscaler.core.scale_up import compute_demand, shorten
from autoscaler.core.state import is_removal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.lifecycle import Machine
    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation, Reservation
    from autoscaler.core.plan import Step
    from autoscaler.core.pools import Pool
    from autoscaler.core.scale_down import Removal
    from autoscaler.core.scale_up import Demand
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Pod


def decide(seen: Observation, limits: Limits, memory: AutoscalerState) -> tuple[Plan, AutoscalerState]:
    """What to do now; the memory returned knows nothing yet of what will be done (`Memory.acted`)."""
    left = count_removals_left(memory.removals, limits, seen.at)
    failed = tuple(_discards(seen, limits))
    want = compute_demand(seen, limits, memory.pools_in_backoff(seen.at) | {step.pool for step in failed})
    failed = tuple(step for step in failed if _ours(seen.pools.get(step.pool), step))
    weights = DisruptionCost.of(seen, limits)
    now = RebalanceInputs(seen, memory.budget(seen, limits, weights.replicas), weights)
    rescues, want = plan_make_room(now, want)
    empty = find_unneeded(seen, limits)
    unneeded = {name: memory.unneeded.get(name, seen.at) for name in sorted(empty)}
    moving = tuple(_draining(now, want, len(rescues)))
    back = _taken_back(seen, want, failed)
    steps, held = _capped([*failed, *back, *_keeps(want), *rescues, *_buys(seen, want, limits), *moving], left)
    # a node given back while another is bought would be a flap
    busy = want.planned_nodes or want.keep or want.nominations or rescues
    memory = remember_hot_cards(now, replace(memory, unneeded=unneeded, demand=want))
    if not busy and seen.at - memory.last_add >= limits.scale_down_delay_after_add_seconds:
        going = sum(machine.state is MachineState.DRAINING for machine in seen.machines.values())
        found = find_removals(seen, limits, unneeded, now.budget, weights, most=left - going)
        steps += [_drain(each, seen, unneeded) for each in found]
        gone = sum(isinstance(step, Evict) for step in moving)
        if not found:
            most = min(now.budget.free, limits.max_moves_per_cycle - gone)
            # a node that goes saves more than fewer fragments: the moves are kept for those about to be due
            patient = all(seen.at - since >= limits.scale_down_unneeded_seconds for since in unneeded.values())
            shifts, memory = plan_rebalance(now, memory, most, defragment=patient)
            steps += shifts
    return Plan(seen.at, tuple(steps), tuple(_caps(want, held, limits)), want.nominations), memory


def _capped(steps: Iterable[Step], left: float) -> tuple[list[Step], int]:
    """The steps without removals beyond those that the hour has left, and how many these are."""
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


def _caps(want: Demand, held: int, limits: Limits) -> Iterable[str]:
    """What fleet-wide limits keep from being done, for people."""
    if want.refused_growth:
        yield f"no scale-up for {len(want.capped)} pending pods: {want.refused_growth}"
    if held:
        most = limits.max_node_removals_per_hour
        yield f"{held} empty or failed nodes are not removed yet: max_node_removals_per_hour is {most}"


def _discards(seen: Observation, limits: Limits) -> Iterable[RemoveFailedNode]:
    """Machines that failed, or that took too long to become nodes."""
    for machine in _sorted(seen.machines):
        if machine.state is MachineState.FAILED:
            why = f"pool {machine.pool} failed to provision it"
            yield RemoveFailedNode(machine.name, machine.pool, why, has_node=machine.name in seen.with_node)
        elif overdue(machine, limits, seen.at) is MachineState.FAILED:
            waited = f"{machine.state} for {seen.at - machine.since:.0f} s"
            has_node = machine.name in seen.with_node
            yield RemoveFailedNode(machine.name, machine.pool, f"not ready in time: {waited}", has_node=has_node)


def _ours(pool: Pool | None, step: RemoveFailedNode) -> bool:
    """Whether it is ours to give up: a machine without a node is an order of whoever buys."""
    return pool is None or pool.drains or (pool.buys and not step.has_node)


def _taken_back(seen: Observation, want: Demand, failed: Iterable[RemoveFailedNode]) -> Iterable[CancelScaleUp]:
    """Orders that nobody has carried out and nobody waits for any more; the youngest first."""
    taken = {home.machine for home in want.nominations.values()} | {step.node for step in failed}
    idle = [m for m in seen.coming() if m.state is MachineState.REQUESTED and m.name not in taken]
    spare = seen.spare()
    for pool, count in sorted(seen.ordered.items()):
        most = max(0, min(count, spare.get(pool, 0)))
        for machine in [one for one in reversed(idle) if one.pool == pool][:most]:
            yield CancelScaleUp(machine.name, pool, "the pods that it was ordered for no longer wait")


def _keeps(want: Demand) -> Iterable[CancelDrain]:
    for name, pods in want.keep.items():
        yield CancelDrain(name, f"needed again by {list_names(pods)}")


def _buys(seen: Observation, want: Demand, limits: Limits) -> Iterable[ScaleUp]:
    """What waiting pods need, then what a pool's smallest size asks for."""
    size, growth = seen.sizes(), FleetGrowth.of(seen, limits)
    phantom = {pod.uid for pod in find_fragmented(seen, (pod for lot in want.planned_nodes for pod in lot.pods))}
    for lot in want.planned_nodes:
        size[lot.pool] += 1
        growth.bought(seen.pools[lot.pool])
        why = want.refusals[lot.pods[0].uid]
        serves = tuple(pod.uid for pod in lot.pods)
        places = tuple(each.cards for each in lot.places)
        reason = f"for {list_names(lot.pods)}: {shorten(why)}"
        yield ScaleUp(lot.pool, serves, reason, places, len(phantom.intersection(serves)))
    for name, pool in sorted(seen.pools.items()):
        for _ in range(size[name], pool.min_nodes if pool.buys else 0):
            if growth.refuses(pool):
                break
            growth.bought(pool)
            yield ScaleUp(name, (), f"pool {name} is below its minimum of {pool.min_nodes} nodes")


def _draining(now: RebalanceInputs, want: Demand, rescues: int) -> Iterable[Step]:
    """Nodes on their way out: give back the empty ones, move pods off the others, or call it off."""
    seen = now.seen
    ready: list[Pod] = []
    for machine in _sorted(seen.machines):
        if machine.state is not MachineState.DRAINING or machine.name in want.keep:
            continue
        # pods that are ending still hold their room: the node goes when the last of them has ended
        pods = seen.blocking_removal(machine.name)
        since = seen.at - machine.since
        if machine.name in seen.irremovable:
            yield CancelDrain(machine.name, seen.irremovable[machine.name])
        elif not pods:
            # binds that were under way when it was tainted come to their end first
            if since >= now.limits.node_delete_delay_after_taint_seconds:
                yield RemoveNode(machine.name, f"empty, tainted for {since:.0f} s")
        elif overdue(machine, now.limits, seen.at) is MachineState.READY:
            yield CancelDrain(machine.name, f"drain not finished after {now.limits.drain_timeout_seconds:.0f} s")
        else:
            staying = [pod for pod in pods if not pod.deleting]
            lost = [pod for pod in staying if not _home_stands(seen, seen.reserved.get(pod.uid))]
            if lost:
                yield CancelDrain(machine.name, f"the reserved target of {list_names(lost)} is gone")
            else:
                ready += staying
    ready += _half_moved(seen)
    for pod in now.budget.choose_evictions(ready, now.restless, rescues):
        placed = pod.placement.node if pod.placement is not None else ""
        target = seen.reserved[pod.uid].placement.node
        why = f"{placed} is being drained" if not seen.is_usable(placed) else "a move that was started earlier"
        yield Evict(pod.uid, placed, pod.request.owner, f"to its reserved target on {target}: {why}")


def _half_moved(seen: Observation) -> Iterable[Pod]:
    """Pods with a home reserved on a node that stays: whoever made it ended before the eviction."""
    for uid, home in sorted(seen.reserved.items()):
        pod = seen.pods.get(uid)
        if pod is None or pod.deleting or pod.placement is None or not seen.is_usable(pod.placement.node):
            continue
        if _home_stands(seen, home):
            yield pod


def _home_stands(seen: Observation, home: Reservation | None) -> bool:
    return home is not None and seen.is_usable(home.placement.node)


def _drain(each: Removal, seen: Observation, unneeded: Mapping[str, float]) -> Drain:
    idle = seen.at - unneeded[each.node]
    load = f"utilization {seen.load.get(each.node, 0.0):.0%}, unneeded for {idle:.0f} s"
    homes = sorted({home.placement.node for home in each.reservations})
    pods = "its pod fits" if len(each.reservations) == 1 else f"its {len(each.reservations)} pods fit"
    moves = f"{pods} on {', '.join(homes)}" if homes else "no pods to move"
    return Drain(each.node, each.reservations, f"{load}; {moves}")


def list_names(pods: Iterable[Pod]) -> str:
    """The first few by name, the rest as a number."""
    keys = [pod.key for pod in pods]
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")  # noqa: PLR2004 (a line's worth)


def _sorted(machines: Mapping[str, Machine]) -> list[Machine]:
    return [machines[name] for name in sorted(machines)]
