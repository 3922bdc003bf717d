# SPDX-License-Identifier: Apache-2.0
"""
The shared memory of a container, seen from the host: the mirror of `gpushare_abi.h`.

Packs what the host writes (limits, feed, a fresh region) and reads what the container writes.
Pure: bytes in, bytes out; files are opened, checked and rewritten by the callers, who hand over a bounded `pread`. What
a tenant can write is hostile until checked: a region that does not look as it must is refused as a whole (AbiError), a
record that is being overwritten is left out, and no number that a tenant wrote is ever used as a size or an offset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMITS_MAGIC: Final = 0x314D494C48535047
FEED_MAGIC: Final = 0x3144454648535047
REGION_MAGIC: Final = 0x3147455248535047
MAJOR: Final = 1
MINOR: Final = 2

CARDS: Final = 16
SLOTS: Final = 1024
LANES: Final = 4
RING: Final = 1024
GRANULE: Final = 512
LOCK_OFFSET: Final = 1 << 40
"""Slot i of a region is locked (F_OFD_SETLK) at this byte + i by the process that holds it."""

GHOST: Final = 2
"""State of a slot (`enum gs_slot_state`); 0 is free."""

PPM: Final = 1_000_000


class AbiError(ValueError):
    """Bytes that are not what they should be; the message says in which way."""


class Policy(IntEnum):
    """How compute is shared (`enum gs_policy`)."""

    FIXED = 0
    BURST = 1
    WEIGHT = 2
    PRIORITY = 3
    NONE = 4


class Flag(IntFlag):
    """`enum gs_limits_flag`."""

    NONE = 0
    STRICT = 1
    REFUSE_MANAGED = 2


class Breach(IntEnum):
    """What went against a promise (`enum gs_breach`)."""

    DENIED = 1
    OVER = 2
    UNINSTRUMENTED = 3
    UNKNOWN_ENTRY = 4
    THROTTLED = 5
    CONFIG = 6
    REAPED = 7
    MANAGED = 8
    NO_SLOT = 9
    UNLISTED = 10


class Pread(Protocol):
    """`length` bytes at most from `offset`, as `os.pread` with the descriptor bound."""

    def __call__(self, length: int, offset: int, /) -> bytes:
        """Read; short at the end of the file."""


_LIMITS_HEAD: Final = struct.Struct("<QHHIII")
_LIMITS_BODY: Final = struct.Struct("<QIIII64s144x")
_LIMIT_CARD: Final = struct.Struct("<16sQQIIIII76x")
_FEED_BODY: Final = struct.Struct("<QIIII16x")
_FEED_CARD: Final = struct.Struct("<QQQIIQQiIII")
_REGION_HEAD: Final = struct.Struct("<QHHIQ10IQ56xI4xQQ32s64s")
_CARD: Final = struct.Struct("<Q56x6QII8x16sQQQQQ8xQQqQ32x")
_SLOT_CARDS: Final = struct.Struct(f"<{CARDS}Q")
_SLOT_HEAD: Final = struct.Struct("<IIIIQQQ16sQQ")
_LANE: Final = struct.Struct("<QQ")
RECORD: Final = struct.Struct("<QQHHIQQQI12x")

LIMITS_BYTES: Final = 4096
FEED_BYTES: Final = 64 + CARDS * _FEED_CARD.size
HEADER_BYTES: Final = 4096
CARD_BYTES: Final = 256
SLOT_BYTES: Final = 2048
SLOT_GUESSED: Final = 72
SLOT_LANES: Final = 256
SLOT_IMPORTED: Final = 1408  # and behind it `managed` and `underway`
RECORD_BYTES: Final = 64
CARD_OFFSET: Final = HEADER_BYTES
SLOT_OFFSET: Final = CARD_OFFSET + CARDS * CARD_BYTES
RING_OFFSET: Final = SLOT_OFFSET + SLOTS * SLOT_BYTES
REGION_BYTES: Final = RING_OFFSET + RING * RECORD_BYTES
_GEOMETRY: Final = (
    *(CARD_OFFSET, CARD_BYTES, CARDS, SLOT_OFFSET, SLOT_BYTES, SLOTS),
    *(RING_OFFSET, RECORD_BYTES, RING, LANES),
)


@dataclass(frozen=True, slots=True)
class CardLimit:
    """The promise on one card."""

    uuid: UUID
    memory_bytes: int
    context_bytes: int = 0
    """Estimate for one context on this chip; 0: the library's own."""
    core_ppm: int = 0
    """Promised millionths of the card's time; 0: no compute limit."""
    policy: Policy = Policy.FIXED
    weight: int = 1
    online: bool = False
    ceiling_ppm: int = 0
    """Most millionths of the card's time that are ever granted; 0: no ceiling; since minor 2."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the host promises one container."""

    generation: int
    promise: str
    cards: tuple[CardLimit, ...]
    flags: Flag = Flag.NONE


