# SPDX-License-Identifier: Apache-2.0
"""
Keys and readings into frames: `gpushare top` on a terminal, until somebody quits.

Joins the reader, the state and the terminal; decides only when a frame is drawn, and where somebody begins.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dashboards.terminal.interactive.background_reader import BackgroundReader
from dashboards.terminal.interactive.history import History
from dashboards.terminal.interactive.navigation import Navigation, NavigationEntry, press_key
from dashboards.terminal.interactive.raw_terminal import Terminal
from dashboards.terminal.interactive.screen import DrawnFrame, FrameInput, Status, draw
from dashboards.terminal.read.source import NoSuchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.terminal.interactive.rows import ReadingSummary
    from dashboards.terminal.read.source import SourceSelection
    from dashboards.terminal.table import TextOutput

TICK_SECONDS: Final = 1.0
_MANY_CARDS: Final = 64
"""More than this are listed by node first."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Where somebody begins, and how often is read."""

    by: str = ""
    """List; empty: cards, or nodes where there are many."""
    of: str = ""
    """The node or namespace to which it is limited."""
    sort: str = "name"
    node: str = ""
    seconds: float = 5.0


class Browser:
    """One source and whoever looks at it."""

    def __init__(
        self,
        source: SourceSelection,
        output: TextOutput,
        begin: StartOptions,
        wake: Callable[[], None],
        keys: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`wake` is called where there is something new to draw; `keys` are further ones for the last line."""
        self._source, self._paper, self._begin, self._keys = source, output, begin, keys
        self.state = Navigation((NavigationEntry(begin.by or "card", begin.of),), begin.sort)
        self._history = History()
        self._model: ReadingSummary | None = None
        self._drawn = DrawnFrame([], [], 1)
        namespace = begin.of if begin.by == "pod" else ""
        self.reader = BackgroundReader(source, (namespace, begin.node), begin.seconds, wake)
        self.reader.start()

    def draw(self, size: tuple[int, int]) -> list[str]:
        """The lines of a frame; raises what broke the reader, and NoSuchError for a node that is not there."""
        if self.reader.broken is not None:
            raise self.reader.broken
        model = self.reader.model
        if model is not None and model is not self._model:
            if self._model is None:
                self._begun(model)
            self._model = model
            self._history.add(model.reading.usage)
        trouble = self.reader.trouble.message if self.reader.trouble else ""
        clock = time.strftime("%H:%M:%S", time.localtime(model.reading.usage.read_at if model else None))
        status = Status(self._source.shown, clock, trouble, self.reader.reading, self._keys)
        self._drawn = draw(FrameInput(model, self.state, self._history, status, self._paper), size)
        return self._drawn.lines

    def press(self, key: str, size: tuple[int, int]) -> None:
        """One key; what it changes is drawn at once, since the next key goes by it."""
        self.state = press_key(self.state, key, self._drawn.rows, self._drawn.page)
        self.reader.paused = self.state.paused
        self.reader.want_processes(_node_of(self._model, self.state))
        self.draw(size)

    def _begun(self, model: ReadingSummary) -> None:
        """Where the first reading leads."""
        node = self._begin.node
        if node and all(one.name != node for one in model.reading.fleet.nodes):
            raise NoSuchError(f"node {node} is unknown or has no cards")
        if not self._begin.by and len(model.cards) > _MANY_CARDS:
            self.state = replace(self.state, places=(NavigationEntry("node"),))


def browse(source: SourceSelection, output: TextOutput, begin: StartOptions) -> None:
    """Until q or Ctrl-C. Raises UnreadableSourceError where not even the first reading succeeds."""
    with Terminal() as terminal:
        browser = Browser(source, output, begin, terminal.wake)
        while not browser.state.done:
            if browser.reader.model is None and browser.reader.trouble is not None:
                raise browser.reader.trouble
            terminal.show(browser.draw(terminal.size()))
            for key in terminal.keys(TICK_SECONDS):
                browser.press(key, terminal.size())


def _node_of(model: ReadingSummary | None, state: Navigation) -> str:
    """Whose processes are to be seen."""
    if model is None:
        return ""
    if state.place.kind == "one card":
        card = model.card(state.place.of)
        return card.node.name if card else ""
    pod = model.pod(state.place.of) if state.place.kind == "one pod" else None
    return pod.pod.node if pod else ""
