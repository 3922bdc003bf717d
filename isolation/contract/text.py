# SPDX-License-Identifier: Apache-2.0
"""Text that others wrote (names of pods and processes, answers of servers), as it may be shown or logged."""

from __future__ import annotations


def printable(text: str, most: int | None = None) -> str:
    """The text on one line, `?` for each control character: it cannot forge a log line or steer a terminal."""
    text = text[:most]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
