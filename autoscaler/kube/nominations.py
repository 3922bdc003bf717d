# SPDX-License-Identifier: Apache-2.0
"""
Which stored reservation is whose home, as things stand.

Decides by controller and shape, not by name alone: the successor of an evicted replica takes any home that was kept for
its controller, perhaps the one meant for a sibling that still waits for its own eviction. Such a sibling has the home
that was left over. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from autoscaler.kube.watches import Stored
    from isolation.contract.model import Pod


def used_by(stored: Mapping[str, Stored], pods: Iterable[Pod]) -> frozenset[str]:
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


def homes_of(
    stored: Mapping[str, Stored],
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
