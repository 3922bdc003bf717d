# SPDX-License-Identifier: Apache-2.0
"""
What the doctor says of one thing: its state, what shows it, and what to do.

Pure. Decides when a whole report is good, bad or unknown. What is read from a machine or a cluster is
other people's text: it is cut to a length and to printable letters here, once. "Cannot tell" is a state
of its own, never "ok" and never "problem". What is looked at, and how, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LONGEST: Final = 600
_NAMED: Final = 5
"""Names in one sentence; a person who wants all of them asks the cluster."""


class FindingState(StrEnum):
    """How a thing stands."""

    OK = "ok"
    WARNING = "warning"
    """Works, but not as one would expect."""
    PROBLEM = "problem"
    """A promise would be broken, or nothing would run."""
    UNKNOWN = "unknown"
    """Cannot tell."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """`area.subject`, for programs."""
    state: FindingState
    evidence: str
    fix: str = ""
    """What to do; empty only where all is well."""


def ok(check: str, evidence: str) -> Finding:
    """As it should be."""
    return Finding(check, FindingState.OK, clean(evidence))


def warning(check: str, evidence: str, fix: str) -> Finding:
    """Works, but not as one would expect."""
    return Finding(check, FindingState.WARNING, clean(evidence), clean(fix))


def problem(check: str, evidence: str, fix: str) -> Finding:
    """Breaks a promise, or nothing runs."""
    return Finding(check, FindingState.PROBLEM, clean(evidence), clean(fix))


def unknown(check: str, evidence: str, fix: str) -> Finding:
    """Not known, and how to find out."""
    return Finding(check, FindingState.UNKNOWN, clean(evidence), clean(fix))


def clean(text: str) -> str:
    """One printable line of bounded length."""
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return " ".join(printable(cut, mark=" ").split())


def named(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = sorted(set(names))
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, thing: str) -> str:
    """A number and what it counts, as a person says it."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def exit_status(findings: Sequence[Finding]) -> int:
    """1: a problem; 3: none, and something unknown; 0: neither."""
    states = {finding.state for finding in findings}
    if FindingState.PROBLEM in states:
        return 1
    return 3 if FindingState.UNKNOWN in states or not findings else 0


def summary(findings: Sequence[Finding]) -> str:
    """How many of which, in one line."""
    counts = {state: sum(finding.state is state for finding in findings) for state in FindingState}
    parts = [f"{count} {state.value}" for state, count in counts.items() if count]
    return ", ".join(parts) or "no checks were run"
