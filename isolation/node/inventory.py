# SPDX-License-Identifier: Apache-2.0
"""
This node's cards and what it serves with them: read from NVML and the node's object, kept over restarts.

Decides what is believed while nothing can be read: the last known, from a file. A card that was seen once
stays known, as lost when NVML no longer tells of it; a node whose object was not read yet serves what it
served. Which devices that makes is the agent's business.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

from isolation.contract.codec import CodecError, decode_cards, encode_cards
from isolation.contract.model import Card, Mode
from isolation.files import replace_file
from isolation.host.core.context_memory import under_mps
from isolation.host.machine import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
_FORMAT: Final = 1
_MAX_BYTES: Final = 1 << 20
LOST: Final = "lost-"
"""How `host.machine` names a card whose UUID NVML no longer tells."""


class Cards(Protocol):
    """Where cards are read."""

    def cards(self) -> tuple[Card, ...]:
        """Every card, in NVML's order; MachineError."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How cards are divided."""

    unit_bytes: int
    reserved_bytes: int = 0
    """At least this much of each card is kept back."""


@dataclass(frozen=True, slots=True)
class Known:
    """What outlives a restart of the agent."""

    cards: tuple[Card, ...] = ()
    mode: Mode = Mode.NONE
    whole: bool = False
    backend: str = ""
    """By the node's label what enforces promises; empty: none is named."""


def divided(found: Iterable[Card], terms: Terms) -> tuple[Card, ...]:
    """The cards under the node's terms; MachineError where MIG instances have no memory of their own."""
    cards = tuple(
        replace(card, unit_bytes=terms.unit_bytes, reserved_bytes=max(card.reserved_bytes, terms.reserved_bytes))
        for card in found
        if not card.uuid.startswith(LOST)
    )
    parts = Counter((card.instance.parent, card.instance.gpu) for card in cards if card.instance is not None)
    for (parent, gpu), number in parts.items():
        if number > 1:
            raise MachineError(
                f"GPU instance {gpu} of card {parent} has {number} compute instances, which share its memory: create "
                "each GPU instance with one compute instance (nvidia-smi mig -cgi PROFILE -C)"
            )
    return cards


def numbered(found: Sequence[Card], before: Sequence[Card]) -> tuple[Card, ...]:
    """
    Cards with an index each: NVML's where MIG divides none; else that which a card had, or the lowest that is free.

    Records in ACK's form and older pods name cards by index: while a card is known, no other gets its number.
    """
    if not any(card.instance for card in (*found, *before)):
        return tuple(found)
    uuids, boards = {card.uuid for card in found}, {card.board for card in found}
    had = {card.uuid: card.index for card in before if card.uuid in uuids or card.board not in boards}
    free = (number for number in count() if number not in had.values())
    return tuple(replace(card, index=had[card.uuid] if card.uuid in had else next(free)) for card in found)


@dataclass(frozen=True, slots=True)
class DivisionChange:
    """A physical card whose division is not the known one, while containers have promises on what is gone."""

    board: str
    cards: tuple[Card, ...]
    """As they were known; none of them gets newcomers."""
    why: str


def changed(found: Sequence[Card], before: Sequence[Card], held: Collection[str]) -> tuple[DivisionChange, ...]:
    """Which physical cards were divided differently under promises (`held`: UUIDs of cards that have some)."""
    now = {card.uuid: card for card in found}
    answering = {card.board for card in found}
    changes = []
    for board in dict.fromkeys(card.board for card in before):
        known = tuple(card for card in before if card.board == board)
        gone = [card.uuid for card in known if card.uuid not in now or now[card.uuid].instance != card.instance]
        used = [uuid for uuid in gone if uuid in held]
        if used and board in answering:
            why = (
                f"the MIG instances of card {board} were changed while containers have promises on {', '.join(used)}: "
                "no new pods until those have ended; then the new instances are offered"
            )
            changes.append(DivisionChange(board, known, why))
    return tuple(changes)


def seen(before: Sequence[Card], found: Sequence[Card]) -> tuple[Card, ...]:
    """
    Cards as they are now; one that is known and not found is lost, with the amounts it had.

    A card that took the place (index) of another is a replacement: the other is forgotten. So is what a physical card
    that answers was divided into, and is no more.
    """
    taken = {card.index for card in found}
    uuids, boards = {card.uuid for card in found}, {card.board for card in found}
    sound = tuple(_as_known(card, before) for card in found)
    lost = tuple(
        replace(c, healthy=False)
        for c in before
        if c.uuid not in uuids and c.index not in taken and c.board not in boards
    )
    return tuple(sorted((*sound, *lost), key=lambda card: card.index))


def _as_known(card: Card, before: Sequence[Card]) -> Card:
    """An unhealthy card tells no amounts: those that it had stay."""
    known = next((one for one in before if one.uuid == card.uuid), None)
    return replace(known, healthy=False) if known is not None and not card.total_bytes else card


