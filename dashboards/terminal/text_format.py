# SPDX-License-Identifier: Apache-2.0
"""
Amounts, times and names as a terminal may show them.

Pure. Names come from outside: whatever is not printable is replaced, so that no pod name can move
the cursor or change the title. Columns are cut and padded by the cells that characters take.
"""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len, set_cell_size

from isolation.contract.quantity import GIB
from isolation.contract.text import printable

_DAY: Final = 86_400
_UNKNOWN: Final = "?"


def column(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells, cut with a dot where it is too long."""
    shown = printable(text)
    if cell_len(shown) > width:
        return set_cell_size(shown, max(0, width - 1)) + "." * min(width, 1)
    return " " * (width - cell_len(shown)) + shown if right else set_cell_size(shown, width)


def clock(seconds: float) -> str:
    """A time of the fleet's clock: `0:12:30`, `3d 04:12:30`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, _DAY)
    hours, minutes = divmod(rest // 60, 60)
    return f"{f'{days}d {hours:02}' if days else hours}:{minutes:02}:{rest % 60:02}"


def gib(amount: int | None) -> str:
    """GiB with one decimal, `?` where unknown; hundreds of them without one."""
    if amount is None:
        return _UNKNOWN
    value = amount / GIB
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"  # noqa: PLR2004 (four digits fill the column)


def at_least(amount: int | None, *, partly: bool) -> str:
    """GiB, with a plus where some of it is unknown."""
    return gib(amount) + ("+" if partly and amount is not None else "")


def percent(ratio: float | None) -> str:
    """A ratio as per cent, `?` where unknown."""
    return _UNKNOWN if ratio is None else f"{ratio:.0%}"


def indexes(cards: tuple[int, ...]) -> str:
    """Card indexes, runs of three and more as ranges: `0,2-5`."""
    runs: list[list[int]] = []
    for index in cards:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)  # noqa: PLR2004


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `1,213 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
