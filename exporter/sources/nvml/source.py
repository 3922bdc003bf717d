# SPDX-License-Identifier: Apache-2.0
"""
All cards of the machine through NVML: one long-lived session, restarted after a failure.

`NvmlSource.read` is called once a cycle, in a thread of its own (`exporter.runner`). Between cycles a second thread
reads the driver's samples of cards that have processes, because the driver keeps them for seconds only. Every call to
NVML is made under one lock, so that a session never ends under a call; a call that hangs makes the others wait, and
the cycle goes on without this source.

`Session` keeps handles and MIG layouts, spreads slow readings over the cycles, one card at a time, and
counts XIDs. A lost card costs the others nothing. What the figures mean: `exporter.pipeline.snapshot`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from exporter.pipeline.busy_time import LOOK_BACK_MICROS, BusyMeter
from exporter.pipeline.snapshot import CardSample, MachineSample
from exporter.sources.errors import SourceError
from exporter.sources.nvml.card import CardState, NvmlCard
from exporter.sources.nvml.events import NvmlEvents, count_xid
from exporter.sources.nvml.health import CardHealth
from exporter.sources.nvml.library import CardGoneError, Library, LostError
from isolation.host.card_events import CardEvent, CardEventKind

if TYPE_CHECKING:
    from pathlib import Path

_log: Final = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 0.15
"""Just more often than NVML samples."""
MAX_DUTY: Final = 0.02
"""Part of the time that sampling may take; beyond it the beat slows down."""
_IDLE_SECONDS: Final = 60.0
"""Without a reading for so long nobody wants samples."""
_LOST_SECONDS: Final = 60.0
"""A card that was reset is seen by those who start NVML afterwards: while one is lost, do so this often."""
_CLOSE_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 15.0
_ASK_AGAIN_SECONDS: Final = 600.0
_MPS_SERVER: Final = "nvidia-cuda-mps-server"


class NvmlSource:
    """The cards; `hardware` is a simulated machine's file. `beat` 0: no sampling between readings."""

    def __init__(
        self,
        hardware: Path | None = None,
        *,
        beat: float = SAMPLE_SECONDS,
        health: CardHealth | None = None,
        groups: frozenset[str] = frozenset(),
    ) -> None:
        self._hardware = hardware
        self._interval = beat
        self._gate = Lock()
        self._ended = Event()
        self._state = NvmlState(health=health or CardHealth(), groups=groups)
        self._session: Session | None = None
        self._started_at = 0.0
        self._read_at = 0.0
        self._sampler: Thread | None = None

    def read(self, now: float) -> MachineSample:
        """Every card, at about one moment; `now` in monotonic seconds."""
        with self._gate:
            session = self._current(now)
            try:
                facts = session.read(now, time.time_ns() // 1000)
            except (CardGoneError, LostError) as exc:
                self._end()
                self._state.health.reloaded()
                raise SourceError(f"NVML failed: {exc}; restarting it in the next cycle") from None
            self._read_at = time.monotonic()
            self._start_sampler()
        return facts

    def close(self) -> None:
        """End NVML, unless a call hangs in it: that must not keep anybody from leaving."""
        self._ended.set()
        leaving = Thread(target=self._leave, name="nvml end", daemon=True)
        leaving.start()
        leaving.join(_CLOSE_SECONDS)

    def _leave(self) -> None:
        with self._gate:
            self._end()

    def _current(self, now: float) -> Session:
        """NVML, started if it is not."""
        if self._session is not None and self._session.lost and now - self._started_at >= _LOST_SECONDS:
            self._end()
        if self._session is None:
            self._started_at = now
            try:
                self._session = Session(self._hardware, self._state)
            except (CardGoneError, LostError) as exc:
                raise SourceError(f"cannot initialize NVML: {exc}") from None
        return self._session

    def _end(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _start_sampler(self) -> None:
        if self._interval and self._sampler is None:
            self._sampler = Thread(target=self._sample, name="nvml samples", daemon=True)
            self._sampler.start()

    def _sample(self) -> None:
        beat = self._interval
        while not self._ended.wait(beat):
            begun = time.monotonic()
            if begun - self._read_at > _IDLE_SECONDS:
                continue
            with self._gate:
                begun = time.monotonic()
                self._sample_once()
            beat = max(self._interval, (time.monotonic() - begun) / MAX_DUTY)

    def _sample_once(self) -> None:
        if self._session is None:
            return
        try:
            self._session.sample(time.time_ns() // 1000)
        except Exception:  # noqa: BLE001 (the next sample may well be had; nobody begins this thread again)
            _log.debug("cannot take NVML samples: the next reading reports the cause", exc_info=True)


@dataclass(slots=True)
class NvmlState:
    """What outlives a start of NVML."""

    cards: dict[str, CardState] = field(default_factory=dict)
    """By UUID."""
    uuids: dict[int, str] = field(default_factory=dict)
    """Of cards that were seen, by index."""
    health: CardHealth = field(default_factory=CardHealth)
    groups: frozenset[str] = frozenset()
    """Of further figures that are asked for, as `--collect` names them."""

    def past(self, uuid: str, micros: int) -> CardState:
        """Of one card; begun here for one that is new."""
        if uuid not in self.cards:
            self.cards[uuid] = CardState(BusyMeter(micros - LOOK_BACK_MICROS))
        return self.cards[uuid]


@dataclass(slots=True)
class _Slot:
    """One place on the bus."""

    index: int
    card: NvmlCard | None = None
    ours: bool = True
    """Whether we may see it: containers are given some cards."""
    instances: tuple[NvmlCard, ...] | None = None
    """None: nothing divides it."""
    slow_due: float = float("-inf")


class Session:
    """NVML started; `close` ends it. GoneError where it must be restarted."""

    def __init__(self, hardware: Path | None, state: NvmlState) -> None:
        self._state = state
        self._library = Library(hardware)
        self._again_due: float | None = None
        self._names: dict[int, bool] = {}
        self.lost = False
        """Whether a card was lost at the last reading."""
        try:
            self._events = NvmlEvents(self._library)
            self._driver = str(self._library.ask(None, "nvmlSystemGetDriverVersion") or "")
            count = self._library.ask(None, "nvmlDeviceGetCount")
        except (CardGoneError, LostError):
            self._library.close()
            raise
        if count is None:
            self._library.close()
            raise SourceError(
                "NVML does not report the number of cards: check that the driver is available in this container"
            )
        self._slots = [_Slot(index) for index in range(count)]

    def close(self) -> None:
        """End it, whatever state it is in."""
        try:
            for slot in self._slots:
                if slot.card is not None:
                    slot.card.close()
            self._events.close()
        except (CardGoneError, LostError):
            pass
        finally:
            self._library.close()

    def sample(self, micros: int) -> None:
        """Take the samples of every card with processes."""
        for slot in self._slots:
            if slot.card is not None and slot.instances is None:
                try:
                    slot.card.sample(self._state.past(slot.card.uuid, micros), micros)
                except LostError:
                    continue  # the next reading tells

    def read(self, now: float, micros: int) -> MachineSample:
        """Every card, at about one moment."""
        if self._again_due is None or now >= self._again_due:
            self._again_due = now + _ASK_AGAIN_SECONDS
            self._library.ask_again()
        self._prepare(now)
        self._note_events(now, micros)
        cards: list[CardSample] = []
        divided: list[CardSample] = []
        for slot in self._slots:
            if not slot.ours:
                continue
            board, parts = self._read_slot(slot, now, micros)
            cards += parts if slot.instances is not None else [board]
            divided += [board] if slot.instances is not None else []
        cards, divided = self._with_health(cards, divided, now)
        all_cards = [*cards, *divided]
        answering = [card for card in all_cards if not card.lost]
        if answering and all(card.free_bytes is None for card in answering):
            raise CardGoneError("no card reports its memory")
        self.lost = any(card.lost for card in all_cards)
        self._forget({card.uuid for card in all_cards})
        servers = self._mps_servers(cards)
        mps = bool(servers) or any(one.kind == "mps" for card in cards for one in card.processes or ())
        return MachineSample(tuple(cards), self._driver, mps, servers, tuple(divided))

    def _prepare(self, now: float) -> None:
        """Find cards that are missing; ask all new ones, and the one that has waited longest, the slow questions."""
        for slot in self._slots:
            if slot.card is None and slot.ours:
                self._find(slot)
        due = [slot for slot in self._slots if slot.card is not None and now >= slot.slow_due]
        new = [slot for slot in due if slot.slow_due == float("-inf")]
        for slot in new or sorted(due, key=lambda slot: slot.slow_due)[:1]:
            slot.slow_due = now + SLOW_SECONDS
            self._slow(slot)

    def _find(self, slot: _Slot) -> None:
        try:
            handle = self._library.handle(slot.index)
            slot.ours = handle is not None
            if handle is not None:
                slot.card = NvmlCard(self._library, handle, slot.index)
                self._events.register(handle, slot.card.uuid)
                self._state.uuids[slot.index] = slot.card.uuid
        except LostError:
            slot.card = None

    def _slow(self, slot: _Slot) -> None:
        if slot.card is None:
            return
        try:
            slot.card.read_slow(self._state.groups)
            if not slot.card.is_divided():
                slot.instances = None
                return
            known = {card.uuid: card for card in slot.instances or ()}
            slot.instances = tuple(known.get(card.uuid, card) for card in slot.card.instances())
        except LostError:
            return

    def _read_slot(self, slot: _Slot, now: float, micros: int) -> tuple[CardSample, list[CardSample]]:
        """The physical card, and its MIG instances."""
        card = slot.card
        if card is None:
            return self._missing(slot.index), []
        past = self._state.past(card.uuid, micros)
        parts = [(part, self._state.past(part.uuid, micros)) for part in slot.instances or ()]
        try:
            if slot.instances is None:
                return card.read_whole(past, now, micros), []
            board = card.read_board(past, now)
            return card.with_total(board), [part.read_instance(own, now) for part, own in parts]
        except LostError:
            return card.lost(past), [part.lost(own) for part, own in parts]

    def _missing(self, index: int) -> CardSample:
        """A card that never answered; under its name if it did before NVML was restarted."""
        present = {slot.card.uuid for slot in self._slots if slot.card is not None}
        uuid = self._state.uuids.get(index) or self._state.health.uuid(index)
        past = self._state.cards.get(uuid) if uuid not in present else None
        return CardSample(
            uuid=uuid if uuid and uuid not in present else f"lost-{index}",
            index=index,
            model="",
            total_bytes=0,
            reserved_bytes=None,
            free_bytes=None,
            processes=None,
            busy=None,
            xids=past.xids if past is not None else {},
            unhealthy="lost",
            lost=True,
        )

    def _note_events(self, now: float, micros: int) -> None:
        """Count XIDs, and judge the cards' health by every event; what the driver wants done is asked at once."""
        slots = {slot.card.uuid: slot for slot in self._slots if slot.card is not None}
        instances = {
            (uuid, part.gpu_instance): part.uuid for uuid, slot in slots.items() for part in slot.instances or ()
        }
        for uuid, instance, xid in self._events.drain():
            if xid is not None:
                past = self._state.past(instances.get((uuid, instance), uuid), micros)
                past.xids = count_xid(past.xids, xid)
            self._state.health.add_event(
                CardEvent(uuid, CardEventKind.ECC) if xid is None else CardEvent(uuid, CardEventKind.XID, xid), now
            )
            if uuid in slots:
                self._slow(slots[uuid])

    def _with_health(
        self, cards: list[CardSample], divided: list[CardSample], now: float
    ) -> tuple[list[CardSample], list[CardSample]]:
        """The same with their health; an instance is as healthy as its card."""
        health, lost = self._state.health, {card.uuid for card in (*cards, *divided) if card.lost}
        answering = [slot for slot in self._slots if slot.card is not None and slot.card.uuid not in lost]
        boards = [slot.card.board(slot.instances) for slot in answering if slot.card is not None]
        health.look(boards, self._state.uuids, now)

        def with_health(card: CardSample) -> CardSample:
            return card if card.lost else replace(card, unhealthy=health.why(card.parent or card.uuid))

        return [with_health(card) for card in cards], [with_health(card) for card in divided]

    def _forget(self, all_cards: set[str]) -> None:
        """Of MIG instances that are gone nothing is kept; cards come back."""
        cards = {*all_cards, *self._state.uuids.values()}
        for uuid in [uuid for uuid in self._state.cards if uuid not in cards]:
            del self._state.cards[uuid]

    def _mps_servers(self, cards: list[CardSample]) -> frozenset[int]:
        """Who calls itself one; each process is asked for its name once."""
        pids = {one.pid for card in cards for one in card.processes or ()}
        self._names = {pid: self._names[pid] if pid in self._names else self._is_server(pid) for pid in pids}
        return frozenset(pid for pid, server in self._names.items() if server)

    def _is_server(self, pid: int) -> bool:
        try:
            name = self._library.ask(None, "nvmlSystemGetProcessName", pid)
        except LostError:
            return False
        return name is not None and str(name).split("\0")[0].split(" ")[0].rpartition("/")[2] == _MPS_SERVER
