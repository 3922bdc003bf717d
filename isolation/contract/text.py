# SPDX-License-Identifier: Apache-2.0
"""Text that others wrote (names of pods and processes, answers of servers), as it may be shown or logged."""

from __future__ import annotations


def printable(text: str, most: int | None = None, mark: str = "?") -> str:
    """
    The first `most` characters on one line, `mark` for each control character.

    Such text cannot forge a log line or steer a terminal. Lone surrogates are marked too: the result can be encoded.
    """
    text = text[:most]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else mark for letter in text)
