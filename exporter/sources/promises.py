# SPDX-License-Identifier: Apache-2.0
"""
Every promise that somebody wrote down on this machine, with what its tenant's library says.

Two writers, one format (`isolation.contract.host_allocation`):

    <book>/<promise id>/                     by `gpushare run`; promises of one boot
        promise.json  limits  feed  region      region: the command's to write
        members                              "<pid> <start time>" per line, by its keeper
    <run-dir>/alloc/<pod UID>.<container>/   by the node agent, with the container's names in `pod`
        promise.json                            comes last: a folder without it is no promise yet
        limits/limits  limits/feed           read-only in the container
        region/region                        the container's to write, as is the folder

That `<run-dir>/alloc` is there says only that an agent of ours is or was on this node.

An allocation counts while it lives (`isolation.host.liveness`); a pod's, while the agent keeps it. In a store that
several users share, an entry is believed only if its file belongs to the user it names, and of two entries with one id
only the older file: no user speaks for another. Limits are compared with the allocation; regions are their tenants'
word (`regions`). Which allocations there are on a card is decided elsewhere.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from exporter.pipeline.snapshot import HoldSample, PromiseSample
from exporter.sources.errors import SourceError
from exporter.sources.regions import RegionReader
from isolation.contract import abi
from isolation.contract.host_allocation import MAX_CHARS, HostAllocationError, load, store_beside
from isolation.host import liveness, process
from isolation.host.core.compute_rates import card_limit
from isolation.host.files import read_whole
from isolation.host.liveness import Liveness

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from exporter.pipeline.snapshot import RegionSample
    from isolation.contract.host_allocation import HostAllocation, Process

_log: Final = logging.getLogger(__name__)
COMMON_STORE: Final = Path("/run/gpushare/allocations")
USER_STORE: Final = Path("/var/tmp/gpushare-allocations")  # noqa: S108 (sticky; entries are checked one by one)
MAX_HOLDS: Final = 1024
"""In one book: more than any machine has room for; what is beyond is counted and not read."""
MAX_SLICES: Final = 128
MAX_PARTS: Final = 4096
"""Parts of cards, of all holds together: 16 cards of 141 GiB have 2256. What is beyond is counted and not shown."""
MAX_TEXT: Final = 253
MARKS_SECONDS: Final = 10.0
"""How often every process's environment is read, where nothing else is left of an allocation: it is slow."""
SETTLED_NS: Final = 100_000_000
"""Times of files are as coarse as the kernel's clock: a younger one may be written again under the same time."""
ROOT_UID: Final = 0
LIMITS_TRIES: Final = 3
LIMITS_PAUSE_SECONDS: Final = 0.001
"""A rewrite takes microseconds."""
_PROMISE_CHARS: Final = 63

Stamp = tuple[int, int, int, int]


def default_stores(simgpu: Path | None = None, book: Path | None = None) -> tuple[Path, ...]:
    """The allocation stores of this machine, or of a simulated one; `book` instead of them, where one was chosen."""
    if book is not None:
        return (book,)
    return (store_beside(simgpu),) if simgpu is not None else (COMMON_STORE, USER_STORE)


@dataclass(slots=True)
class _AllocationFolder:
    """One folder as it was read last; every part is read again when its file has another stamp."""

    folder: str
    tenant: bool
    stamp: Stamp | None = None
    hold: HostAllocation | None = None
    members_stamp: Stamp | None = None
    members: tuple[Process, ...] = ()
    limits_stamp: Stamp | None = None
    limits_error: str = ""
    limits_generation: int | None = None

    @property
    def region(self) -> str:
        """Where the library's own ledger is."""
        return f"{self.folder}/region/region" if self.tenant else f"{self.folder}/region"

    @property
    def limits(self) -> str:
        """Where the library reads what it may."""
        return f"{self.folder}/limits/limits" if self.tenant else f"{self.folder}/limits"

    @property
    def enforced(self) -> bool:
        """Whether there is a library that reads limits."""
        return self.hold is not None and self.hold.enforced


