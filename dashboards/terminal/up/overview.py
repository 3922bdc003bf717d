# SPDX-License-Identifier: Apache-2.0
"""The overview of `gpushare up`: the machine's processes, where there are any, above the simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.terminal.memory_bar import BLOCKS
from dashboards.terminal.up.screen import screen
from dashboards.terminal.up.stack import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from dashboards.terminal.memory_bar import BarCharacters
    from dashboards.terminal.up.totals import Tally
    from isolation.contract.reading import Frame
    from isolation.contract.stack import StackStatus


def draw_overview(
    frame: Frame,
    size: tuple[int, int],
    notes: Sequence[tuple[str, str]] = (),
    stack: StackStatus | None = None,
    *,
    signs: BarCharacters = BLOCKS,
    tally: Tally | None = None,
) -> list[Text]:
    """Lines of the whole screen, whose size is (columns, lines)."""
    width, height = size
    above = [] if stack is None else machine(stack, width, height, signs)
    return [*above, *screen(frame, width, height - len(above), notes, signs=signs, tally=tally)]
