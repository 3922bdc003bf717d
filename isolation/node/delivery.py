# SPDX-License-Identifier: Apache-2.0
"""
The files of one container and its CDI device: made, checked, kept over restarts, removed.

    <run-dir>/alloc/<hash of device IDs>/
        claim             the book's entry, from which a lost book is made anew
        limits/limits  limits/feed
        region/region     the container's to write
        promise.json         last of all: from here on the exporter counts it
    <cdi-dir>/gpushare-<hash>.json

A restarted container finds the region of its pod as it left it: what a process of it that would not die still
has stays booked, the library clears the others away. Anything else in that place is made anew. Does not
decide who may start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, HostAllocationError, Tenant, dump, load
from isolation.contract.names import ACK, CDI_DIR, RUN_DIR
from isolation.contract.quantity import GIB
from isolation.files import replace_file
from isolation.host import process
from isolation.host.core.context_memory import context_bytes
from isolation.host.feed import FEED, uuid_of
from isolation.host.files import read_text
from isolation.lib import files
from isolation.node.backend import LibraryBackend, NoBackend, regular
from isolation.node.cdi import Edits, spec
from isolation.node.regions import Regions, label
from isolation.node.world import UndeliverableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.model import Card, Slice
    from isolation.node.backend import Backend
    from isolation.node.hardware import Hardware
    from isolation.node.world import Inventory, Promise

_log: Final = logging.getLogger(__name__)
ALLOC: Final = "alloc"
HOLD: Final = "promise.json"
CLAIM: Final = "allocation"
LIMITS: Final = "limits/limits"
REGION: Final = "region/region"
NOTHING: Final = "none"
_SPEC: Final = "gpushare-{}.json"
_PROMISE_CHARS: Final = 63
"""Of the id in limits and region; the hold has all of it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie on this host."""

    run_dir: Path = Path(RUN_DIR)
    cdi_dir: Path = Path(CDI_DIR)

    @property
    def alloc(self) -> Path:
        """Folders of containers."""
        return self.run_dir / ALLOC

    def spec(self, hash_: str) -> Path:
        """The CDI spec of a container."""
        return self.cdi_dir / _SPEC.format(hash_)


class NodeDelivery:
    """Fulfils `world.Delivery`; see the module."""

    def __init__(self, places: Places, hardware: Hardware, backend: Backend, inventory: Inventory) -> None:
        self._places, self._hardware, self._backend, self._inventory = places, hardware, backend, inventory
        self._regions = Regions()
        self._boot = process.boot()
        self._runner = process.identify(os.getpid())
        places.alloc.mkdir(parents=True, exist_ok=True)
        places.cdi_dir.mkdir(parents=True, exist_ok=True)

    async def deliver(self, promise: Promise) -> None:
        """See `world.Delivery`."""
        try:
            await asyncio.to_thread(self._deliver, promise)
        except (OSError, abi.AbiError, ValueError) as exc:
            raise UndeliverableError(f"{promise.pod.key}: {exc}") from exc

    async def uncount(self, hash_: str) -> None:
        """See `world.Delivery`."""
        await asyncio.to_thread((self._places.alloc / hash_ / HOLD).unlink, missing_ok=True)

    async def retire(self, hash_: str) -> None:
        """See `world.Delivery`."""
        await asyncio.to_thread(self._retire, hash_)

    def standing(self) -> Iterable[str]:
        """See `world.Delivery`."""
        before, _, after = _SPEC.partition("{}")
        specs = {path.name[len(before) : -len(after)] for path in self._places.cdi_dir.glob(f"{before}*{after}")}
        return specs | {path.name for path in self._places.alloc.iterdir()}

    def claims(self) -> Iterable[str]:
        """See `world.Delivery`."""
        for folder in sorted(self._places.alloc.iterdir()):
            try:
                yield read_text(folder / CLAIM)
            except (OSError, UnicodeDecodeError):
                _log.exception("cannot read %s: relying on the kubelet for its devices", folder / CLAIM)

    def sweep_libraries(self) -> None:
        """Remove versions of the library that no container's spec names."""
        if isinstance(self._backend, LibraryBackend):
            texts = [path.read_text("utf-8", "replace") for path in self._places.cdi_dir.glob(_SPEC.format("*"))]
            homes = self._places.run_dir / "lib"
            self._backend.forget({home.name for home in homes.iterdir() if any(home.name in text for text in texts)})

    def _deliver(self, promise: Promise) -> None:
        cards = {card.uuid: card for card in self._inventory.cards()}
        folder = self._places.alloc / promise.hash
        before = _read_hold(folder)
        backend = NoBackend() if promise.policy == NOTHING else self._backend
        policy = promise.policy if not isinstance(backend, NoBackend) else NOTHING
        for part in (folder, folder / "limits", folder / "region"):
            part.mkdir(exist_ok=True)
            part.chmod(0o755)
        replace_file(folder / CLAIM, promise.claim, 0o600)
        edits = self._hardware.edits(promise.slices) + Edits(environment(promise.slices, cards))
        if policy != NOTHING:
            same = before is not None and before.tenant is not None and before.tenant.uid == promise.pod.uid
            self._limits(folder, promise, cards)
            self._region(folder, promise.id, keep=same and before is not None and before.boot == self._boot)
        edits += backend.edits(folder)
        _check(edits, self._places.run_dir)
        hold = self._hold(promise, policy, before)
        if hold != before:
            replace_file(folder / HOLD, dump(hold))
        replace_file(self._places.spec(promise.hash), spec(promise.hash, edits, self._hardware.vendor()))

    def _limits(self, folder: Path, promise: Promise, cards: Mapping[str, Card]) -> None:
        """The promise where the library reads it, in place."""
        made = abi.Limits(1, promise.id[:_PROMISE_CHARS], tuple(_limit(part, cards) for part in promise.slices))
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
            files.write_feed(folder / "limits" / FEED, [abi.CardFeed(0, 0) for _ in promise.slices], now_ns=1)
        for name in (folder / LIMITS, folder / "limits" / FEED):
            label(name)

    def _region(self, folder: Path, ident: str, *, keep: bool) -> None:
        if keep and self._regions.usable(folder / REGION):
            return
        self._regions.prepare(folder / "region")
        _remove(folder / REGION)
        files.create_region(folder / REGION, ident)
        label(folder / REGION)

    def _hold(self, promise: Promise, policy: str, before: HostAllocation | None) -> HostAllocation:
        pod = promise.pod
        same = before is not None and before.id == promise.id and before.boot == self._boot
        return HostAllocation(
            id=promise.id,
            name=pod.name,
            boot=self._boot,
            created=before.created if same and before is not None else time.time(),
            uid=os.geteuid(),
            runner=self._runner,
            command=(),
            slices=promise.slices,
            policy=policy,
            tenant=Tenant(pod.namespace, pod.name, pod.uid, promise.container),
        )

    def _retire(self, hash_: str) -> None:
        """The device first: what cannot be resolved does not start."""
        self._places.spec(hash_).unlink(missing_ok=True)
        folder = self._places.alloc / hash_
        (folder / HOLD).unlink(missing_ok=True)
        self._regions.drop(folder / "region")
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _log.error("cannot remove %s", folder)


def environment(slices: Sequence[Slice], cards: Mapping[str, Card]) -> dict[str, str]:
    """What a container is told of its part, for people and programs; nothing is enforced by it."""
    first = slices[0]
    made = {
        ACK.env_visible: ",".join(part.uuid for part in slices),
        ACK.env_container_memory: str(first.bytes // GIB),
    }
    if first.uuid in cards:
        made[ACK.env_card_memory] = str(cards[first.uuid].allocatable_bytes // GIB)
    return made


def _limit(part: Slice, cards: Mapping[str, Card]) -> abi.CardLimit:
    """Compute by the fixed policy; without a share of it there is no limit of it."""
    model = cards[part.uuid].model if part.uuid in cards else ""
    ppm = part.core * (abi.PPM // 100)
    return abi.CardLimit(uuid_of(part.uuid), part.bytes, context_bytes(model), ppm, abi.Policy.FIXED, max(1, part.core))


def _check(edits: Edits, run_dir: Path) -> None:
    """Every file of ours that is mounted is one."""
    for mount in edits.mounts:
        source = Path(mount.host)
        fine = source.is_dir() if mount.container.endswith(("/limits", "/lib")) else regular(source)
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
