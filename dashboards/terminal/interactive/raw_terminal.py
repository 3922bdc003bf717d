# SPDX-License-Identifier: Apache-2.0
"""
The edge that owns the terminal while somebody browses: keys in, frames out, and everything as it was at the end.

Decides nothing about what is shown. However the block is left (an error, SIGTERM, SIGHUP, Ctrl-C, Ctrl-Z), the
terminal gets back its modes, its cursor and what stood on it.

Sources: termios(3); xterm, "Control Sequences", DEC private modes 7, 25 and 1049.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dashboards.terminal.interactive.keys import INTERRUPT, parse_keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType
    from typing import Self

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_SUSPEND: Final = b"\x1a"
_ESCAPE: Final = b"\x1b"
_REST_SECONDS: Final = 0.03
"""For the rest of a key's bytes, where a network has torn them apart."""
_MAX_BYTES: Final = 4096
_LOCAL_FLAGS, _INPUT_FLAGS, _CONTROLS = 3, 0, 6
"""Places in what tcgetattr returns."""


class Terminal:
    """Standard input and output as a screen; for the main thread."""

    def __init__(self, ends: Sequence[int] = (signal.SIGTERM, signal.SIGHUP)) -> None:
        """`ends`: signals that end the process here; others are their owner's."""
        self._ends = ends
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._modes: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._shown: list[str] = []
        self._size = (0, 0)
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._ended) for number in self._ends}
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self.wake())
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wake(self) -> None:
        """End a wait for keys; from any thread, also from a signal."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._woken, b".")

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(self._out)
            if columns and lines:
                return columns, lines
        return 80, 24

    def keys(self, seconds: float) -> tuple[str, ...]:
        """What was pressed within so many seconds at most; empty also where somebody woke us."""
        ready, _, _ = select.select([self._in, self._wake], [], [], seconds)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, _MAX_BYTES)
        if self._in not in ready:
            return ()
        sent = os.read(self._in, _MAX_BYTES)
        if not sent:  # nobody is there any more
            return (INTERRUPT,)
        if sent.endswith(_ESCAPE) and select.select([self._in], [], [], _REST_SECONDS)[0]:
            sent += os.read(self._in, _MAX_BYTES)
        if _SUSPEND in sent:
            self._suspend()
        return parse_keys(sent)

    def show(self, lines: Sequence[str]) -> None:
        """One frame: a line for each of the terminal's; what has not changed is not sent again."""
        size = self.size()
        old = self._shown if size == self._size else []
        made = "" if old else "\x1b[2J"
        for at, line in enumerate(lines):
            if at >= len(old) or old[at] != line:
                made += f"\x1b[{at + 1};1H\x1b[0m\x1b[2K{line}"
        self._shown, self._size = list(lines), size
        self._write(made)

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(self._out, data) :]

    def _take(self) -> None:
        self._modes = termios.tcgetattr(self._in)
        raw = termios.tcgetattr(self._in)
        raw[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        raw[_INPUT_FLAGS] &= ~(termios.IXON | termios.ICRNL)
        raw[_CONTROLS][termios.VMIN], raw[_CONTROLS][termios.VTIME] = 1, 0
        termios.tcsetattr(self._in, termios.TCSADRAIN, raw)
        self._shown = []
        self._write(_ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may have gone
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._modes)

    def _suspend(self) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _ended(self, number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)
