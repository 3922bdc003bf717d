# SPDX-License-Identifier: Apache-2.0
"""
`gpushare up` on a terminal: its overview, and both exporters to browse, this machine's and the simulated cluster's.

Decides which of the three is shown. Keys are read in a thread of their own, since the loop that makes frames waits for
its own clock; q and Ctrl-C become a SIGINT of the process.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Final

from dashboards.terminal.interactive.keys import INTERRUPT
from dashboards.terminal.interactive.loop import TICK_SECONDS, Browser, StartOptions
from dashboards.terminal.interactive.raw_terminal import Terminal
from dashboards.terminal.interactive.screen import cropped
from dashboards.terminal.memory_bar import ASCII, BLOCKS
from dashboards.terminal.options import detect_output
from dashboards.terminal.read.source import SourceSelection
from dashboards.terminal.up.overview import draw_overview
from dashboards.terminal.up.totals import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from rich.console import Console

    from isolation.contract.reading import Frame
    from isolation.contract.stack import StackStatus

OVERVIEW, MACHINE, CLUSTER = "1", "2", "3"
_KEYS: Final = ((OVERVIEW, "overview"), (MACHINE, "this machine"), (CLUSTER, "simulated cluster"))
_SECONDS: Final = 2.0


class StackScreen:
    """The terminal while `up` has it; a context manager that gives it back as it was."""

    def __init__(self, console: Console) -> None:
        self._console, self._signs = console, ASCII if console.options.ascii_only else BLOCKS
        self._terminal = Terminal(ends=())
        self._tally = Tally()
        self._shown = OVERVIEW
        self._latest: tuple[Frame, Sequence[tuple[str, str]], StackStatus | None] | None = None
        self._browsers: dict[str, Browser] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._follow_keys, daemon=True)

    def __enter__(self) -> Self:
        self._terminal.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._terminal.wake()
        self._thread.join(TICK_SECONDS)
        with self._lock:
            self._terminal.__exit__(kind, error, trace)

    def show(self, frame: Frame, notes: Sequence[tuple[str, str]] = (), stack: StackStatus | None = None) -> None:
        """Draw this frame, where the overview is shown."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            self._latest = (frame, notes, stack)
            if self._shown == OVERVIEW:
                self._draw()

    def _draw(self) -> None:
        size = self._terminal.size()
        browser = self._browsers.get(self._shown)
        self._terminal.show(browser.draw(size) if browser else self._overview(size))

    def _overview(self, size: tuple[int, int]) -> list[str]:
        if self._latest is None:
            return []
        width, height = size
        frame, notes, stack = self._latest
        made = draw_overview(frame, (width, height - 1), notes, stack, signs=self._signs, tally=self._tally)
        lines = []
        for line in made[: height - 1]:
            line.no_wrap, line.overflow = True, "crop"
            with self._console.capture() as captured:
                self._console.print(line, end="", soft_wrap=True)
            lines.append(cropped(captured.get(), width))
        lines += [""] * (height - 1 - len(lines))
        styled = detect_output(plain=self._console.no_color).styled
        keys = "  ".join(f"{styled(key, 'bold')} {does}" for key, does in (*_KEYS, ("q", "quit")))
        return [*lines, cropped(keys, width)]

    def _follow_keys(self) -> None:
        try:
            while not self._over.is_set():
                pressed = self._terminal.keys(TICK_SECONDS)
                with self._lock:
                    if self._over.is_set():
                        return
                    for key in pressed:
                        self._press(key)
                    self._draw()
        except BaseException as exc:  # noqa: BLE001 (raised again by the next frame)
            self._broken = exc

    def _press(self, key: str) -> None:
        browser = self._browsers.get(self._shown)
        typing = browser is not None and browser.state.typing
        if key == INTERRUPT or (key == "q" and browser is None):
            os.kill(os.getpid(), signal.SIGINT)
        elif key in (OVERVIEW, MACHINE, CLUSTER) and not typing:
            self._shown = key if key == OVERVIEW or self._browser(key) else self._shown
        elif browser is not None:
            browser.press(key, self._terminal.size())
            if browser.state.done:
                os.kill(os.getpid(), signal.SIGINT)

    def _browser(self, key: str) -> bool:
        """Whether there is something to browse there; it is read from now on."""
        url = self._url(key)
        if key not in self._browsers and url:
            begin = StartOptions("card" if key == MACHINE else "", seconds=_SECONDS)
            output = detect_output(plain=self._console.no_color)
            self._browsers[key] = Browser(SourceSelection(local=url), output, begin, self._terminal.wake, _KEYS)
        return key in self._browsers

    def _url(self, key: str) -> str:
        """The exporter of this machine, or the endpoint of the simulated cluster; empty: it does not run."""
        if self._latest is None:
            return ""
        _, notes, stack = self._latest
        if key == CLUSTER:
            return dict(notes).get("metrics", "").removesuffix("/metrics")
        parts = stack.processes if stack is not None else ()
        return next((part.url for part in parts if part.name == "exporter"), "").removesuffix("/metrics")
