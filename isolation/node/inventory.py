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
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

from isolation.contract.codec import CodecError, decode_cards, encode_cards
from isolation.contract.model import Card, Mode
from isolation.files import replace_file
from isolation.host.machine import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 20
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


def divided(found: Iterable[Card], terms: Terms) -> tuple[Card, ...]:
    """The cards under the node's terms; MachineError where they are divided already."""
    cards = tuple(
        replace(card, unit_bytes=terms.unit_bytes, reserved_bytes=max(card.reserved_bytes, terms.reserved_bytes))
        for card in found
        if not card.uuid.startswith(LOST)
    )
    if len({card.index for card in cards}) != len(cards):
        raise MachineError("a card is in MIG mode: this node cannot share its cards until MIG is disabled")
    return cards


def seen(before: Sequence[Card], found: Sequence[Card]) -> tuple[Card, ...]:
    """
    Cards as they are now; one that is known and not found is lost, with the amounts it had.

    A card that took the place (index) of another is a replacement: the other is forgotten.
    """
    taken = {card.index for card in found}
    uuids = {card.uuid for card in found}
    sound = tuple(_as_known(card, before) for card in found)
    lost = tuple(replace(c, healthy=False) for c in before if c.uuid not in uuids and c.index not in taken)
    return tuple(sorted((*sound, *lost), key=lambda card: card.index))


def _as_known(card: Card, before: Sequence[Card]) -> Card:
    """A sick card tells no amounts: those that it had stay."""
    known = next((one for one in before if one.uuid == card.uuid), None)
    return replace(known, healthy=False) if known is not None and not card.total_bytes else card


class NodeInventory:
    """See the module; fulfils `containers.Inventory`. `refresh` may block: call it in a thread of its own."""

    def __init__(
        self, machine: Cards, terms: Terms, file: Path, sick: Callable[[], Mapping[str, str]] = dict[str, str]
    ) -> None:
        """`sick`: of cards that answer and should get no newcomers why, by UUID."""
        self._machine, self._terms, self._file, self._told_sick = machine, terms, file, sick
        self._lock = Lock()
        self.sick: Mapping[str, str] = {}
        """As at the last reading."""
        self._known, self.told = self._load()
        self.trouble = "the cards have not been read yet"
        """Why they cannot be read, for people; empty: they can."""

    @property
    def usable(self) -> bool:
        """Whether anything is known that could be offered: cards, and what the node serves."""
        return bool(self._known.cards) and self.told

    def cards(self) -> Sequence[Card]:
        """See `containers.Inventory`."""
        return self._known.cards

    def mode(self) -> Mode:
        """See `containers.Inventory`."""
        return self._known.mode

    def whole(self) -> bool:
        """See `containers.Inventory`."""
        return self._known.whole

    def refresh(self) -> bool:
        """Read the cards again; whether anything changed."""
        before, self.sick = self.sick, self._told_sick()
        return self._read() or self.sick != before

    def _read(self) -> bool:
        try:
            found = divided(self._machine.cards(), self._terms)
        except MachineError as exc:
            if str(exc) != self.trouble:
                log.error("%s", exc)  # noqa: TRY400 (its text is the whole story)
            self.trouble = str(exc)
            return self._now(cards=tuple(replace(c, healthy=False) for c in self._known.cards))
        self.trouble = ""
        cards = seen(self._known.cards, found)
        told = tuple(replace(c, healthy=False) if c.uuid in self.sick else c for c in cards)
        return self._now(cards=told)

    def serves(self, mode: Mode, *, whole: bool) -> bool:
        """The node's object says this; whether anything changed."""
        first, self.told = not self.told, True
        return self._now(changed=first, mode=mode, whole=whole)

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
                record = json.loads(file.read(_MOST_BYTES))
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
        return Known(cards if unit else (), mode, whole), bool(record["mode"])
