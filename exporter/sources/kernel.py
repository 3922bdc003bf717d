# SPDX-License-Identifier: Apache-2.0
"""
To which pod, container or allocation of `gpushare run` a process belongs, as the kernel tells.

Reads /proc (`--proc`) and the control groups (`--cgroup`), nothing that a tenant writes. A process is known by its pid
and start time, so a reused pid is a new process. What is known of a process is not read again, except its start time
and name, in one read. `host_pids` says whether the driver's pids mean the same here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exporter.pipeline import cgroup_paths
from exporter.pipeline.snapshot import KernelSample, ProcessSample
from exporter.sources.errors import SourceError
from exporter.sources.lineage import Lineage
from exporter.sources.live_pods import HIERARCHIES, LivePods, made_by_root
from isolation.host import process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from exporter.pipeline.cgroup_paths import CgroupPlace
    from exporter.pipeline.snapshot import HoldSample


ENDED_SECONDS: Final = 5.0
"""A process that has ended is reported this long: samples of what it computed come late."""


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """A process that was read before."""

    facts: ProcessSample
    place: CgroupPlace
    groups: str
    """Its control groups, as text."""


class KernelSource:
    """See the module. Not for several threads at once."""

    def __init__(self, proc: Path, cgroup: Path) -> None:
        self._proc, self._cgroup = str(proc), str(cgroup)
        self._live = LivePods(self._cgroup)
        self._known: dict[int, _KnownProcess] = {}
        self._ended: dict[int, tuple[ProcessSample, float]] = {}
        """By pid, with the time until which they are reported."""
        self._own = ("", cgroup_paths.NOWHERE)
        """Where our own pods begin, and our own place."""
        self._trusted: dict[str, bool] = {}

    def read(self, now: float, pids: Collection[int], holds: Iterable[HoldSample] = ()) -> KernelSample:
        """Facts about those of `pids` that live; `holds` as the promises tell them. `now`: monotonic seconds."""
        self._check()
        self._trusted.clear()
        host = process.sees_host(self._proc)
        lineage = Lineage(holds, self._proc, self._cgroup)
        known: dict[int, _KnownProcess] = {}
        for pid in pids:
            one = self._look(pid, lineage)
            if one is not None:
                known[pid] = one
        self._end(known, now)
        self._known = known
        present = {pid: one.facts for pid, one in known.items()}
        ended = {pid: facts for pid, (facts, _) in self._ended.items()}
        return KernelSample(present, host, self._live.read(now), ended)

    def _end(self, present: Collection[int], now: float) -> None:
        """Remember who is gone, for a while."""
        gone = {pid: (one.facts, now + ENDED_SECONDS) for pid, one in self._known.items()}
        kept = {pid: one for pid, one in self._ended.items() if now < one[1]}
        self._ended = {pid: one for pid, one in (kept | gone).items() if pid not in present}

    def _check(self) -> None:
        """That /proc can be read, and with it who we are."""
        try:
            own = process.read_cgroups("self", self._proc)
            first = process.read_living(1, self._proc)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise SourceError(
                f"cannot read {self._proc} ({why}): mount the host's /proc and set --proc to it"
            ) from None
        if first is None:
            raise SourceError(
                f"{self._proc} hides other users' processes (hidepid): run as root, or mount it with hidepid=0"
            )
        below = cgroup_paths.nest(own)
        self._own = (below, cgroup_paths.place(own, below))

    def _look(self, pid: int, lineage: Lineage) -> _KnownProcess | None:
        try:
            stat = process.read_living(pid, self._proc)
            if stat is None or pid <= 0:
                return None
            one = self._known.get(pid)
            if one is None or one.facts.start_ticks != stat.start:
                one = self._read(pid, stat, "")
            elif one.facts.name != stat.name:  # it became another program
                one = self._read(pid, stat, one.facts.hold)
        except (OSError, ValueError):
            return None  # it ended while we read
        hold = one.facts.hold
        if not lineage.knows(hold):
            hold = self._hold(pid, stat, one, lineage) if lineage else ""
        return one if hold == one.facts.hold else replace(one, facts=replace(one.facts, hold=hold))

    def _read(self, pid: int, stat: process.ProcessStat, hold: str) -> _KnownProcess:
        groups = process.read_cgroups(process.living_thread(pid, self._proc) if stat.headless else pid, self._proc)
        status = process.read_status(pid, self._proc)
        place = self._place(groups)
        parent = process.read_living(stat.parent, self._proc) if stat.parent > 0 else None
        facts = ProcessSample(
            pid,
            stat.start,
            status.uid,
            stat.name,
            place.pod_uid,
            place.container_id,
            hold,
            parent_name=parent.name if parent else "",
            namespace_pid=status.namespace_pid,
        )
        return _KnownProcess(facts, place, groups)

    def _place(self, groups: str) -> CgroupPlace:
        """Nowhere, if somebody other than root could have given the group its name. Where we are ourselves is fine."""
        below, own = self._own
        place = cgroup_paths.place(groups, below)
        if own.pod_uid and place.within == own.within:
            return place
        if place.within and place.within not in self._trusted:
            group = f"{below}/{place.within}"
            mounts = (self._cgroup, *(f"{self._cgroup}/{name}" for name in HIERARCHIES))
            found = next((mount for mount in mounts if Path(mount + group).is_dir()), "")
            self._trusted[place.within] = bool(found) and made_by_root(found + group)
        return place if self._trusted.get(place.within, True) else cgroup_paths.NOWHERE

    def _hold(self, pid: int, stat: process.ProcessStat, one: _KnownProcess, lineage: Lineage) -> str:
        """A pod's process lives on the pod's promise, unless the pod is the one that we are in ourselves."""
        ours = one.place == self._own[1]
        if one.place.pod_uid and not ours:
            return ""
        contained = bool(one.place.container_id) and not ours
        # in a PID namespace of its own, or where that is unknown, a mark may be a container's
        marked = not contained and one.facts.namespace_pid == pid
        try:
            return lineage.hold_of(pid, stat, one.groups, marked=marked)
        except (OSError, ValueError):
            return ""
