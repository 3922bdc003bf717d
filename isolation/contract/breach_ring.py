# SPDX-License-Identifier: Apache-2.0
"""
The breach ring of a region: what went against the promise, as the container's library wrote it down.

Pure, as `abi`: a record that is being overwritten is left out, and one that a tenant forged is a claim of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from isolation.contract.abi import CARDS, RECORD, RECORD_BYTES, RING, RING_OFFSET, AbiError, Breach, read_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.abi import Pread


@dataclass(frozen=True, slots=True)
class BreachRecord:
    """One entry of the ring."""

    sequence: int
    mono_ns: int
    kind: Breach | int
    card: int | None
    pid: int
    requested: int
    used: int
    limit: int
    api: int


def api_code(name: str) -> int:
    """How a record names an entry point."""
    return crc32(name.encode())


def read_breaches(pread: Pread, since: int = 0) -> tuple[int, int, tuple[BreachRecord, ...]]:
    """(records ever written, how many after `since` are lost, those that are left), oldest first."""
    head = read_head(pread, None)[0]
    raw = pread(RING * RECORD_BYTES, RING_OFFSET)
    if len(raw) < RING * RECORD_BYTES:
        raise AbiError("region: cut short")
    found = tuple(_records(raw, max(since, head - RING, 0), head))
    return head, max(0, head - since - len(found)), found


def _records(raw: bytes, first: int, head: int) -> Iterator[BreachRecord]:
    for index in range(first, min(head, first + RING)):
        sequence, mono, kind, card, *rest = RECORD.unpack_from(raw, (index % RING) * RECORD_BYTES)
        if sequence != index + 1:
            continue
        known = Breach(kind) if kind in Breach._value2member_map_ else kind
        yield BreachRecord(sequence, mono, known, card if card < CARDS else None, *rest)
