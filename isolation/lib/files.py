# SPDX-License-Identifier: Apache-2.0
"""
The files behind the ABI: created, rewritten in place and opened the way their readers rely on.

Knows the operating system and nothing of layouts (isolation.contract.abi). Host files are never
renamed or resized once a container has them; a tenant's region is opened without following links
or blocking, must be a regular file of the right size, and is read with pread, never mapped.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from isolation.contract import abi, breach_ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LIMITS_MODE: Final = 0o644
REGION_MODE: Final = 0o666
"""Any user of the container may book: which one it runs as is not known beforehand."""

_SEQUENCE_AT: Final = 16
_BODY_AT: Final = 24


def create_region(path: Path, promise: str = "") -> None:
    """A fresh region; FileExistsError where one is in use."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, REGION_MODE)
    try:
        os.fchmod(fd, REGION_MODE)
        os.posix_fallocate(fd, 0, abi.REGION_BYTES)  # a hole in a full file system would be a SIGBUS in the tenant
        os.pwrite(fd, abi.fresh_region(promise)[: abi.HEADER_BYTES], 0)
    finally:
        os.close(fd)


def _rewrite(path: Path, whole: bytes) -> None:
    """Under the seqlock: odd, body, checksum, even. `whole` carries any even sequence."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, LIMITS_MODE)
    try:
        os.fchmod(fd, LIMITS_MODE)
        old = os.pread(fd, 4, _SEQUENCE_AT)
        if len(old) < 4:  # noqa: PLR2004 (a new file: nobody reads it yet)
            os.pwrite(fd, whole, 0)
            return
        odd = int.from_bytes(old, "little") | 1
        os.pwrite(fd, odd.to_bytes(4, "little"), _SEQUENCE_AT)
        os.pwrite(fd, whole[_BODY_AT:], _BODY_AT)
        os.pwrite(fd, whole[_SEQUENCE_AT + 4 : _BODY_AT], _SEQUENCE_AT + 4)
        os.pwrite(fd, whole[:_SEQUENCE_AT], 0)
        os.pwrite(fd, ((odd + 1) & 0xFFFFFFFF).to_bytes(4, "little"), _SEQUENCE_AT)
    finally:
        os.close(fd)


def _fitting(make: Callable[[], bytes]) -> bytes:
    """AbiError where a number does not fit its field: nothing of the file is written then."""
    try:
        return make()
    except struct.error as exc:
        raise abi.AbiError(f"number out of range: {exc}") from None


def write_limits(path: Path, limits: abi.Limits) -> None:
    """Replace the limits, in place; readers see the old ones or the new ones."""
    _rewrite(path, _fitting(lambda: abi.pack_limits(limits)))


def write_feed(path: Path, cards: Sequence[abi.CardFeed], now_ns: int | None = None) -> None:
    """Tell a container what only the host knows, in place."""
    if len(cards) > abi.CARDS:
        raise abi.AbiError(f"the container has {len(cards)} cards: the ABI supports {abi.CARDS}")
    at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) if now_ns is None else now_ns
    _rewrite(path, _fitting(lambda: abi.pack_feed(cards, at)))


@contextmanager
def opened(path: Path) -> Iterator[tuple[abi.Pread, int]]:
    """A tenant's file: its bounded pread and its size. AbiError where it is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise abi.AbiError(f"{path}: not a regular file")
        yield partial(os.pread, fd), about.st_size
    finally:
        os.close(fd)


def read_region(path: Path) -> abi.RegionReading:
    """One reading of a tenant's region."""
    with opened(path) as (pread, size):
        return abi.read_region(pread, size=size)


def read_cards(path: Path) -> tuple[abi.CardLedger, ...]:
    """The cards of a tenant's region."""
    with opened(path) as (pread, size):
        return abi.read_cards(pread, size=size)


def read_breaches(path: Path, since: int = 0) -> tuple[int, int, tuple[breach_ring.BreachRecord, ...]]:
    """What went against the promise since record number `since`."""
    with opened(path) as (pread, size):
        if size < abi.REGION_BYTES:
            raise abi.AbiError(f"{path}: file has {size} bytes, expected {abi.REGION_BYTES}")
        return breach_ring.read_breaches(pread, since)
