# SPDX-License-Identifier: Apache-2.0
"""
The files of one container: made, checked, kept over restarts, removed.

    <run-dir>/alloc/<pod UID>.<container>/
        library               checksum of the library that it was given
        mps                   the MPS server that it was given
        limits/limits  limits/feed
        region/region         the container's to write
        promise.json          last of all: from here on the exporter counts it

A restarted container finds the region of its pod as it left it: what a process of it that would not die still
has stays booked, the library clears the others away. Anything else in that place is made anew. Does not
decide who may start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, HostAllocationError, Tenant, dump, load
from isolation.contract.model import ComputePolicy
from isolation.contract.names import ACK, VISIBLE_ENV
from isolation.contract.quantity import GIB
from isolation.files import replace_file
from isolation.host import process
from isolation.host.core.compute_rates import card_limit
from isolation.host.core.context_memory import context_bytes
from isolation.host.feed import FEED, uuid_of
from isolation.host.files import read_text
from isolation.lib import files
from isolation.node.backend import UndeliverableError, regular
from isolation.node.cdi import Edits
from isolation.node.regions import Regions, label
from isolation.simgpu.owner import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from isolation.contract.model import Card, Compute, Slice
    from isolation.node.backend import EnforcementBackend
    from isolation.node.core.container_check import Given
    from isolation.node.hardware import CardAccess

_log: Final = logging.getLogger(__name__)
ALLOC: Final = "alloc"
HOLD: Final = "promise.json"
LIMITS: Final = "limits/limits"
REGION: Final = "region/region"
_LIBRARY: Final = "library"
CLIENT: Final = "mps"
"""Which MPS server the container was given; no file: none."""
_FOLDERS: Final = ("/limits", "/lib", "/mps/pipe", "/dev/shm")  # noqa: S108 (in the container)
"""What is mounted as a folder, by its end in the container."""
_PROMISE_CHARS: Final = 63
"""Of the id in limits and region; promise.json has all of it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the container's specification must have."""

    edits: Edits
    hold: HostAllocation
    limits: str = ""
    """What the guard must have limited before the start (`EnforcementBackend.limits`)."""


