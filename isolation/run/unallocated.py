# SPDX-License-Identifier: Apache-2.0
"""
Which processes use a card without an allocation: started outside `gpushare run`, or beyond the library's reach.

Only reported, never acted upon: next to such a process a promise may not be kept, and the person should know it before
the command fails.
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
    from isolation.run.store import StoredAllocation


def find_warnings(
    slices: Iterable[Slice], cards: Mapping[str, Card], held: Sequence[StoredAllocation], machine: Machine
) -> tuple[str, ...]:
    """One sentence for each of our cards on which unallocated processes use memory that is promised."""
    found = []
    known = list_pids(held)
    for part in slices:
        card = cards[part.uuid]
        memory = machine.memory(part.uuid)
        listed = memory.users if memory is not None else {}
        users = {pid: used for pid, used in listed.items() if pid not in known and not _has_promise(pid)}
        promised = sum(other.bytes for stored in held for other in stored.entry.slices if other.uuid == part.uuid)
        used = sum(used for used in users.values() if used is not None)
        unknown = None in users.values()
        if unknown or promised + part.bytes + used > card.allocatable_bytes:
            much = f"{show_bytes(used)} or more" if unknown else show_bytes(used)
            who = ", ".join(f"pid {pid}" for pid in sorted(users)[:3]) + (" and others" if len(users) > 3 else "")  # noqa: PLR2004
            found.append(
                f"card {card.index}: {much} in use outside gpushare ({who}):"
                f" the promised {show_bytes(part.bytes)} may not be fully available"
            )
    return tuple(found)


def list_pids(held: Iterable[StoredAllocation]) -> frozenset[int]:
    """Processes that are known to belong to an allocation."""
    found: set[int] = set()
    for stored in held:
        found.update(member.pid for member in liveness.members(stored.folder))
        if stored.entry.cgroup:
            found.update(cgroup.pids(Path(stored.entry.cgroup)))
    return frozenset(found)


def _has_promise(pid: int) -> bool:
    """Whether it was started under a promise."""
    return bool(process.environment(pid, liveness.MARK))
