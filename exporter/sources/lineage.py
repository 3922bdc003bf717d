# SPDX-License-Identifier: Apache-2.0
"""
On which allocation of `gpushare run` a process runs.

In order of trust: the allocation's own control group; its list of members; descent from a member, or from the keeper
that is a member's parent; last the promise id in the environment with which the process was started. None of them lets
a user charge another user's allocation: the control group must belong to the allocation's user, a member must run as
that user, and a mark, which anybody can set, counts only for processes of that user outside containers. A descendant
of a member counts whatever user it runs as.

Where runs are nested the innermost hold counts: the youngest of those that claim the same process.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.host import cgroup, process
from isolation.host.liveness import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from exporter.pipeline.snapshot import HoldSample

KEEPER: Final = "gpushare-keeper"
DEEPEST: Final = 64
ROOT_UID: Final = 0


class Lineage:
    """The holds of one reading, ready to be asked about processes."""

    def __init__(self, holds: Iterable[HoldSample], proc: str, cgroup_root: str) -> None:
        self._proc, self._cgroup = proc, cgroup_root
        self._runs = {one.hold.id: one for one in holds if one.hold.tenant is None}
        self._members: dict[tuple[int, int], list[str]] = defaultdict(list)
        for one in self._runs.values():
            for member in one.members:
                self._members[member.pid, member.start].append(one.hold.id)
        self._uids: dict[int, int] = {}
        self._keepers: dict[int, list[str]] | None = None

    def __bool__(self) -> bool:
        return bool(self._runs)

    def knows(self, hold: str) -> bool:
        """Whether the hold is still there."""
        return hold in self._runs

    def hold_of(self, pid: int, stat: process.ProcessStat, groups: str, *, marked: bool) -> str:
        """The hold's promise id; empty for any other process. `marked`: its environment may be asked."""
        return self._by_group(groups) or self._by_descent(pid, stat) or (self._by_mark(pid) if marked else "")

    def _innermost(self, claims: Iterable[str]) -> str:
        return max(claims, key=lambda ident: (self._runs[ident].hold.created, ident), default="")

    def _by_group(self, groups: str) -> str:
        """Of version 2, by its whole path: a group of the same name elsewhere is somebody's forgery."""
        path = next((line[3:] for line in groups.splitlines() if line.startswith("0::/")), "")
        segments = path.split("/")
        for at in range(len(segments) - 1, 0, -1):
            ident = segments[at].removeprefix(cgroup.PREFIX)
            if segments[at].startswith(cgroup.PREFIX) and ident in self._runs:
                hold = self._runs[ident].hold
                group = "/".join(segments[: at + 1])
                for mount in (self._cgroup, f"{self._cgroup}/unified"):
                    if hold.cgroup == f"{mount}{group}" and _owner(hold.cgroup) == hold.uid:
                        return ident
        return ""

    def _by_descent(self, pid: int, stat: process.ProcessStat) -> str:
        at: process.ProcessStat | None = stat
        for _ in range(DEEPEST):
            if at is None or pid <= 1:
                return ""
            if claims := [one for one in self._members.get((pid, at.start), ()) if self._runs_as(pid, one)]:
                return self._innermost(claims)
            if at.name == KEEPER and (claims := self._keeping(pid)):
                return self._innermost(claims)
            pid, below = at.parent, at
            at = process.read_living(pid, self._proc)
            if at is not None and at.start > below.start:
                return ""  # the parent ended meanwhile and its number belongs to another
        return ""

    def _keeping(self, pid: int) -> list[str]:
        """The holds whose members are children of that keeper: it is written down nowhere else."""
        if self._keepers is None:
            self._keepers = defaultdict(list)
            for one in self._runs.values():
                for member in one.members:
                    stat = process.read_living(member.pid, self._proc)
                    if stat is not None and stat.start == member.start:
                        self._keepers[stat.parent].append(one.hold.id)
        return [one for one in self._keepers.get(pid, ()) if self._runs_as(pid, one)]

    def _by_mark(self, pid: int) -> str:
        ident = process.environment(pid, MARK, self._proc)
        return ident if ident in self._runs and self._uid(pid) == self._runs[ident].hold.uid else ""

    def _runs_as(self, pid: int, ident: str) -> bool:
        """Root's own word is believed about anybody."""
        uid = self._runs[ident].hold.uid
        return uid in {ROOT_UID, self._uid(pid)}

    def _uid(self, pid: int) -> int:
        if pid not in self._uids:
            try:
                self._uids[pid] = process.read_status(pid, self._proc).uid
            except (OSError, ValueError):
                self._uids[pid] = -1
        return self._uids[pid]


def _owner(folder: str) -> int:
    try:
        return Path(folder).stat(follow_symlinks=False).st_uid
    except OSError:
        return -1