class PromiseSource:
    """See the module. Not for several threads at once."""

    def __init__(self, stores: Sequence[Path], run_dir: Path, proc: Path, cgroup: Path) -> None:
        """`stores`: missing ones count as empty."""
        self._stores, self._alloc, self._proc = tuple(map(str, stores)), f"{run_dir}/alloc", str(proc)
        self._liveness = Liveness(str(proc), cgroup, MARKS_SECONDS)
        self._regions = RegionReader()
        self._entries: dict[str, _AllocationFolder] = {}
        self._skipped = 0
        self._unreadable = 0

    def read(self, now: float) -> PromiseSample:
        """Every promise that somebody lives on. `now`: monotonic seconds."""
        boot = self._boot()
        agent = Path(self._alloc).is_dir()
        self._skipped = 0
        self._entries = {entry.folder: entry for entry in self._list_folders() if _refresh(entry)}
        believed = _resolve_duplicates(list(self._entries.values()))
        counting = {ident: entry for ident, entry in believed.items() if self._is_living(entry, boot, now)}
        living = _limit_parts(counting)
        self._skipped += len(counting) - len(living)
        regions = self._regions.read({ident: entry.region for ident, entry in living.items() if entry.enforced})
        holds = tuple(_facts(entry, regions.get(ident)) for ident, entry in living.items())
        order = sorted(holds, key=lambda one: (one.hold.created, one.hold.id))
        return PromiseSample(tuple(order), agent, self._log_unreadable(believed))

    def _log_unreadable(self, believed: Mapping[str, _AllocationFolder]) -> int:
        """How many records are not believed or were not read; logged once, for whoever has to look at them."""
        unread = self._entries.keys() - {entry.folder for entry in believed.values()}
        number = len(unread) + self._skipped
        if number != self._unreadable:
            which = f" (for example {min(unread)!r})" if unread else ""
            message = f"cannot read {number} promises{which}: allocated and free memory is unknown"
            _log.warning("%s", message if number else "all promises are readable again")
        self._unreadable = number
        return number

    def _boot(self) -> str:
        try:
            return process.boot(self._proc)
        except OSError as exc:
            advice = "the promises of this boot are unknown; set --proc to the host's /proc"
            raise SourceError(f"cannot read {self._proc} ({exc.strerror}): {advice}") from None

    def _list_folders(self) -> Iterator[_AllocationFolder]:
        """Every folder of a hold, as it was known before or new."""
        for home in (self._alloc, *self._stores):
            try:
                with os.scandir(home) as entries:
                    names = [
                        entry.path
                        for entry in entries
                        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                    ]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as exc:
                raise SourceError(
                    f"cannot read {home} ({exc.strerror}): run as root, or set another --state-dir"
                ) from None
            self._skipped += max(0, len(names) - MAX_HOLDS)
            for path in sorted(names, key=lambda path: (path not in self._entries, path))[:MAX_HOLDS]:
                yield self._entries.get(path) or _AllocationFolder(path, home == self._alloc)

    def _is_living(self, entry: _AllocationFolder, boot: str, now: float) -> bool:
        """Whether somebody lives on it. Nothing outlives a boot."""
        hold = entry.hold
        if hold is None or hold.boot != boot:
            return False
        if entry.tenant:
            return True
        _refresh_members(entry)
        return self._liveness.lives(hold, entry.folder, entry.region, entry.members, now)


def _stamp(path: str) -> Stamp | None:
    """Another one whenever the file has changed; None where that cannot be told. Nobody can set a ctime."""
    about = os.stat(path, follow_symlinks=False)  # noqa: PTH116 (hundreds of times a reading)
    if time.time_ns() - about.st_ctime_ns < SETTLED_NS:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _refresh(entry: _AllocationFolder) -> bool:
    """Read the hold again if it has changed; False where there is none: not yet, or not any more."""
    path = f"{entry.folder}/promise.json"
    try:
        stamp = _stamp(path)
        if stamp is not None and stamp == entry.stamp:
            return True
        entry.hold, entry.stamp = None, stamp
        raw, about = read_whole(path, MAX_CHARS)
        hold = load(raw.decode("utf-8"))
        if entry.tenant == (hold.tenant is not None) and _may_say(entry, hold, about.st_uid):
            entry.hold = _shorten(hold)
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError, HostAllocationError):
        entry.hold = None
    return True


