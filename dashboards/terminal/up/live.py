# SPDX-License-Identifier: Apache-2.0
"""
The edge that owns the terminal: the latest frame on the alternate screen, redrawn in place.

Decides where a frame goes: a live screen on a terminal, plain lines anywhere else. What is drawn
is `view`'s decision; how often, the caller's.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dashboards.terminal.memory_bar import ASCII, BLOCKS
from dashboards.terminal.options import interactive
from dashboards.terminal.up.overview import draw_overview
from dashboards.terminal.up.plain_output import PlainLines
from dashboards.terminal.up.totals import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self, TextIO

    from dashboards.terminal.interactive.stack_screen import StackScreen
    from isolation.contract.reading import Frame
    from isolation.contract.stack import StackStatus


class LiveScreen:
    """The terminal while it is ours; a context manager that gives it back as it was."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._signs = ASCII if console.options.ascii_only else BLOCKS
        self._tally = Tally()
        self._live = Live(Text(), console=console, screen=True, auto_refresh=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, frame: Frame, notes: Sequence[tuple[str, str]] = (), stack: StackStatus | None = None) -> None:
        """Draw this frame at the size that the terminal has now; the machine's processes above the cluster."""
        lines = draw_overview(frame, self._console.size, notes, stack, signs=self._signs, tally=self._tally)
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        self._live.update(Group(*lines), refresh=True)


def screen_for(stream: TextIO, clock: Callable[[], float]) -> StackScreen | LiveScreen | PlainLines:
    """A screen with keys if somebody sits there, a live one on other terminals, plain lines elsewhere."""
    console = Console(file=stream)
    if stream is sys.stdout and interactive() and not console.is_dumb_terminal:
        made: StackScreen = import_module("dashboards.terminal.interactive.stack_screen").StackScreen(console)
        return made
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console)
    return PlainLines(stream, clock)