@dataclass(frozen=True, slots=True)
class MemoryFeed:
    """How far the ledger of one card is from what the driver counts, at one sample."""

    sample_ns: int  # CLOCK_MONOTONIC
    excess_bytes: int
    """What the driver counts beyond the ledger; below 0: what was estimated and charged too much."""
    ledger_bytes: int
    released: int = 0
    """`CardLedger.released` at the sample."""


@dataclass(frozen=True, slots=True)
class CardFeed:
    """What only the host knows about one card of a container."""

    own_ns: int
    """GPU time of this container since the feed began."""
    sample_ns: int
    """CLOCK_MONOTONIC of the driver's sample, not of its reading; 0: no sample yet."""
    rate_ppm: int = 0
    """Granted now; 0: no word, the promise holds."""
    rounding_ppm: int = 0
    """Part of the time by which `own_ns` may be wrong either way."""
    sampled_ns: int = 0
    """Time since the feed began that samples have seen; 0: all of it."""
    memory: MemoryFeed | None = None
    """None: the driver's figure is not known, and corrects nothing."""


@dataclass(frozen=True, slots=True)
class SlotReading:
    """One process of a container."""

    index: int
    pid: int
    """In the container's PID namespace, as the process says."""
    start_ticks: int
    generation: int
    name: str
    bytes_by_card: tuple[int, ...]
    unknown: int
    """Entry points that were passed through unknown."""
    ghost: bool = False
    """Dead; what it holds is mapped by a living process still."""
    guessed: tuple[int, ...] = (0,) * CARDS
    """Of `bytes_by_card`, what is an estimate."""
    imported: tuple[int, ...] = (0,) * CARDS
    """Bytes of other processes that it maps, charged there."""
    managed: tuple[int, ...] = (0,) * CARDS
    """Of `bytes_by_card`, what may lie on the host."""
    underway: tuple[int, ...] = (0,) * CARDS


@dataclass(frozen=True, slots=True)
class CardLedger:
    """One card as the container's library keeps it."""

    uuid: UUID
    used_bytes: int
    limit_bytes: int
    peak_bytes: int
    denied: int
    denied_bytes: int
    charged_ns: int
    event_ns: int
    launches: int
    throttled_ns: int
    wanted_ns: int
    rate_ppm: int
    uncorrected: bool
    """Nobody feeds own GPU time: charges are event time, neighbours' slices included."""
    corrected_ns: int = 0
    """Own time less charges, over all that the host fed."""
    overrun_ns: int | None = None  # own time of long kernels beyond the granted rate; None: an older library
    released: int = 0
    """Granules of guesses given back, all that there ever were."""
    version: int = 0
    """Differs after every step of the ledger."""


@dataclass(frozen=True, slots=True)
class RegionReading:
    """A region at about one moment. Written by the tenant: a claim, not a measurement."""

    promise: str
    library: str
    limits_generation: int
    cards: tuple[CardLedger, ...]
    slots: tuple[SlotReading, ...] = field(repr=False)
    breaches_total: int = 0


def _sealed(magic: int, size: int, sequence: int, body: bytes) -> bytes:
    body = body.ljust(size - _LIMITS_HEAD.size, b"\0")
    return _LIMITS_HEAD.pack(magic, MAJOR, MINOR, size, sequence, crc32(body)) + body


def _fields(word: int, bits: int, signed: int = 0) -> tuple[int, int]:
    low = word & ((1 << bits) - 1)
    return (low - (1 << bits) if signed and low >> (bits - 1) else low, word >> bits)


