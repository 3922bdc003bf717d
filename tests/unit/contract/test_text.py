# SPDX-License-Identifier: Apache-2.0
"""Text of others stays on one line and within its bound."""

from __future__ import annotations

import pytest

from isolation.contract.text import printable


@pytest.mark.parametrize(
    ("text", "most", "mark", "expected"),
    [
        ("grün 卡", None, "?", "grün 卡"),
        ("a\nb\x1b[2Jc\u2028d\u202ee\udc80f", None, "?", "a?b?[2Jc?d?e?f"),
        ("a\r\nb", None, " ", "a  b"),
        ("abc\n", 3, "?", "abc"),
        ("\x00" * 9, 2, "?", "??"),
        ("", 0, "?", ""),
    ],
)
def test_what_is_not_printable_is_replaced_after_the_cut(text, most, mark, expected):
    """A line break, an escape sequence, a change of direction, half a character: none of them reaches a log."""
    assert expected == printable(text, most, mark)
