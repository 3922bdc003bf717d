# SPDX-License-Identifier: Apache-2.0
"""
One reading for people and programs: what `gpushare exporter --once` prints.

Pure. Unknown figures are a dash in the table and null in JSON, never 0.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from exporter.cycle import outcomes
from isolation.contract.quantity import GIB
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from exporter.evaluate import CycleResult
    from isolation.contract.reading import CardReading, ContainerReading

FORMAT: Final = 1
_NOTHING: Final = "-"
_MAX_WORD: Final = 48
_CARD_HEAD: Final = ("CARD", "MODEL", "USED", "TOTAL", "PROMISED", "FREE", "UNATTRIB.", "UTIL", "POWER", "STATE")
_USE_HEAD: Final = (
    "CONTAINER",
    "CARD",
    "MODE",
    "MEM USED",
    "MEM PROMISED",
    "COMPUTE USED",
    "COMPUTE PROMISED",
    "SOURCE",
)


def as_json(result: CycleResult) -> str:
    """The reading and how the sources fared; an unknown figure is null."""
    record = {
        "format": FORMAT,
        "read_at": result.snapshot.epoch,
        "reading": _plain(result.reading),
        "collectors": {
            name: {"success": outcome.ok, "error": outcome.error, "seconds": outcome.seconds}
            for name, outcome in outcomes(result.snapshot).items()
        },
    }
    return json.dumps(record, indent=2)


def errors(result: CycleResult) -> list[str]:
    """Which sources failed, and why."""
    return [f"{name}: {outcome.error}" for name, outcome in outcomes(result.snapshot).items() if not outcome.ok]


def table(result: CycleResult) -> str:
    """Cards, then who uses them."""
    reading = result.reading
    if reading is None:
        return "no reading: the attribution failed, see the log"
    cards = _columns(_CARD_HEAD, [_card_row(card) for card in reading.cards])
    uses = _columns(_USE_HEAD, [_use_row(use) for use in reading.containers])
    title = f"{reading.node}  driver {reading.driver or _NOTHING}"
    if not reading.containers:
        return "\n".join([title, "", *cards, "", "no promises"])
    return "\n".join([title, "", *cards, "", *uses])


def _plain(value: Any) -> Any:
    """Dataclasses as objects; of fields that are listed as unknown the placeholder is taken back."""
    if is_dataclass(value) and not isinstance(value, type):
        unknown: frozenset[str] = getattr(value, "unknown", frozenset())
        return {
            one.name: None if one.name in unknown else _plain(getattr(value, one.name))
            for one in fields(value)
            if one.name != "unknown"
        }
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(part) for part in value]
    return value


def _card_row(card: CardReading) -> tuple[str, ...]:
    known: Mapping[str, int | None] = {
        name: None if name in card.unknown else getattr(card, name) for name in ("total_bytes", "allocated_bytes")
    }
    return (
        str(card.index) + (f" {card.profile}" if card.profile else ""),
        card.model,
        _gib(card.used_bytes),
        _gib(known["total_bytes"]),
        _gib(known["allocated_bytes"]),
        _gib(card.largest_free_bytes),
        _gib(card.unattributed_bytes),
        _percent(card.utilisation_ratio),
        _NOTHING if card.power_watts is None else f"{card.power_watts:.0f} W",
        "lost" if card.lost else ("ok" if card.healthy else "unhealthy"),
    )


def _use_row(use: ContainerReading) -> tuple[str, ...]:
    return (
        "/".join(part for part in (use.namespace, use.pod, use.container) if part),
        str(use.index),
        "exclusive" if use.exclusive else "shared",
        _gib(use.used_bytes),
        _gib(None if "allocated_bytes" in use.unknown else use.allocated_bytes),
        _percent(use.used_core_ratio),
        _percent(use.allocated_core_ratio),
        use.source or _NOTHING,
    )


def _gib(amount: int | None) -> str:
    return _NOTHING if amount is None else f"{amount / GIB:.1f} GiB"


def _percent(ratio: float | None) -> str:
    return _NOTHING if ratio is None else f"{100 * ratio:.0f} %"


def _columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Left-aligned columns as wide as they need; what others wrote cannot leave its place."""
    shown = [tuple(head), *(tuple(_word(word) for word in row) for row in rows)]
    widths = [max(len(row[at]) for row in shown) for at in range(len(head))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def _word(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= _MAX_WORD else clean[: _MAX_WORD - 1] + "…"
