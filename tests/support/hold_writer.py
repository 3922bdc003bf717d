# SPDX-License-Identifier: Apache-2.0
"""
Writes holds as `gpushare run` and the node agent do, for tests of those who read them.

    book = HoldWriter(tmp_path)
    folder = book.run("run-1", lock=True)
    folder = book.agent("hash-1", "promise-1", tenant=Tenant("ml", "train-0", "<uid>", "main"))
    touch(folder, slots=[(7, 100)], used=5 << 30, breaches=3)
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import uuid
from typing import TYPE_CHECKING, Any, BinaryIO

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, Process, dump
from isolation.contract.model import Slice
from isolation.host.core.compute_rates import card_limit
from isolation.lib import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from isolation.contract.host_allocation import Tenant

BOOT = "boot-of-the-tree"
CARD = uuid.UUID("b3dcaf1a-c22c-487c-8000-000000000001")
HIGH_AT, HEAD_AT = 128, 64
"""Where a region's header keeps the number of slots ever taken and of breach records ever written."""


class HoldWriter:
    """See the module. Keeps the locks it takes until `release`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.book, self.run_dir, self.proc = root / "book", root / "lib", root / "proc"
        self.book.mkdir(parents=True, exist_ok=True)
        (self.proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
        self.locks: dict[Path, int] = {}

    def hold(self, ident: str, **more: Any) -> HostAllocation:
        """A promise of 5 GiB and 30 % of one card."""
        fields: dict[str, Any] = {
            "id": ident,
            "name": "train",
            "boot": BOOT,
            "created": 1.0,
            "uid": os.geteuid(),
            "runner": Process(1, 1),
            "command": ("python",),
            "slices": (Slice(f"GPU-{CARD}", 0, 5 << 30, 30),),
            "policy": "fixed",
            "enforced": more.get("policy") != "none",
        }
        return HostAllocation(**(fields | more))

    def run(
        self,
        ident: str,
        *,
        lock: bool = True,
        members: Iterable[tuple[int, int]] = (),
        book: Path | None = None,
        **more: Any,
    ) -> Path:
        """As `gpushare run` leaves it; the lock is what its command inherits."""
        folder = (book or self.book) / ident
        folder.mkdir(parents=True)
        self._write(folder, self.hold(ident, **more), folder, folder)
        (folder / "members").write_text("".join(f"{pid} {start}\n" for pid, start in members))
        if lock:
            self.locks[folder] = os.open(folder, os.O_RDONLY)
            fcntl.flock(self.locks[folder], fcntl.LOCK_EX)
        return folder

    def agent(self, name: str, ident: str, *, tenant: Tenant | None, **more: Any) -> Path:
        """As the node agent leaves it."""
        folder = self.run_dir / "alloc" / name
        for part in (folder / "limits", folder / "region"):
            part.mkdir(parents=True)
        self._write(folder, self.hold(ident, tenant=tenant, **more), folder / "limits", folder / "region")
        return folder

    def release(self, folder: Path) -> None:
        """The last who had inherited the lock has ended."""
        os.close(self.locks.pop(folder))

    def close(self) -> None:
        """Let every lock go."""
        for folder in list(self.locks):
            self.release(folder)

    @staticmethod
    def _write(folder: Path, hold: HostAllocation, limits: Path, region: Path) -> None:
        if hold.enforced:
            cards = [card_limit(_uuid(part.uuid), part, hold.compute, 0) for part in hold.slices]
            files.write_limits(limits / "limits", abi.Limits(1, hold.id, tuple(cards)))
            files.create_region(region / "region", hold.id)
        (folder / ".hold").write_text(dump(hold))
        (folder / ".hold").rename(folder / "promise.json")


def settle() -> None:
    """Until what was just written is old enough to be remembered."""
    time.sleep(0.15)


def touch(
    region: Path,
    *,
    slots: Sequence[tuple[int, int]] = (),
    used: int = 0,
    breaches: int | None = None,
    card: uuid.UUID = CARD,
) -> None:
    """What the library has charged: living processes (pid, start), bytes on the first card, breach records."""
    with region.open("r+b") as file:
        _put(file, abi.CARD_OFFSET, struct.pack("<Q", used // abi.GRANULE))
        _put(file, abi.CARD_OFFSET + 128, card.bytes)
        for at, (pid, start) in enumerate(slots):
            head = abi._SLOT_HEAD.pack(1, 1, pid, 0, start, 0, 0, b"python", 0, 0)
            _put(file, abi.SLOT_OFFSET + at * abi.SLOT_BYTES, head)
        _put(file, HIGH_AT, struct.pack("<I", len(slots)))
        if breaches is not None:
            for at in range(max(0, breaches - abi.RING), breaches):
                record = abi.RECORD.pack(at + 1, 10 * at, abi.Breach.DENIED, 0, 7, 1 << 30, used, 5 << 30, 1)
                _put(file, abi.RING_OFFSET + at % abi.RING * abi.RECORD_BYTES, record)
            _put(file, HEAD_AT, struct.pack("<Q", breaches))


def _put(file: BinaryIO, at: int, raw: bytes) -> None:
    file.seek(at)
    file.write(raw)


def _uuid(card: str) -> uuid.UUID:
    return uuid.UUID(card.removeprefix("GPU-").removeprefix("MIG-"))
