# SPDX-License-Identifier: Apache-2.0
"""
Which cards are unhealthy: by the one definition there is (`isolation.host.core.card_health`), over restarts too.

Where a node agent keeps a record of its own, its word decides, since the operator tells it which errors to ignore; one
that it has not renewed for a while is only added to what we have heard ourselves. Our own record is a file as well.
A place that cannot be written costs the memory over a restart, nothing else.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from isolation.host.core.card_health import HealthTerms, apply_boards, apply_event
from isolation.host.health_record import Record, load, save

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from isolation.host.card_events import Board, CardEvent
    from isolation.host.core.card_health import UnhealthyCards

_log: Final = logging.getLogger(__name__)
AGENT_SECONDS: Final = 180.0
"""An agent renews its record every minute."""
_TERMS: Final = HealthTerms()


class CardHealth:
    """See the module. Not for several threads at once."""

    def __init__(self, boot: str = "", own: Path | None = None, agent: Path | None = None) -> None:
        """`own`, `agent`: records; `boot`: without it nothing is remembered."""
        self._boot, self._own, self._agent = boot, own if boot else None, agent
        self._record = (load(self._own, boot) if self._own is not None else None) or Record()
        self._boards: dict[str, Board] = {}
        self._theirs: UnhealthyCards = {}
        self._decides = False
        self._stamp: tuple[int, int] | None = None
        self._warned = False

    def uuid(self, index: int) -> str:
        """Of a card that has answered in this boot; empty: none has."""
        return self._record.cards.get(index, "")

    def why(self, uuid: str) -> str:
        """Why a physical card is unhealthy, in one word; empty: it is healthy."""
        known = self._theirs.get(uuid) or (None if self._decides else self._record.unhealthy.get(uuid))
        return known.reason.value if known is not None else ""

    def add_event(self, event: CardEvent, now: float) -> None:
        """An error event at `now` (monotonic seconds)."""
        self._keep(apply_event(self._record.unhealthy, event, self._boards, _TERMS, now))

    def look(self, boards: Iterable[Board], cards: Mapping[int, str], now: float) -> None:
        """All cards that answer, and UUIDs by index of those and of the ones before."""
        found = tuple(boards)
        self._boards |= {board.uuid: board for board in found}
        if self._own is not None and self._record.unhealthy and not self._own.exists():
            _log.info("%s was removed: treating all unhealthy cards as healthy again", self._own)
            self._record = Record({}, self._record.cards)
        unhealthy, well = apply_boards(self._record.unhealthy, found, _TERMS, now)
        for uuid, reason in well.items():
            _log.info("card %s is healthy again: %s", uuid, reason)
        self._keep(unhealthy, {**self._record.cards, **cards})
        self._read_agent()

    def reloaded(self) -> None:
        """The driver was loaded again, which resets every card."""
        self._keep(apply_boards(self._record.unhealthy, (), _TERMS, 0.0)[0])

    def _keep(self, unhealthy: UnhealthyCards, cards: Mapping[int, str] | None = None) -> None:
        before, self._record = self._record, Record(unhealthy, self._record.cards if cards is None else cards)
        for uuid in unhealthy.keys() - before.unhealthy.keys():
            _log.warning("card %s is unhealthy: %s", uuid, unhealthy[uuid].text)
        if self._own is None or (self._record == before and (self._own.exists() or not unhealthy)):
            return
        try:
            save(self._own, self._boot, self._record)
        except OSError as exc:
            if not self._warned:
                _log.warning("cannot write %s (%s): card health is not kept across restarts", self._own, exc.strerror)
            self._warned = True

    def _read_agent(self) -> None:
        """The agent's record, again when it has changed."""
        try:
            about = self._agent.stat() if self._agent is not None else None
        except OSError:
            about = None
        if about is None or self._agent is None:
            self._theirs, self._decides, self._stamp = {}, False, None
            return
        if (stamp := (about.st_ino, about.st_mtime_ns)) != self._stamp:
            found, self._stamp = load(self._agent, self._boot), stamp
            self._theirs, self._decides = ({}, False) if found is None else (found.unhealthy, True)
        self._decides = self._decides and abs(time.time() - about.st_mtime) < AGENT_SECONDS
