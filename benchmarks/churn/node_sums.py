# SPDX-License-Identifier: Apache-2.0
"""
An autoscaler that adds up nodes: the rules of the cluster-autoscaler, as a decider behind the same loop.

For comparison only. A pod that fits the sum of some node's free resources is taken for placeable and
ignored; the rest is packed first-fit-decreasing on sums. A node at most half full whose pods fit elsewhere by
sums is emptied after ten minutes; nothing is reserved for them. Pure.

Source: Kubernetes autoscaler, cluster-autoscaler FAQ ("How does scale-up work?", "How does scale-down
work?") and its flags' defaults: --scale-down-utilization-threshold 0.5, --scale-down-unneeded-time and
--scale-down-delay-after-add 10m, --max-scale-down-parallelism 10, --max-drain-parallelism 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import MachineState
from autoscaler.core.plan import Drain, Evict, Plan, RemoveNode, ScaleUp
from autoscaler.core.templates import get_templates
from isolation.contract.model import FULL_CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Step
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Node, Pod, Request

LOW_LOAD: Final = 0.5
UNNEEDED_SECONDS: Final = 600.0
AFTER_ADD_SECONDS: Final = 600.0
EMPTY_AT_ONCE: Final = 10
DRAINED_AT_ONCE: Final = 1


class Sums:
    """What one node has left when its cards are added up."""

    def __init__(self, node: Node, pool: str, held: Iterable[Pod] = ()) -> None:
        self.pool = pool
        self._free = [
            sum(card.allocatable_bytes for card in node.cards if card.healthy),
            FULL_CORE * sum(card.healthy for card in node.cards),
            node.cpu_milli,
            node.memory_bytes,
            node.pods,
        ]
        for pod in held:
            self._free = [free - part for free, part in zip(self._free, _parts(pod.request), strict=True)]

    def take(self, request: Request) -> bool:
        """Take the pod in, if the sums allow."""
        left = [free - part for free, part in zip(self._free, _parts(request), strict=True)]
        if min(left) < 0:
            return False
        self._free = left
        return True


def _parts(request: Request) -> tuple[int, int, int, int, int]:
    core = request.card_core
    return (request.cards * request.card_bytes, request.cards * core, request.cpu_milli, request.memory_bytes, 1)


@dataclass(frozen=True, slots=True)
class SumPlan(Plan):
    """A plan that reserves nothing: its steps need a node as it was, and no homes."""

    def still_valid(self, fresh: Observation) -> SumPlan:
        """The steps that hold on a later observation."""
        waiting = {pod.uid for pod in fresh.pending}
        return replace(self, at=fresh.at, steps=tuple(step for step in self.steps if _holds(step, fresh, waiting)))


def _holds(step: Step, fresh: Observation, waiting: set[str]) -> bool:
    if isinstance(step, ScaleUp):
        return not waiting.isdisjoint(step.pods)
    machine = fresh.machines.get(step.node)
    here = fresh.on.get(step.node, {})
    if machine is None:
        return False
    if isinstance(step, Drain):
        return machine.state is MachineState.READY
    if isinstance(step, Evict):
        return step.pod in here and not here[step.pod].deleting
    return machine.state is MachineState.DRAINING and not here


def decide_by_sums(seen: Observation, limits: ScalingLimits, memory: AutoscalerState) -> tuple[Plan, AutoscalerState]:  # noqa: ARG001 (a decider's signature; the rules bring their own limits)
    """What an autoscaler that adds up nodes would do now."""
    rooms = {
        name: Sums(seen.engine.nodes[name], seen.machines[name].pool, pods.values())
        for name, pods in sorted(seen.on.items())
        if seen.is_usable(name)
    }
    steps: list[Step] = list(_buys(seen, dict(rooms)))
    unneeded = {name: memory.unneeded.get(name, seen.at) for name in rooms if _superfluous(seen, name)}
    steps += _emptying(seen)
    if not steps and seen.at - memory.last_add >= AFTER_ADD_SECONDS:
        steps += _drains(seen, unneeded)
    return SumPlan(seen.at, tuple(steps)), replace(memory, unneeded=unneeded)


def _buys(seen: Observation, rooms: dict[str, Sums]) -> Iterable[ScaleUp]:
    """Nodes for whoever fits no sum, neither on what stands nor on what is coming."""
    for machine in seen.coming():
        rooms[machine.name] = Sums(seen.pools[machine.pool].template, machine.pool)
    templates = get_templates(tuple(seen.pools.values()))
    rest = [pod for pod in seen.pending if not _take(rooms.values(), pod.request, templates.hosts)]
    rest.sort(key=lambda pod: (-pod.request.cpu_milli, -pod.request.memory_bytes, pod.uid))
    size = seen.sizes()
    opened: list[tuple[Sums, list[str]]] = []
    for pod in rest:
        bin_ = next((each for each in opened if _take((each[0],), pod.request, templates.hosts)), None)
        if bin_ is None:
            fitting = (
                (pool.price, name)
                for name, pool in seen.pools.items()
                if size[name] < pool.max_nodes and templates.hosts(name, pod.request)
            )
            cheapest = min(fitting, default=None)
            if cheapest is None:
                continue
            name = cheapest[1]
            size[name] += 1
            bin_ = (Sums(seen.pools[name].template, name), [])
            bin_[0].take(pod.request)
            opened.append(bin_)
        bin_[1].append(pod.uid)
    for room, served in opened:
        yield ScaleUp(room.pool, tuple(served), f"for {len(served)} pods that fit no node by sum")


def _take(rooms: Iterable[Sums], request: Request, hosts: Callable[[str, Request], bool]) -> bool:
    return any(hosts(room.pool, request) and room.take(request) for room in rooms)


def _superfluous(seen: Observation, name: str) -> bool:
    pods = seen.on[name].values()
    return seen.load[name] <= LOW_LOAD and all(pod.evictable or pod.deleting for pod in pods)


def _emptying(seen: Observation) -> Iterable[Step]:
    """Nodes on their way out: all their pods are evicted at once."""
    for name, machine in sorted(seen.machines.items()):
        if machine.state is MachineState.DRAINING:
            pods = [pod for pod in seen.on[name].values() if not pod.deleting]
            yield from (Evict(pod.uid, name, pod.request.owner, f"{name} is being drained") for pod in pods)
            if not seen.on[name]:
                yield RemoveNode(name, "empty")


def _drains(seen: Observation, unneeded: dict[str, float]) -> Iterable[Drain]:
    due = [name for name, since in unneeded.items() if seen.at - since >= UNNEEDED_SECONDS]
    empty = [name for name in due if not seen.on[name]][:EMPTY_AT_ONCE]
    if empty:
        yield from (Drain(name, (), "empty") for name in empty)
        return
    hosts = get_templates(tuple(seen.pools.values())).hosts
    drained = 0
    for name in sorted(due, key=lambda name: (seen.load[name], name)):
        others = [
            Sums(seen.engine.nodes[other], seen.machines[other].pool, seen.on[other].values())
            for other in seen.on
            if other != name and seen.is_usable(other)
        ]
        if drained < DRAINED_AT_ONCE and all(_take(others, pod.request, hosts) for pod in seen.on[name].values()):
            drained += 1
            yield Drain(name, (), f"{seen.load[name]:.0%} full; its pods fit on other nodes by sum")
