# SPDX-License-Identifier: Apache-2.0
"""
Where pods go next: reservations kept for pods that move, and nominations of waiting pods for machines to come.

Decides which of both still hold, and for whom machines came in vain. Which pod a reservation belongs to is decided by
controller and shape, not by name alone: the successor of an evicted replica takes any that was kept for its controller,
perhaps the one meant for a sibling that still waits for its own eviction. The sibling gets the one that is left. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import STANDING, MachineState
from autoscaler.core.observation import Nomination, SuccessorReservation
from isolation.contract.model import Request
from isolation.placement.engine import PlacementError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.kube.observe.machines import ObservedMachines
    from autoscaler.kube.state import ControllerState
    from autoscaler.kube.watches import StoredReservation
    from isolation.contract.model import Placement, Pod
    from isolation.contract.reservation import Reservation as Made
    from isolation.placement.engine import Engine

HOME_SECONDS: Final = 60.0
"""A pod that is not where it was expected so long after its machine became usable is considered again."""
IN_VAIN: Final = 2
"""So many machines may come for a pod in vain before it is left alone for a while."""


def used_by(stored: Mapping[str, StoredReservation], pods: Iterable[Pod]) -> frozenset[str]:
    """
    Names of reservations that bound pods have used up.

    A pod's own word counts only for what was made for it: no tenant uses up another's home by naming it.
    """
    found = set()
    for pod in pods:
        one = stored.get(pod.reservation) if pod.reservation else None
        if one is not None and one.made.namespace in {"", pod.namespace} and one.made.serves(pod):
            found.add(pod.reservation)
    return frozenset(found)


def find_gang_nodes(stored: Mapping[str, StoredReservation], used: Collection[str], at: float) -> frozenset[str]:
    """Nodes whose cards are reserved for a job that is about to start: it would be stopped if one of them went."""
    return frozenset(
        one.made.placement.node
        for name, one in stored.items()
        if one.made.provisioning_request and one.made.expires > at and name not in used
    )


def match_reservations(
    stored: Mapping[str, StoredReservation],
    pods: Mapping[str, Pod],
    draining: Collection[str],
    now: float,
    used: Collection[str] | None = None,
) -> dict[str, str]:
    """
    By UID of the pod that moves, also of one that is gone already: the name of the reservation kept for it.

    `used`: the names that are used up, where the caller knows them already.
    """
    used = used_by(stored, pods.values()) if used is None else used
    free = {name: one for name, one in sorted(stored.items()) if name not in used and one.made.expires > now}
    found: dict[str, str] = {}
    for name, one in free.items():
        if one.moved:
            found.setdefault(one.moved, name)
    orphans = {uid: name for uid, name in found.items() if uid not in pods}
    if not orphans:
        return found
    waiting = Counter(pod.owner_uid for pod in pods.values() if pod.placement is None and not pod.deleting)
    spare = Counter(free[name].made.holder for name in orphans.values())
    spare.subtract({holder: waiting[holder] for holder in spare})
    for pod in sorted(pods.values(), key=lambda pod: pod.uid):
        robbed = pod.placement is not None and pod.placement.node in draining and pod.uid not in found
        if not robbed or pod.deleting or spare[pod.owner_uid] < 1:
            continue
        left = next((uid for uid, name in orphans.items() if free[name].made.serves(pod)), None)
        if left is not None:
            found[pod.uid] = found.pop(left)
            del orphans[left]
            spare[pod.owner_uid] -= 1
    return found


def find_reserved(
    stored: Mapping[str, StoredReservation],
    used: Collection[str],
    pods: Mapping[str, Pod],
    engine: Engine,
    *,
    draining: Collection[str],
    at: float,
) -> tuple[dict[str, SuccessorReservation], dict[str, str], tuple[str, ...]]:
    """Homes by the pod that moves, their names, and the names of those that nobody needs; all that stand are held."""
    found: dict[str, SuccessorReservation] = {}
    names = match_reservations(stored, pods, draining, at, used)
    by_owner = _by_owner(stored, pods)
    whose = {name: uid for uid, name in names.items()}
    over: list[str] = []
    for name, one in sorted(stored.items()):
        made, uid = one.made, whose.get(name, one.moved)
        if name in used or made.expires <= at:
            over += [name] if one.moved else []
            continue
        request = _request_of(made, pods.get(uid), by_owner.get(made.holder, ()))
        if not _held(engine, f"reserved/{uid}" if name in whose else f"reservation/{name}", request, made.placement):
            # somebody was bound there before the scheduler saw it: it is no home
            over += [name] if one.moved else []
        elif name in whose:
            found[uid] = SuccessorReservation(uid, request, made.placement, one.at, made.expires)
    return found, names, tuple(over)


def _held(engine: Engine, hold: str, request: Request, placement: Placement) -> bool:
    """Take the room of a reservation; False where it is not there."""
    if placement.node not in engine.nodes:
        return True  # a node that nobody may use now: nothing to take
    try:
        engine.hold(hold, request, placement)
    except PlacementError:
        return False
    return True


def _by_owner(stored: Mapping[str, StoredReservation], pods: Mapping[str, Pod]) -> dict[str, list[Pod]]:
    """Pods of the controllers for which something is reserved, by UID of the controller."""
    found: dict[str, list[Pod]] = {one.made.holder: [] for one in stored.values()}
    for pod in pods.values() if found else ():
        if pod.owner_uid in found:
            found[pod.owner_uid].append(pod)
    return found


def _request_of(made: Made, moving: Pod | None, siblings: Iterable[Pod]) -> Request:
    """What the pod that moves asks for; of one that is gone, what its siblings ask; else what was reserved."""
    if moving is not None:
        return moving.request
    sibling = min((pod for pod in siblings if made.serves(pod)), key=lambda pod: pod.uid, default=None)
    if sibling is not None:
        return sibling.request
    parts = made.placement.slices
    each, core = max((s.bytes for s in parts), default=0), max((s.core for s in parts), default=0)
    return Request(cards=len(parts), card_bytes=each, card_core=core)


def find_nominated(
    fleet: ObservedMachines, state: ControllerState, pods: Mapping[str, Pod], at: float
) -> tuple[dict[str, Nomination], dict[str, tuple[int, float]]]:
    """Who waits for which machine, under the names that machines have now; and for whom machines came in vain."""
    found: dict[str, Nomination] = {}
    missed = {uid: seen for uid, seen in state.missed.items() if uid in pods and pods[uid].placement is None}
    for uid, home in state.homes.items():
        name = fleet.renamed.get(home.machine, home.machine)
        machine, pod = fleet.machines.get(name), pods.get(uid)
        if machine is None or pod is None or pod.placement is not None or machine.state not in STANDING:
            continue
        if machine.state is MachineState.READY and at - machine.since > HOME_SECONDS:
            missed[uid] = missed.get(uid, (0, 0.0))[0] + 1, at
            continue
        found[uid] = home if name == home.machine else Nomination(name, home.cards)
    return found, missed


def find_in_vain(missed: Mapping[str, tuple[int, float]], limits: ScalingLimits, now: float) -> dict[str, str]:
    """Pods for which nothing more is bought for a while: what came did not help, and more of it would not."""
    text = "{} nodes were added for it and it still does not schedule: it has a constraint unknown to the autoscaler"
    return {
        uid: text.format(count)
        for uid, (count, at) in missed.items()
        if count >= IN_VAIN and now - at < limits.max_pool_backoff_seconds
    }
