"""
Which nodes can go: only those whose every pod has a home elsewhere, card by card.

One what-if for the whole round, so that two drained nodes never count on the same room, and a
node that receives pods is not drained in the same round. Pure. It does not evict: `budget` says
how fast a drained node's pods may move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.bins import largest_first
from autoscaler.lifecycle import State
from autoscaler.observation import Reservation
from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.budget import Budget
    from autoscaler.limits import Limits
    from autoscaler.observation import Observation
    from isolation.contract.model import Pod
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class Leaving:
    """A node that can go, and where its pods go."""

    node: str
    homes: tuple[Reservation, ...]


def superfluous(seen: Observation, limits: Limits) -> frozenset[str]:
    """Nodes so empty that they should go, were there room for their pods elsewhere."""
    spare = seen.spare()
    return frozenset(
        machine.name
        for machine in seen.machines.values()
        if machine.state is State.READY
        and spare.get(machine.pool, 0) > 0
        and seen.load.get(machine.name, 1.0) <= limits.low_load_ratio
        and all(pod.evictable or pod.deleting for pod in seen.on.get(machine.name, {}).values())
    )


def leaving(seen: Observation, limits: Limits, unneeded: Mapping[str, float], budget: Budget) -> tuple[Leaving, ...]:
    """Nodes to drain now, fewest pods first; `unneeded` says since when each was superfluous."""
    due = [name for name, since in unneeded.items() if seen.at - since >= limits.unneeded_seconds]
    due.sort(key=lambda name: (len(seen.on.get(name, {})), seen.load.get(name, 0.0), name))
    spare = seen.spare()
    # homes of drains still under way count as well: their pods have not moved in yet
    receives = {home.placement.node for home in seen.reserved.values()}
    found: list[Leaving] = []
    trial = seen.engine.fork() if due else seen.engine
    moves = budget.left
    for name in due[: limits.candidates_per_round]:
        pool = seen.machines[name].pool
        pods = [pod for pod in seen.on.get(name, {}).values() if not pod.deleting]
        if len(found) == limits.nodes_per_round:
            break
        if spare[pool] < 1 or name in receives or len(pods) > moves or any(budget.protected(pod) for pod in pods):
            continue
        # an empty node changes nobody's room: no fork, it cannot fail
        after = trial.fork() if pods else trial
        after.drop_node(name)
        homes = _rehome(pods, after, seen.at, seen.at + limits.drain_seconds)
        if homes is None:
            continue
        trial = after
        receives.update(home.placement.node for home in homes)
        spare[pool] -= 1
        moves -= len(homes)
        found.append(Leaving(name, homes))
    return tuple(found)


def _rehome(pods: list[Pod], after: Engine, at: float, until: float) -> tuple[Reservation, ...] | None:
    """A home for each pod on what remains, or None; the engine keeps them."""
    homes: list[Reservation] = []
    for pod in sorted(pods, key=lambda pod: (largest_first(pod.request), pod.uid)):
        answer = after.place(pod.request)
        if isinstance(answer, Refusal):
            return None
        home = Reservation(pod.uid, pod.request, answer, at, until)
        after.hold(home.hold, pod.request, answer)
        homes.append(home)
    return tuple(homes)
