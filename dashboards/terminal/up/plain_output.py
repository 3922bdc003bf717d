# SPDX-License-Identifier: Apache-2.0
"""
A fleet as plain lines, for pipes and logs: one per happening, and now and then one on how things stand.

`fresh`, `status` are pure; `PlainLines` is the edge that writes. No colour and no cursor ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from dashboards.terminal.memory_bar import add_memory
from dashboards.terminal.text_format import clock, count
from dashboards.terminal.up.stack import stack_news, stack_status
from dashboards.terminal.up.tables import happening_text, memory_text
from dashboards.terminal.up.totals import Tally, standing
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from isolation.contract.reading import FleetEvent, Frame
    from isolation.contract.stack import StackStatus

STATUS_SECONDS: Final = 5.0
"""Of the reader's time, between two lines on how things stand."""
GAP: Final = "earlier events were dropped and are not shown"


def fresh(before: Sequence[FleetEvent], after: Sequence[FleetEvent]) -> tuple[Sequence[FleetEvent], bool]:
    """
    What is new in `after`, where both are the latest of one log that drops its oldest.

    True beside it: so much events in between that some of it may have been dropped unseen.
    """
    for kept in range(min(len(before), len(after)), 0, -1):
        if before[-kept] == after[0] and list(before[-kept:]) == list(after[:kept]):
            return after[kept:], False
    return after, bool(before)


def status(frame: Frame) -> str:
    """How things stand, in one line."""
    cards, pods = Tally().uses(frame.nodes)
    memory = add_memory(use.memory for use in cards)
    booting = sum(pool.booting for pool in frame.pools)
    over = sum(1 for pod in pods if pod.over)
    return (
        f"{clock(frame.at)} {count(standing(frame), 'node')}{f' and {booting:,} booting' if booting else ''}, "
        f"{count(len(cards), 'card')}, {count(len(pods), 'pod')} on cards, {len(frame.waiting):,} pending, "
        f"{over:,} over promise; "
        f"memory {memory_text(memory)}"
    )


class PlainLines:
    """Writes what is new to a stream; a context manager, like every screen."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], every: float = STATUS_SECONDS) -> None:
        self._stream = stream
        self._clock = clock
        self._every = every
        self._last: float | None = None
        self._seen: Sequence[FleetEvent] = ()
        self._said: set[tuple[str, str]] = set()
        self._stack: StackStatus | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to give back: every line is already out."""

    def show(self, frame: Frame, notes: Sequence[tuple[str, str]] = (), stack: StackStatus | None = None) -> None:
        """Write what events since the last frame, notes not said before, and how things stand if it is time."""
        if stack is not None:
            for line in stack_news(self._stack, stack):
                self._write(line)
            self._stack = stack
        news, gap = fresh(self._seen, frame.events)
        if gap:
            self._write(f"{clock(news[0].at if news else frame.at)} {GAP}")
        for event in news:
            self._write(f"{clock(event.at)} {happening_text(event)}")
        self._seen = frame.events
        for note in notes:
            if note not in self._said:
                self._said.add(note)
                self._write(f"embedded cluster: {' '.join(note)}")
        now = self._clock()
        if self._last is None or now - self._last >= self._every:
            self._last = now
            self._write(status(frame))
            if stack is not None:
                self._write(stack_status(stack))

    def _write(self, line: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        shown = printable(line).encode(encoding, "replace").decode(encoding)
        self._stream.write(f"{shown}\n")
        self._stream.flush()
