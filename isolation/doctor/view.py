# SPDX-License-Identifier: Apache-2.0
"""
A report as text: a table on a terminal, plain lines in a pipe, JSON for programs.

Shows; judges nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from isolation.doctor.checks.finding import FindingState, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from isolation.doctor.checks.finding import Finding

FORMAT: Final = 1
_STYLES: Final = {
    FindingState.OK: "green",
    FindingState.WARNING: "yellow",
    FindingState.PROBLEM: "bold red",
    FindingState.UNKNOWN: "magenta",
}


def as_json(findings: Sequence[Finding], status: int) -> str:
    """For programs; `format` grows when a field changes its meaning."""
    listed = [{"check": f.check, "state": f.state.value, "evidence": f.evidence, "fix": f.fix} for f in findings]
    return json.dumps({"format": FORMAT, "status": status, "findings": listed}, indent=2)


def plain(findings: Sequence[Finding]) -> str:
    """One line for each finding, and one below it for what to do."""
    lines = []
    for found in findings:
        lines.append(f"{found.state.value:<8} {found.check:<24} {found.evidence}")
        if found.fix:
            lines.append(f"{'':<8} {'':<24} -> {found.fix}")
    return "\n".join([*lines, summary(findings)])


def show(findings: Sequence[Finding], console: Console) -> None:
    """A table that fits the terminal."""
    from rich.table import Table  # noqa: PLC0415 (only where there is a terminal)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for found in findings:
        said = Text(found.evidence)
        if found.fix:
            said.append(f"\n-> {found.fix}", style="italic")
        table.add_row(Text(found.state.value, style=_STYLES[found.state]), Text(found.check), said)
    console.print(table)
    console.print(Text(summary(findings)))
