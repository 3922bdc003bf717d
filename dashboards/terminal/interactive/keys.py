# SPDX-License-Identifier: Apache-2.0
"""
Keys of a terminal out of the bytes that it sends.

Pure. A key is a character, or the name of one that has no character; what is not known is left out.

Source: xterm, "Control Sequences", function keys; the same in the other terminals that people use.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

UP, DOWN, LEFT, RIGHT = "up", "down", "left", "right"
PAGE_UP, PAGE_DOWN, HOME, END = "page up", "page down", "home", "end"
ENTER, ESCAPE, BACKSPACE, TAB, BACK_TAB, INTERRUPT = "enter", "escape", "backspace", "tab", "back tab", "interrupt"
_SEQUENCES: Final = MappingProxyType(
    {
        **{f"\x1b[{letter}": name for letter, name in zip("ABCD", (UP, DOWN, RIGHT, LEFT), strict=True)},
        **{f"\x1bO{letter}": name for letter, name in zip("ABCD", (UP, DOWN, RIGHT, LEFT), strict=True)},
        "\x1b[5~": PAGE_UP,
        "\x1b[6~": PAGE_DOWN,
        "\x1b[Z": BACK_TAB,
        **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), HOME),
        **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), END),
    }
)
_CONTROLS: Final = MappingProxyType(
    {"\r": ENTER, "\n": ENTER, "\t": TAB, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x1b": ESCAPE, "\x03": INTERRUPT}
    | {"\x04": PAGE_DOWN, "\x06": PAGE_DOWN, "\x15": PAGE_UP, "\x02": PAGE_UP}
)
_ONE: Final = re.compile(r"\x1b(?:\[[0-9;?]*[@-~]|O[A-Z])|[\s\S]")


def parse_keys(sent: bytes) -> tuple[str, ...]:
    """The keys in their order; an escape that begins nothing is the key itself."""
    found = []
    for match in _ONE.finditer(sent.decode("utf-8", "ignore")):
        text = match[0]
        name = _SEQUENCES.get(text) or _CONTROLS.get(text) or (text if text.isprintable() else "")
        if name:
            found.append(name)
    return tuple(found)
