# SPDX-License-Identifier: Apache-2.0
"""
Which nodes can go: only those whose every pod has a home elsewhere, card by card.

Those that free most cards for each pod moved go first. One what-if for the whole round, so that two
drained nodes never count on the same room, and a node that receives pods is not drained in the same
round. Pure. It does not evict: `budget` says how fast a drained node's pods may move.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from autoscaler.core.bin_packing import Shape, get_shape, largest_first
from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.lifecycle import MachineState
from autoscaler.core.observation import Reservation
from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autoscaler.core.disruption_budget import Budget
    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.cost import DisruptionCost
    from isolation.contract.model import Pod, Request
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class Removal:
    """A node that can go, and where its pods go."""

    node: str
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class ReservationTerms:
    """Since when and until when homes are kept, and for whom there must be room besides."""

    at: float
    until: float
    headroom: tuple[Request, ...] = ()


def find_unneeded(seen: Observation, limits: Limits) -> frozenset[str]:
    """Nodes so empty, for some time usable, that they should go, were there room for their pods elsewhere."""
    return frozenset(name for name in _empty_enough(seen, limits) if next(_staying(seen, name), None) is None)


def explain_needed(seen: Observation, limits: Limits) -> dict[str, str]:
    """By node that would be superfluous but for a pod: which pod that is, and why it stays."""
    found = ((name, next(_staying(seen, name), None)) for name in _empty_enough(seen, limits))
    never = "it can only run where it is, or must not be moved"
    return {name: f"pod {pod.key}: {seen.blocked.get(pod.uid, never)}" for name, pod in found if pod is not None}


def _empty_enough(seen: Observation, limits: Limits) -> Iterator[str]:
    spare = seen.spare()
    ours = {name for name, pool in seen.pools.items() if pool.drains}
    return (
        machine.name
        for machine in seen.machines.values()
        if machine.state is MachineState.READY
        and machine.name not in seen.kept
        and machine.pool in ours
        and seen.at - machine.since >= limits.min_node_age_seconds
        and spare.get(machine.pool, 0) > 0
        and seen.load.get(machine.name, 1.0) <= limits.scale_down_utilization_threshold
    )


def _staying(seen: Observation, name: str) -> Iterator[Pod]:
    """Pods that keep a node: they do not go with it, do not end, and may not be moved."""
    return (pod for pod in list_pods_to_move(seen, name) if not pod.evictable or pod.uid in seen.blocked)


def find_removals(
    seen: Observation,
    limits: Limits,
    unneeded: Mapping[str, float],
    budget: Budget,
    weights: DisruptionCost | None = None,
    *,
    most: float = inf,
) -> tuple[Removal, ...]:
    """Nodes to drain now, `most` at most; `unneeded` says since when each was; without weights, all are worth it."""
    due = [name for name, since in unneeded.items() if seen.at - since >= limits.scale_down_unneeded_seconds]
    due.sort(key=lambda name: _effort(seen, name))
    spare = seen.spare()
    # homes of drains still under way count as well: their pods have not moved in yet
    receives = {home.placement.node for home in seen.reserved.values()}
    found: list[Removal] = []
    trial: Engine | None = None
    moves, tried = budget.free, 0
    most = min(most, limits.max_scale_down_parallelism)
    guests = list_recent_requests(seen, limits) if due else ()
    for name in due:
        pool = seen.machines[name].pool
        pods = list_pods_to_move(seen, name)
        if len(found) >= most or tried == limits.scale_down_non_empty_candidates_count:
            break
        if spare[pool] < 1 or name in receives or len(pods) > moves or any(budget.is_protected(pod) for pod in pods):
            continue
        if any(pod.uid in seen.reserved for pod in pods):
            continue  # a move that was begun comes to its end first
        if pods and weights and not weights.is_worth(weights.price_ratio(seen.pools[pool].price), pods):
            continue
        tried += 1
        trial = trial or seen.engine.fork()
        until = seen.at + limits.drain_timeout_seconds
        homes = empty_node(trial, name, pods, seen.on.get(name, {}), ReservationTerms(seen.at, until, guests))
        if homes is None:
            continue
        receives.update(home.placement.node for home in homes)
        spare[pool] -= 1
        moves -= len(homes)
        found.append(Removal(name, homes))
    return tuple(found)


def list_recent_requests(seen: Observation, limits: Limits) -> tuple[Request, ...]:
    """Whoever came while a node waits to go, and one of each kind that came a while before: they may come again."""
    young = [
        pod
        for pod in seen.pods.values()
        if seen.at - pod.created < limits.min_node_age_seconds and not belongs_to_node(pod)
    ]
    young.sort(key=lambda pod: (-pod.created, pod.uid))
    latest = [pod.request for pod in young if seen.at - pod.created < limits.scale_down_unneeded_seconds]
    latest = latest[: limits.scale_down_headroom_pod_shapes]
    kinds: dict[Shape, Request] = {get_shape(request): request for request in latest}
    older = [pod.request for pod in young if kinds.setdefault(get_shape(pod.request), pod.request) is pod.request]
    others = [request for request in older if request not in latest][: limits.scale_down_headroom_pod_shapes]
    return tuple(sorted((*latest, *others), key=largest_first))


def list_pods_to_move(seen: Observation, name: str) -> list[Pod]:
    """The pods that must find a home before the node can go."""
    return [pod for pod in seen.on.get(name, {}).values() if not pod.deleting and not belongs_to_node(pod)]


def _effort(seen: Observation, name: str) -> tuple[float, float, str]:
    """Pods moved for each card freed; a node without cards counts as one."""
    node = seen.engine.nodes.get(name)
    cards = len(node.cards) if node is not None else 0
    return (len(list_pods_to_move(seen, name)) / max(1, cards), seen.load.get(name, 0.0), name)


def empty_node(
    trial: Engine, name: str, pods: Iterable[Pod], here: Iterable[str], terms: ReservationTerms
) -> tuple[Reservation, ...] | None:
    """
    A home for each of these pods on what the other nodes have left, or None; `here` is who holds room on the node.

    And still room for whoever may come: a node given back today and bought again at once would be a flap.

    Changes the trial only where there is one: the node is gone from it, and the homes are held.
    """
    node = trial.nodes[name]
    held = [(uid, *trial.holds[uid]) for uid in here if uid in trial.holds]
    trial.drop_node(name)
    homes = _homes(trial, pods, terms)
    if homes is not None and _roomy(trial, terms.headroom):
        return homes
    for home in homes or ():
        trial.release(home.hold)
    trial.put_node(node)
    for uid, request, placement in held:
        trial.hold(uid, request, placement, force=True)
    return None


def _homes(trial: Engine, pods: Iterable[Pod], terms: ReservationTerms) -> tuple[Reservation, ...] | None:
    homes: list[Reservation] = []
    for pod in sorted(pods, key=lambda pod: (largest_first(pod.request), pod.uid)):
        answer = trial.place(pod.request)
        if isinstance(answer, Refusal):
            for home in homes:
                trial.release(home.hold)
            return None
        home = Reservation(pod.uid, pod.request, answer, terms.at, terms.until)
        trial.hold(home.hold, pod.request, answer)
        homes.append(home)
    return tuple(homes)


def _roomy(trial: Engine, guests: Sequence[Request]) -> bool:
    """Whether these would all fit beside what is held; nothing stays held."""
    taken: list[str] = []
    for number, request in enumerate(guests):
        answer = trial.place(request)
        if isinstance(answer, Refusal):
            break
        taken.append(f"guest/{number}")
        trial.hold(taken[-1], request, answer)
    for hold in taken:
        trial.release(hold)
    return len(taken) == len(guests)
