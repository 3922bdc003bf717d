# SPDX-License-Identifier: Apache-2.0
"""
Who uses a card without a hold: started outside `gpushare run`, or out of its reach.

Only told, never acted upon: a promise beside a stranger may not be kept, and the person should know
before the command fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from isolation.contract.quantity import show_bytes
from isolation.host import cgroup, liveness, process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.model import Card, Slice
    from isolation.host.machine import Machine
    from isolation.run.store import Held


def warnings(
    slices: Iterable[Slice], cards: Mapping[str, Card], held: Sequence[Held], machine: Machine
) -> tuple[str, ...]:
    """One sentence for each card of ours on which strangers hold what has been promised."""
    told = []
    known = pids_of(held)
    for part in slices:
        card = cards[part.uuid]
        memory = machine.memory(part.uuid)
        listed = memory.users if memory is not None else {}
        users = {pid: used for pid, used in listed.items() if pid not in known and not _promised(pid)}
        promised = sum(other.bytes for one in held for other in one.entry.slices if other.uuid == part.uuid)
        used = sum(used for used in users.values() if used is not None)
        untold = None in users.values()
        if untold or promised + part.bytes + used > card.allocatable_bytes:
            much = f"{show_bytes(used)} or more" if untold else show_bytes(used)
            who = ", ".join(f"pid {pid}" for pid in sorted(users)[:3]) + (" and others" if len(users) > 3 else "")  # noqa: PLR2004
            told.append(
                f"card {card.index}: {much} in use outside gpushare ({who}):"
                f" the promised {show_bytes(part.bytes)} may not be fully available"
            )
    return tuple(told)


def pids_of(held: Iterable[Held]) -> frozenset[int]:
    """Processes that are known to live on a hold."""
    found: set[int] = set()
    for one in held:
        found.update(member.pid for member in liveness.members(one.folder))
        if one.entry.cgroup:
            found.update(cgroup.pids(Path(one.entry.cgroup)))
    return frozenset(found)


def _promised(pid: int) -> bool:
    """Whether it was started under a promise."""
    return bool(process.environment(pid, liveness.MARK))