def _shorten(hold: HostAllocation) -> HostAllocation:
    """Without what nobody here reads, and with nothing that is longer than a name: thousands of them are kept."""
    if len(hold.slices) > MAX_SLICES or len(hold.id) > MAX_TEXT:
        raise HostAllocationError("larger than any promise")
    texts = {name: getattr(hold, name)[:MAX_TEXT] for name in ("name", "policy", "owner")}
    slices = tuple(replace(part, uuid=part.uuid[:MAX_TEXT]) for part in hold.slices)
    return replace(hold, command=(), slices=slices, **texts)


def _facts(entry: _AllocationFolder, region: RegionSample | None) -> HoldSample:
    assert entry.hold is not None  # noqa: S101 (only those that are believed come here)
    if entry.enforced:
        _check_limits(entry)
    pids = tuple(member.pid for member in entry.members)
    return HoldSample(entry.hold, region, pids, entry.limits_error, entry.members, entry.limits_generation)


def _may_say(entry: _AllocationFolder, hold: HostAllocation, writer: int) -> bool:
    """Whether the writer of the file may speak for that hold: the folder's name is the id, the user is himself."""
    if entry.tenant:
        return writer in {ROOT_UID, os.geteuid()}
    return hold.id == entry.folder.rpartition("/")[2] and writer in {ROOT_UID, hold.uid}


def _resolve_duplicates(entries: Sequence[_AllocationFolder]) -> dict[str, _AllocationFolder]:
    """By id; of several with one id the agent's, then the one whose file is the oldest."""
    found: dict[str, _AllocationFolder] = {}
    for entry in sorted(entries, key=lambda one: (not one.tenant, one.stamp[3] if one.stamp else 1 << 63, one.folder)):
        if entry.hold is not None:
            found.setdefault(entry.hold.id, entry)
    return found


def _limit_parts(living: Mapping[str, _AllocationFolder]) -> dict[str, _AllocationFolder]:
    """The oldest, as many as there can be room for: nobody fills the page with promises of cards that nobody has."""
    ends = accumulate(len(entry.hold.slices) if entry.hold else 0 for entry in living.values())
    return {ident: entry for (ident, entry), end in zip(living.items(), ends, strict=True) if end <= MAX_PARTS}


def _refresh_members(entry: _AllocationFolder) -> None:
    """The keeper's list. It replaces the file, so that a list is whole."""
    try:
        stamp = _stamp(f"{entry.folder}/{liveness.MEMBERS}")
        if stamp is not None and stamp == entry.members_stamp:
            return
        entry.members, entry.members_stamp = liveness.members(Path(entry.folder)), stamp
    except OSError:
        entry.members, entry.members_stamp = (), None


def _check_limits(entry: _AllocationFolder) -> None:
    """Whether the limits file says what the hold says; it is read again when it has changed."""
    try:
        stamp = _stamp(entry.limits)
        if entry.hold is None or (stamp is not None and stamp == entry.limits_stamp):
            return
        limits = _read_limits(entry.limits)
        entry.limits_generation, entry.limits_error = limits.generation, _limits_difference(entry.hold, limits)
        entry.limits_stamp = stamp
    except (OSError, abi.AbiError) as exc:
        entry.limits_generation, entry.limits_stamp = None, None
        entry.limits_error = (exc.strerror if isinstance(exc, OSError) else str(exc)) or "read error"


def _read_limits(path: str) -> abi.Limits:
    """The file as a whole; one that is being rewritten is read again. OSError, AbiError."""
    for _ in range(LIMITS_TRIES - 1):
        try:
            return abi.unpack_limits(read_whole(path, abi.LIMITS_BYTES)[0])
        except abi.AbiError:
            time.sleep(LIMITS_PAUSE_SECONDS)
    return abi.unpack_limits(read_whole(path, abi.LIMITS_BYTES)[0])


def _limits_difference(hold: HostAllocation, limits: abi.Limits) -> str:
    """How the limits file differs from the promise; empty: it does not."""
    if limits.promise != hold.id[:_PROMISE_CHARS]:
        return f"the limits file belongs to promise {limits.promise!r}"
    try:
        promised = [card_limit(_uuid(part.uuid), part, hold.compute, 0) for part in hold.slices]
    except ValueError:
        return ""  # a card whose name is no UUID: nothing to compare by
    in_file = [replace(card, context_bytes=0) for card in limits.cards]
    return "" if in_file == promised else "the amounts in the limits file differ from the promise"


def _uuid(card: str) -> UUID:
    return UUID(card.removeprefix("GPU-").removeprefix("MIG-"))