class Delivery:
    """See the module. One call at a time for each container."""

    def __init__(self, run_dir: Path, hardware: CardAccess, backend: EnforcementBackend) -> None:
        self._run_dir, self._alloc = run_dir, run_dir / ALLOC
        self._hardware, self._backend = hardware, backend
        self._regions = Regions()
        self._boot = process.boot()
        self._runner = process.identify(os.getpid())
        self._alloc.mkdir(parents=True, exist_ok=True)

    def deliver(self, tenant: Tenant, given: Given, cards: Mapping[str, Card]) -> Delivered:
        """Everything in place, as often as asked. UndeliverableError says what is missing."""
        try:
            return self._deliver(tenant, given, cards)
        except (OSError, abi.AbiError, ValueError) as exc:
            raise UndeliverableError(f"{tenant.namespace}/{tenant.pod}: {exc}") from exc

    def change(self, tenant: Tenant, given: Given, cards: Mapping[str, Card]) -> HostAllocation:
        """Other limits for a container that runs, on the same cards. UndeliverableError."""
        try:
            ident = promise_id(tenant)
            folder = self._alloc / ident
            served = (folder / CLIENT).is_file()
            given = replace(given, compute=_held(given, cards, limited=not served))
            if given.enforced:
                self._limits(folder, ident, given, cards)
            hold = self._hold(tenant, given, _read_hold(folder))
            replace_file(folder / HOLD, dump(hold))
        except (OSError, abi.AbiError, ValueError) as exc:
            raise UndeliverableError(f"{tenant.namespace}/{tenant.pod}: {exc}") from exc
        return hold

    def used(self, ident: str) -> dict[str, int]:
        """Bytes in use by card, by the container's own ledger; no card where that cannot be read."""
        folder = self._alloc / ident
        hold = _read_hold(folder)
        try:
            books = {book.uuid: book.used_bytes for book in files.read_cards(folder / REGION)}
        except (OSError, abi.AbiError):
            return {}
        return {part.uuid: books.get(uuid_of(part.uuid), 0) for part in (hold.slices if hold is not None else ())}

    def stands(self, ident: str) -> bool:
        """Whether a promise is written down."""
        return (self._alloc / ident / HOLD).is_file()

    def uncount(self, ident: str) -> None:
        """The promise counts no more, the files stay: an init container has ended."""
        (self._alloc / ident / HOLD).unlink(missing_ok=True)

    def retire(self, ident: str) -> None:
        """Nobody uses it any more: everything of it goes. Not an error where there is nothing."""
        folder = self._alloc / ident
        (folder / HOLD).unlink(missing_ok=True)
        self._regions.drop(folder / "region")
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _log.error("cannot remove %s", folder)

    def standing(self) -> Iterator[tuple[str, HostAllocation | None]]:
        """What stands on the disk, by promise id; None where its promise cannot be read, or is of another boot."""
        for folder in sorted(self._alloc.iterdir()):
            hold = _read_hold(folder)
            fits = hold is not None and hold.boot == self._boot and hold.tenant is not None and hold.id == folder.name
            yield folder.name, hold if fits else None

    def sweep_libraries(self) -> None:
        """Remove versions of the library that no container was given."""
        used = set()
        for folder in self._alloc.iterdir():
            with contextlib.suppress(OSError, UnicodeDecodeError):
                used.add(read_text(folder / _LIBRARY).strip())
        self._backend.forget(used)

    def _deliver(self, tenant: Tenant, given: Given, cards: Mapping[str, Card]) -> Delivered:
        ident = promise_id(tenant)
        folder = self._alloc / ident
        before = _read_hold(folder)
        enforced = given.enforced and self._backend.holds()
        limited = enforced and self._backend.limits_compute()
        given = replace(given, enforced=enforced, compute=_held(given, cards, limited=limited))
        for part in (folder, folder / "limits", folder / "region"):
            part.mkdir(exist_ok=True)
            part.chmod(0o755)
        (folder / CLIENT).unlink(missing_ok=True)
        edits = Edits(environment(given.slices, cards)) + self._hardware.edits(given.slices, cards)
        if enforced:
            self._limits(folder, ident, given, cards)
            same = before is not None and before.id == ident and before.boot == self._boot
            self._region(folder, ident, keep=same)
            if version := self._backend.version():
                replace_file(folder / _LIBRARY, version + "\n")
            edits += self._backend.edits(folder, given)
        _check(edits, self._run_dir)
        hold = self._hold(tenant, given, before)
        if hold != before:
            replace_file(folder / HOLD, dump(hold))
        return Delivered(edits, hold, self._backend.limits(given.slices) if enforced else "")

    def _limits(self, folder: Path, ident: str, given: Given, cards: Mapping[str, Card]) -> None:
        """The promise where the library reads it, in place."""
        made = abi.Limits(1, ident[:_PROMISE_CHARS], tuple(_limit(part, given.compute, cards) for part in given.slices))
        try:
            old = abi.unpack_limits((folder / LIMITS).read_bytes())
        except (OSError, abi.AbiError):
            _remove(folder / LIMITS)  # not rewritten in place: nobody can be reading what cannot be read
        else:
            changed = (made.promise, made.cards) != (old.promise, old.cards)
            made = replace(made, generation=old.generation + changed)
        files.write_limits(folder / LIMITS, made)
        if not regular(folder / "limits" / FEED):
            _remove(folder / "limits" / FEED)
            files.write_feed(folder / "limits" / FEED, [abi.CardFeed(0, 0) for _ in given.slices], now_ns=1)
        for name in (folder / LIMITS, folder / "limits" / FEED):
            label(name)

    def _region(self, folder: Path, ident: str, *, keep: bool) -> None:
        if keep and self._regions.usable(folder / REGION):
            return
        self._regions.prepare(folder / "region")
        _remove(folder / REGION)
        files.create_region(folder / REGION, ident)
        label(folder / REGION)

    def _hold(self, tenant: Tenant, given: Given, before: HostAllocation | None) -> HostAllocation:
        ident = promise_id(tenant)
        same = before is not None and before.id == ident and before.boot == self._boot
        return HostAllocation(
            id=ident,
            name=tenant.pod,
            boot=self._boot,
            created=before.created if same and before is not None else time.time(),
            uid=os.geteuid(),
            runner=self._runner,
            command=(),
            slices=given.slices,
            policy=(given.compute.policy if given.enforced else ComputePolicy.NONE).value,
            online=given.compute.online,
            tenant=tenant,
            weight=given.compute.weight,
            ceiling=given.compute.ceiling,
            enforced=given.enforced,
            trust=given.trust,
        )


def promise_id(tenant: Tenant) -> str:
    """In promise.json, limits, region and metrics, and the name of the folder."""
    return f"{tenant.uid}.{tenant.container}"


def environment(slices: Sequence[Slice], cards: Mapping[str, Card]) -> dict[str, str]:
    """What a container is told of its part, for people and programs; nothing is enforced by it."""
    first = slices[0]
    uuids = ",".join(part.uuid for part in slices)
    made = {
        ACK.env_visible: uuids,
        VISIBLE_ENV: uuids,
        ACK.env_container_memory: str(first.bytes // GIB),
    }
    if first.uuid in cards:
        made[ACK.env_card_memory] = str(cards[first.uuid].allocatable_bytes // GIB)
    return made


def _held(given: Given, cards: Mapping[str, Card], *, limited: bool) -> Compute:
    """What the library limits: nothing within a MIG instance, nor where another part does (`limited`: none does)."""
    divided = any(part.uuid in cards and cards[part.uuid].instance is not None for part in given.slices)
    return replace(given.compute, policy=ComputePolicy.NONE) if divided or not limited else given.compute


def _limit(part: Slice, compute: Compute, cards: Mapping[str, Card]) -> abi.CardLimit:
    model = cards[part.uuid].model if part.uuid in cards else ""
    return card_limit(uuid_of(part.uuid), part, compute, context_bytes(model))


def _check(edits: Edits, run_dir: Path) -> None:
    """Every file of ours that is mounted is one."""
    for mount in edits.mounts:
        source = Path(mount.host)
        fine = source.is_dir() if mount.container.endswith(_FOLDERS) else regular(source)
        fine = fine or (mount.container.endswith(SUFFIX) and source.is_socket())
        if not fine:
            raise UndeliverableError(f"{source} is missing or not a regular file: the agent restores {run_dir}")


def _read_hold(folder: Path) -> HostAllocation | None:
    try:
        return load(read_text(folder / HOLD))
    except (OSError, UnicodeDecodeError, HostAllocationError):
        return None


def _remove(path: Path) -> None:
    """Whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
