# SPDX-License-Identifier: Apache-2.0
"""
A program at a terminal of its own, and what stands on its screen.

Understands the few sequences that our screens use, and fails at any other, which terminals might take each their way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len, set_cell_size
from support.children import at_terminal
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

_PIECE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|([^\x1b]+)|(\x1b)", re.DOTALL)
_TORN = re.compile(rb"(?:\x1b\[?\??[0-9;]*|[\xc0-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf7][\x80-\xbf]{0,2})$")
"""What a read may end with before it is whole: a sequence, a character."""
_MODES = {"7": "wrap", "25": "cursor", "1049": "alternate"}


class TerminalScreen:
    """The program and its screen; a context manager that ends it."""

    def __init__(self, *command: object, columns: int = 80, lines: int = 24, **more: Any) -> None:
        self.process, self._ours = at_terminal(*command, rows=lines, columns=columns, **more)
        self.columns, self.height = columns, lines
        self.modes = {"wrap": True, "cursor": True, "alternate": False}
        self.styles: set[str] = set()
        self.before = ""
        """What was written outside of the alternate screen."""
        self._line, self._rest, self._rows = 0, b"", [""] * lines
        self.attributes = termios.tcgetattr(self._ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        os.close(self._ours)

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """As if somebody pulled at the window's corner."""
        self.columns, self.height = columns, lines
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.killpg(os.tcgetpgrp(self._ours), signal.SIGWINCH)

    def shows(self, *texts: str, without: Iterable[str] = ()) -> str:
        """The screen as soon as it has all of these."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (all(text in self.text() for text in texts) and not any(text in self.text() for text in without)):
            assert time.monotonic() < end, f"{texts} not on the screen:\n{self.text()}\n{self.before}"
            alive = self.process.poll() is None
            more = self._more(0.2)
            assert more or alive, (
                f"ended with {self.process.returncode}: {texts} not shown:\n{self.text()}\n{self.before}"
            )
        return self.text()

    def ends(self) -> int:
        """The exit status, with everything read; the terminal's own settings are as they were."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, f"does not end:\n{self.text()}"
            self._more(0.1)
        while self._more(0.05):
            pass
        return self.process.returncode

    def restored(self) -> bool:
        """Whether the terminal is as it was found."""
        given_back = {"wrap": True, "cursor": True, "alternate": False}
        return self.modes == given_back and termios.tcgetattr(self._ours) == self.attributes

    def text(self) -> str:
        """What stands on the screen."""
        return "\n".join(row.rstrip() for row in self._rows[: self.height])

    def _more(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other side is closed
            return False
        whole = self._rest + data
        torn = _TORN.search(whole)
        cut = torn.start() if torn else len(whole)
        self._rest = whole[cut:]
        self._take(whole[:cut].decode())
        return True

    def _take(self, text: str) -> None:
        for private, numbers, letter, words, escape in _PIECE.findall(text):
            assert not escape, f"an escape that begins nothing: {text!r}"
            if words:
                self._write(words)
            elif private:
                assert numbers in _MODES, numbers
                self.modes[_MODES[numbers]] = letter == "h"
                if _MODES[numbers] == "alternate":
                    self._rows = [""] * self.height
            elif letter == "m":
                self.styles.add(numbers)
            elif letter == "H":
                self._line = (
                    min(int(numbers.split(";")[0]), self.height) - 1
                )  # a frame of a larger window may be on its way
            elif letter == "J":
                self._rows = [""] * self.height
            else:
                assert "K" == letter, letter
                self._rows[self._line] = ""

    def _write(self, words: str) -> None:
        if not self.modes["alternate"]:
            self.before += words
            return
        assert words.isprintable(), repr(words)
        self._rows += [""] * (self._line + 1 - len(self._rows))
        row = self._rows[self._line] + words
        assert not self.modes["wrap"]
        self._rows[self._line] = set_cell_size(row, min(self.columns, cell_len(row)))
