# SPDX-License-Identifier: Apache-2.0
"""
Listens for cards in trouble, in a thread of its own, and remembers the unhealthy ones over a restart of the agent.

Decides when to look and what is said; `card_health` decides what makes a card unhealthy. Where NVML cannot tell,
nothing is known, and the cards stay as they were. The memory is a file: whoever removes it declares the cards healthy.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from isolation.host.core.card_health import HealthReason, apply_boards, apply_event, critical, remembered
from isolation.host.health_record import Record, load, save
from isolation.host.machine import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from isolation.host.card_events import Board, CardEvent, CardEvents
    from isolation.host.core.card_health import HealthTerms, UnhealthyCards

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 1.0
_BREATH_SECONDS: Final = 0.01
"""Between events: a program that causes them without end does not take a processor."""
RENEW_SECONDS: Final = 60.0
"""So often the record is written anew, so that a reader knows that somebody still decides."""
_MAX_TOLD: Final = 64


class HealthWatch:
    """See the module. `cycle` is for the thread; the rest may be asked from any other."""

    def __init__(self, events: CardEvents, terms: HealthTerms, file: Path, boot: str) -> None:
        self._events, self._terms, self._file, self._boot = events, terms, file, boot
        known = load(file, boot)
        self._unhealthy: UnhealthyCards = remembered(known.unhealthy if known is not None else {}, terms)
        self._written = bool(self._unhealthy)
        self._saved = float("-inf")
        self._boards: dict[str, Board] = {}
        self._due = float("-inf")
        self._told: set[str] = set()
        self.monitored: int | None = None
        """How many cards tell of their events; None: not known yet."""

    def unhealthy(self) -> Mapping[str, str]:
        """Why a card gets no new allocations, by UUID of what is shared."""
        return {card: known.text for known in self._unhealthy.values() for card in known.cards}

    def reasons(self) -> Mapping[str, HealthReason]:
        """The same, for counting."""
        return {card: known.reason for known in self._unhealthy.values() for card in known.cards}

    @property
    def watched(self) -> bool:
        """Whether there is anything to listen for."""
        return self._terms.watched

    def cycle(self, news: Callable[[], None]) -> float:
        """A turn; `news` is called when a card has become unhealthy or well. Seconds until the next."""
        before = self.unhealthy()
        try:
            return self.turn(time.monotonic())
        finally:
            if self.unhealthy() != before:
                news()

    def turn(self, now: float) -> float:
        """Look if that is due, and listen for a moment; seconds until the next turn."""
        if now >= self._due:
            self._look(now)
            self._due = now + LOOK_SECONDS
        try:
            event = self._events.wait(WAIT_SECONDS)
        except MachineError as exc:
            self._once(f"cannot receive card error events ({exc}): keeping the last known card health")
            return WAIT_SECONDS
        if event is None:
            return 0.0
        self._event(event, now)
        return _BREATH_SECONDS

    def _look(self, now: float) -> None:
        if self._unhealthy and self._written and not self._file.exists():
            log.info("%s was removed: treating all unhealthy cards as healthy again", self._file)
            self._unhealthy = {}
        try:
            boards = self._events.boards()
        except MachineError as exc:
            self.monitored = 0
            self._once(f"cannot receive card error events ({exc}): keeping the last known card health")
            return
        self.monitored = self._events.monitored()
        if why := self._events.unmonitored():
            self._once(f"some cards do not report error events: {why}")
        self._boards |= {board.uuid: board for board in boards}
        before = self._unhealthy
        self._unhealthy, well = apply_boards(before, boards, self._terms, now)
        for uuid, why in well.items():
            log.info("card %s is healthy again (was: %s): %s", uuid, before[uuid].text, why)
        for uuid in self._unhealthy.keys() - before.keys():
            self._fell(uuid)
        if self._unhealthy != before or now - self._saved >= RENEW_SECONDS:
            self._save(now)

    def _event(self, event: CardEvent, now: float) -> None:
        if not critical(event, self._terms):
            log.debug("card %s: ignoring XID %d: caused by an application, or harmless", event.board, event.number)
            return
        if event.board not in self._boards:
            self._once(f"ignoring {event.kind} {event.number}: NVML does not name the card")
            return
        before = self._unhealthy
        self._unhealthy = apply_event(before, event, self._boards, self._terms, now)
        if event.board not in before:
            self._fell(event.board)
        self._save(now)

    def _fell(self, uuid: str) -> None:
        log.warning(
            "card %s is unhealthy: %s; no new allocations, running pods continue; to mark it healthy, remove %s",
            uuid,
            self._unhealthy[uuid].text,
            self._file,
        )

    def _once(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(text)
            log.warning("%s", text)

    def _save(self, now: float) -> None:
        """A lost file makes a card well at the next start: trouble is only told."""
        self._saved = now
        try:
            save(self._file, self._boot, Record(self._unhealthy))
        except OSError as exc:
            self._once(f"cannot write {self._file}: {exc}")
        else:
            self._written = True