def pack_limits(limits: Limits, sequence: int = 0) -> bytes:
    """The limits file as the library reads it. `sequence` is even when the file is whole."""
    if len(limits.cards) > CARDS:
        raise AbiError(f"{len(limits.cards)} cards in one container; the ABI holds {CARDS}")
    promise = limits.promise.encode("ascii", "replace")[:63]
    head = (len(limits.cards), 256, _LIMIT_CARD.size)
    body = _LIMITS_BODY.pack(limits.generation, limits.flags, *head, promise)
    for card in limits.cards:
        sizes = (card.memory_bytes, card.context_bytes, card.core_ppm)
        body += _LIMIT_CARD.pack(card.uuid.bytes, *sizes, card.policy, card.weight, card.online, card.ceiling_ppm)
    return _sealed(LIMITS_MAGIC, LIMITS_BYTES, sequence, body)


def pack_feed(cards: Sequence[CardFeed], written_ns: int, sequence: int = 0) -> bytes:
    """The feed file, cards in the order of the limits file."""
    body = _FEED_BODY.pack(written_ns, len(cards), 64, _FEED_CARD.size, 0)
    for card in cards:
        times = (card.own_ns, card.sample_ns, 0, card.rate_ppm, card.rounding_ppm, card.sampled_ns)
        body += _FEED_CARD.pack(*times, *_memory(card.memory))
    return _sealed(FEED_MAGIC, FEED_BYTES, sequence, body)


