# SPDX-License-Identifier: Apache-2.0
"""
The file in which whoever listens for cards in trouble remembers the unhealthy ones; nothing of it outlives a boot.

The node agent and the exporter write one each. Whoever removes the file declares the cards healthy.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from isolation.files import replace_file
from isolation.host.core.card_health import CardFault, HealthReason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from isolation.host.core.card_health import UnhealthyCards

log = logging.getLogger(__name__)
RECORD: Final = "unhealthy-cards.json"
"""In the folder of whoever writes it."""
_FORMAT: Final = 1
_MAX_BYTES: Final = 1 << 18
_MAX_TEXT: Final = 100


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered."""

    unhealthy: UnhealthyCards = field(default_factory=lambda: MappingProxyType({}))
    cards: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """UUIDs by NVML's index, of cards that have answered: one that is lost cannot tell its own."""


def save(path: Path, boot: str, record: Record) -> None:
    """The whole record, or what was there before. OSError."""
    boards = {uuid: asdict(one) for uuid, one in record.unhealthy.items()}
    text = json.dumps({"format": _FORMAT, "boot": boot, "boards": boards, "cards": dict(record.cards)})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)


def load(path: Path, boot: str) -> Record | None:
    """Of this boot; None where there is none that can be read."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
        if found["format"] != _FORMAT or found["boot"] != boot:
            return None
        unhealthy = {str(uuid)[:_MAX_TEXT]: _fault(one) for uuid, one in found["boards"].items()}
        return Record(unhealthy, {int(at): str(uuid)[:_MAX_TEXT] for at, uuid in found.get("cards", {}).items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        log.warning("ignoring unreadable file %s: %s", path, exc)
        return None


def _fault(one: Mapping[str, Any]) -> CardFault:
    """KeyError, TypeError or ValueError where it is none."""
    return CardFault(
        cards=tuple(map(str, one["cards"])),
        reason=HealthReason(one["reason"]),
        number=int(one["number"]),
        since=float(one["since"]),
        last=float(one["last"]),
        asked=bool(one["asked"]),
        gone=bool(one["gone"]),
    )