class NodeInventory:
    """See the module; fulfils `containers.Inventory`. `refresh` may block: call it in a thread of its own."""

    def __init__(
        self,
        machine: Cards,
        terms: Terms,
        file: Path,
        unhealthy: Callable[[], Mapping[str, str]] = dict[str, str],
        held: Callable[[], Collection[str]] = tuple[str],
    ) -> None:
        """
        `unhealthy`: why cards that answer get no new allocations, by UUID; `held`: UUIDs of cards with promises.
        """
        self._machine, self._terms, self._file, self._unhealthy_of = machine, terms, file, unhealthy
        self._held = held
        self.changed: Mapping[str, str] = {}
        """By UUID, why a card gets no new allocations: its physical card was divided anew under promises."""
        self._lock = Lock()
        self.unhealthy: Mapping[str, str] = {}
        """As at the last reading."""
        self._known, self.told = self._load()
        self.trouble = "the cards have not been read yet"
        """Why they cannot be read, for people; empty: they can."""

    @property
    def usable(self) -> bool:
        """Whether anything is known that could be offered: cards, and what the node serves."""
        return bool(self._known.cards) and self.told

    def cards(self) -> Sequence[Card]:
        """See `containers.Inventory`; under MPS without what a card's server has."""
        known = self._known
        if known.mode is not Mode.MPS:
            return known.cards
        return tuple(map(under_mps, known.cards))

    def mode(self) -> Mode:
        """See `containers.Inventory`."""
        return self._known.mode

    def whole(self) -> bool:
        """See `containers.Inventory`."""
        return self._known.whole

    def backend(self) -> str:
        """What enforces promises, by the node's label; empty: none is named."""
        return self._known.backend

    def refresh(self) -> bool:
        """Read the cards again; whether anything changed."""
        before = self.unhealthy
        read = self._read()
        return read or self.unhealthy != before

    def _read(self) -> bool:
        reported = self._unhealthy_of()
        try:
            found = divided(self._machine.cards(), self._terms)
        except MachineError as exc:
            if str(exc) != self.trouble:
                log.error("%s", exc)  # noqa: TRY400 (its text is the whole story)
            unread = dict.fromkeys((card.uuid for card in self._known.cards), str(exc))
            self.trouble, self.unhealthy = str(exc), {**unread, **reported, **self.changed}
            return self._now(cards=tuple(replace(c, healthy=False) for c in self._known.cards))
        self.trouble = ""
        before = self._known.cards
        changes = changed(found, before, self._held())
        for change in changes:
            if not any(card.uuid in self.changed for card in change.cards):
                log.warning("%s", change.why)
        self.changed = {card.uuid: change.why for change in changes for card in change.cards}
        boards = {change.board for change in changes}
        found = (*(c for change in changes for c in change.cards), *(c for c in found if c.board not in boards))
        cards = seen(before, numbered(found, before))
        lost = {card.uuid for card in cards} - {card.uuid for card in found}
        gone = dict.fromkeys(lost, "the driver does not report it any more")
        self.unhealthy = {**gone, **reported, **self.changed}
        return self._now(cards=tuple(replace(c, healthy=c.healthy and c.uuid not in self.unhealthy) for c in cards))

    def serves(self, mode: Mode, *, whole: bool, backend: str = "") -> bool:
        """The node's object says this; whether anything changed."""
        first, self.told = not self.told, True
        return self._now(changed=first, mode=mode, whole=whole, backend=backend)

    def _now(self, *, changed: bool = False, **news: Any) -> bool:
        """Cards are read in a thread, the mode is told in the event loop: neither may undo the other's word."""
        with self._lock:
            known = replace(self._known, **news)
            changed = changed or known != self._known
            self._known = known
            if changed:
                self._save()
        return changed

    def _save(self) -> None:
        """A lost file costs a moment at the next start, not more: trouble is only told."""
        record = {
            "format": _FORMAT,
            "cards": encode_cards(self._known.cards),
            "mode": self._known.mode if self.told else "",
            "whole": self._known.whole,
            "backend": self._known.backend,
        }
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, json.dumps(record))
        except OSError as exc:
            log.warning("cannot write %s: %s", self._file, exc)

    def _load(self) -> tuple[Known, bool]:
        """What was known, and whether the node's object had been read; a file that cannot be read is none."""
        try:
            with self._file.open("rb") as file:
                record = json.loads(file.read(_MAX_BYTES))
            if record["format"] != _FORMAT:
                return Known(), False
            cards = decode_cards(record["cards"])
            mode, whole = Mode(record["mode"] or Mode.NONE), bool(record["whole"])
        except FileNotFoundError:
            return Known(), False
        except (OSError, ValueError, KeyError, TypeError, RecursionError, CodecError) as exc:
            log.warning("ignoring unreadable file %s: %s", self._file, exc)
            return Known(), False
        unit = all(card.unit_bytes == self._terms.unit_bytes for card in cards)
        return Known(cards if unit else (), mode, whole, str(record.get("backend", ""))), bool(record["mode"])