def _memory(memory: MemoryFeed | None) -> tuple[int, int, int, int, int]:
    if memory is None:
        return 0, 0, 0, 0, 0
    excess = -(-memory.excess_bytes // GRANULE)
    return memory.sample_ns, excess, memory.ledger_bytes // GRANULE, memory.released & 0xFFFFFFFF, 1  # GS_MEMORY_VALID


def _unseal(raw: bytes, magic: int, size: int, what: str) -> bytes:
    if len(raw) < size:
        raise AbiError(f"{what}: {len(raw)} bytes, {size} expected")
    seen, major, minor, claimed, sequence, crc = _LIMITS_HEAD.unpack_from(raw)
    if seen != magic:
        raise AbiError(f"{what}: not one of ours (magic {seen:#x})")
    if major != MAJOR or claimed != size:
        raise AbiError(f"{what}: version {major}.{minor}, {MAJOR}.x is spoken here")
    body = raw[_LIMITS_HEAD.size : size]
    if sequence & 1 or crc32(body) != crc:
        raise AbiError(f"{what}: being rewritten, or torn")
    return body


def unpack_limits(raw: bytes) -> Limits:
    """A limits file read back."""
    body = _unseal(raw, LIMITS_MAGIC, LIMITS_BYTES, "limits")
    generation, flags, count, offset, stride, promise = _LIMITS_BODY.unpack_from(body)
    if count > CARDS or offset != 256 or stride != _LIMIT_CARD.size:  # noqa: PLR2004 (the layout's own offset)
        raise AbiError("limits: impossible card table")
    cards = []
    for index in range(count):
        uuid, memory, context, core, policy, weight, online, ceiling = _LIMIT_CARD.unpack_from(
            body, offset - _LIMITS_HEAD.size + index * stride
        )
        if policy > Policy.NONE or core > PPM or ceiling > PPM:
            raise AbiError(f"limits: card {index} has policy {policy}, {core} ppm, at most {ceiling} ppm")
        cards.append(CardLimit(UUID(bytes=uuid), memory, context, core, Policy(policy), weight, bool(online), ceiling))
    return Limits(generation, _text(promise), tuple(cards), Flag(flags & 3))


def fresh_region(promise: str = "") -> bytes:
    """The bytes of a region nobody has used yet."""
    head = _REGION_HEAD.pack(
        *(REGION_MAGIC, MAJOR, MINOR, HEADER_BYTES, REGION_BYTES, *_GEOMETRY, 0, 0, LOCK_OFFSET, 0, b""),
        promise.encode("ascii", "replace")[:63],
    )
    return head.ljust(REGION_BYTES, b"\0")


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("ascii", "replace")


def read_head(pread: Pread, size: int | None) -> tuple[int, int, int, str, str]:
    """Records ever written, slots ever taken, generation of the limits, library, promise. AbiError."""
    raw = pread(_REGION_HEAD.size, 0)
    if len(raw) < _REGION_HEAD.size or (size is not None and size < REGION_BYTES):
        raise AbiError(f"region: {len(raw) if size is None else size} bytes, {REGION_BYTES} expected")
    magic, major, minor, header, total, *rest = _REGION_HEAD.unpack(raw)
    if magic != REGION_MAGIC:
        raise AbiError(f"region: not one of ours (magic {magic:#x})")
    if major != MAJOR:
        raise AbiError(f"region: version {major}.{minor}, {MAJOR}.x is spoken here")
    if (header, total, *rest[:10]) != (HEADER_BYTES, REGION_BYTES, *_GEOMETRY):
        raise AbiError("region: impossible layout")
    ring_head, high, _lock, generation, library, promise = rest[10:]
    return ring_head, min(high, SLOTS), generation, _text(library), _text(promise)


def _slot(raw: bytes, offset: int, index: int, pending: Sequence[tuple[int, int]]) -> SlotReading | None:
    state, generation, pid, _, ticks, _namespace, _taken, name, _modules, unknown = _SLOT_HEAD.unpack_from(raw, offset)
    if state == 0:
        return None
    held = []
    for card in range(CARDS):
        total = 0
        for lane in range(LANES):
            at = offset + SLOT_LANES + (card * LANES + lane) * _LANE.size
            done, intent = _LANE.unpack_from(raw, at)
            owner, sequence = pending[card]
            if owner == index * LANES + lane and (done >> 40) & 0xFFFFF != sequence:
                done = intent
            total += done
        held.append(_fields(total, 40, signed=1)[0] * GRANULE)
    sums = (SLOT_GUESSED, *range(SLOT_IMPORTED, SLOT_IMPORTED + 3 * _SLOT_CARDS.size, _SLOT_CARDS.size))
    more = (_SLOT_CARDS.unpack_from(raw, offset + at) for at in sums)
    return SlotReading(index, pid, ticks, generation, _text(name), tuple(held), unknown, state == GHOST, *more)


def read_cards(pread: Pread, *, size: int | None = None) -> tuple[CardLedger, ...]:
    """The cards of a region alone: one small read, for those who come often."""
    read_head(pread, size)
    return _cards(pread)[0]


def _cards(pread: Pread) -> tuple[tuple[CardLedger, ...], list[tuple[int, int]]]:
    """The cards, and the step that may be under way on each."""
    minor = int.from_bytes(pread(2, 10), "little")
    if len(raw_cards := pread(CARDS * CARD_BYTES, CARD_OFFSET)) < CARDS * CARD_BYTES:
        raise AbiError("region: cut short")
    cards, pending = [], []
    for index in range(CARDS):
        word, *rest = _CARD.unpack_from(raw_cards, index * CARD_BYTES)
        _, charged, event, launches, throttled, wanted, rate, flags, uuid, limit, peak, denied, refused, *more = rest
        used, upper = _fields(word, 32)
        pending.append(_fields(upper, 12))
        if any(uuid):
            figures = (used * GRANULE, limit, peak, denied, refused, charged, event, launches, throttled, wanted, rate)
            overrun = more[4] if minor else None
            cards.append(CardLedger(UUID(bytes=uuid), *figures, bool(flags & 1), more[3], overrun, more[0], upper))
    return tuple(cards), pending


def read_region(pread: Pread, *, size: int | None = None) -> RegionReading:
    """
    One reading of a region: the header is checked, then cards, then the slots ever taken.

    A step under way is counted as finished, as the library itself would finish it.
    """
    ring_head, high, generation, library, promise = read_head(pread, size)
    cards, pending = _cards(pread)
    raw_slots = pread(high * SLOT_BYTES, SLOT_OFFSET)
    if len(raw_slots) < high * SLOT_BYTES:
        raise AbiError("region: cut short")
    slots = tuple(slot for i in range(high) if (slot := _slot(raw_slots, i * SLOT_BYTES, i, pending)) is not None)
    return RegionReading(promise, library, generation, cards, slots, ring_head)


def layout() -> dict[str, int]:
    """Sizes and offsets as this mirror understands them, for the comparison with the C header."""
    formats = {"limit_card": _LIMIT_CARD, "feed_card": _FEED_CARD, "card": _CARD, "record": RECORD}
    sizes = {name: fmt.size for name, fmt in formats.items()}
    sections = {"region.cards": CARD_OFFSET, "region.slots": SLOT_OFFSET, "region.ring": RING_OFFSET}
    return sizes | sections | {"limits": LIMITS_BYTES, "feed": FEED_BYTES, "slot": SLOT_BYTES, "region": REGION_BYTES}
