"""
One turn's decision: first who waits, then what can go; each step with its reason.

Pure: an observation, the limits and what was remembered go in, a plan and what to remember
come out. Rebalancing beyond giving nodes back would be one more source of steps in `decide`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.demand import demand, gist
from autoscaler.drain import leaving, superfluous
from autoscaler.lifecycle import State, overdue
from autoscaler.phantom import phantoms
from autoscaler.plan import Buy, Delete, Discard, Drain, Evict, Keep, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.demand import Demand
    from autoscaler.drain import Leaving
    from autoscaler.lifecycle import Machine
    from autoscaler.limits import Limits
    from autoscaler.memory import Memory
    from autoscaler.observation import Observation, Reservation
    from autoscaler.plan import Step
    from isolation.contract.model import Pod


def decide(seen: Observation, limits: Limits, memory: Memory) -> tuple[Plan, Memory]:
    """What to do now; the memory returned knows nothing yet of what will be done (`Memory.acted`)."""
    failed = tuple(_discards(seen, limits))
    want = demand(seen, limits, memory.shut(seen.at) | {step.pool for step in failed})
    empty = superfluous(seen, limits)
    unneeded = {name: memory.unneeded.get(name, seen.at) for name in sorted(empty)}
    steps: list[Step] = [
        *failed,
        *_keeps(want),
        *_buys(seen, want),
        *_draining(seen, limits, memory, want),
    ]
    # a node given back while another is bought would be a flap
    calm = not (want.lots or want.keep or want.homes) and seen.at - memory.last_add >= limits.after_add_seconds
    if calm:
        found = leaving(seen, limits, unneeded, memory.budget(limits, seen.at))
        steps += [_drain(each, seen, unneeded) for each in found]
    return Plan(seen.at, tuple(steps), want.homes), replace(memory, unneeded=unneeded, demand=want)


def _discards(seen: Observation, limits: Limits) -> Iterable[Discard]:
    """Machines that failed, or that took too long to become nodes."""
    for machine in _sorted(seen.machines):
        if machine.state is State.FAILED:
            yield Discard(machine.name, machine.pool, f"pool {machine.pool} could not deliver it")
        elif overdue(machine, limits, seen.at) is State.FAILED:
            waited = f"{machine.state} for {seen.at - machine.since:.0f} s"
            yield Discard(machine.name, machine.pool, f"{waited}: given up")


def _keeps(want: Demand) -> Iterable[Keep]:
    for name, pods in want.keep.items():
        yield Keep(name, f"needed after all by {named(pods)}")


def _buys(seen: Observation, want: Demand) -> Iterable[Buy]:
    """What waiting pods need, then what a pool's smallest size asks for."""
    size = seen.sizes()
    phantom = {pod.uid for pod in phantoms(seen, (pod for lot in want.lots for pod in lot.serves))}
    for lot in want.lots:
        size[lot.pool] += 1
        why = want.refusals[lot.serves[0].uid]
        serves = tuple(pod.uid for pod in lot.serves)
        places = tuple(each.cards for each in lot.places)
        reason = f"for {named(lot.serves)}: {gist(why)}"
        yield Buy(lot.pool, serves, reason, places, len(phantom.intersection(serves)))
    for name, pool in sorted(seen.pools.items()):
        for _ in range(size[name], pool.smallest):
            yield Buy(name, (), f"pool {name} has fewer than {pool.smallest} nodes")


def _draining(seen: Observation, limits: Limits, memory: Memory, want: Demand) -> Iterable[Step]:
    """Nodes on their way out: give back the empty ones, move pods off the others, or call it off."""
    ready: list[Pod] = []
    for machine in _sorted(seen.machines):
        if machine.state is not State.DRAINING or machine.name in want.keep:
            continue
        pods = seen.on.get(machine.name, {})
        # pods that are ending still hold their room: the node goes when the last of them has ended
        if not pods:
            yield Delete(machine.name, "empty")
        elif overdue(machine, limits, seen.at) is State.READY:
            yield Keep(machine.name, f"not empty after {limits.drain_seconds:.0f} s")
        else:
            staying = [pod for pod in pods.values() if not pod.deleting]
            lost = [pod for pod in staying if not _home_stands(seen, seen.reserved.get(pod.uid))]
            if lost:
                yield Keep(machine.name, f"{named(lost)} lost the home reserved for it")
            else:
                ready += staying
    # an owner whose last moved pod has not arrived yet keeps its other replicas where they are
    restless = {
        home.request.owner for uid, home in seen.reserved.items() if uid not in seen.pods or seen.pods[uid].deleting
    }
    for pod in memory.budget(limits, seen.at).evictions(ready, restless):
        placed = pod.placement.node if pod.placement is not None else ""
        target = seen.reserved[pod.uid].placement.node
        reason = f"to {target}, its home there is reserved: {placed} is being drained"
        yield Evict(pod.uid, placed, pod.request.owner, reason)


def _home_stands(seen: Observation, home: Reservation | None) -> bool:
    return home is not None and seen.usable(home.placement.node)


def _drain(each: Leaving, seen: Observation, unneeded: Mapping[str, float]) -> Drain:
    idle = seen.at - unneeded[each.node]
    load = f"{seen.load.get(each.node, 0.0):.0%} full for {idle:.0f} s"
    homes = sorted({home.placement.node for home in each.homes})
    pods = "its pod fits" if len(each.homes) == 1 else f"its {len(each.homes)} pods fit"
    moves = f"{pods} on {', '.join(homes)}" if homes else "no pod on it"
    return Drain(each.node, each.homes, f"{load}; {moves}")


def named(pods: Iterable[Pod]) -> str:
    """The first few by name, the rest as a number."""
    keys = [pod.key for pod in pods]
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")  # noqa: PLR2004 (a line's worth)


def _sorted(machines: Mapping[str, Machine]) -> list[Machine]:
    return [machines[name] for name in sorted(machines)]
