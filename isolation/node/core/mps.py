# SPDX-License-Identifier: Apache-2.0
"""
What is done with the MPS daemon of one card.

Pure. A daemon and its server are either as they should be, or both are ended and started again: every client of a
server that failed has failed with it (NVIDIA, "Multi-Process Service", error containment), so nothing is saved by
mending one of them. In this order: the server ends, the containers that were its clients end, the next server begins,
containers start again. A start has a name, the generation: it says which server a container was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ACTIVE: Final = frozenset({"ACTIVE", "INITIALIZING", ""})
"""What a server that takes clients says; a daemon that is too old to tell says nothing."""
UNANSWERED: Final = 3
"""So many times in a row, and a daemon hangs."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What containers need of one card's server."""

    uid: int | None = None
    """User whose containers have, or are about to get, parts of the card; None: nobody does."""
    bytes: int = 0
    """The largest limit of any of them: the server's own, which no client passes."""
    percent: int = 0
    """Likewise, of multiprocessors."""
    held: frozenset[str] = frozenset()
    """Generations that containers with processes were given."""


@dataclass(frozen=True, slots=True)
class Served:
    """The daemon as it was started."""

    generation: str
    uid: int
    bytes: int
    percent: int
    server: int
    """Process."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The daemon now."""

    alive: bool = False
    server: bool = False
    """Whether the process of our server lives."""
    status: str = ""
    """Of our server."""
    unanswered: int = 0
    """Times in a row that it did not answer."""


class MpsStep(StrEnum):
    """What is done next."""

    NOTHING = "nothing"
    END = "end"
    """End the daemon and its server."""
    BEGIN = "begin"
    """A daemon and a server, with these limits, under a new generation."""
    RAISE = "raise"
    """Raise the server's limits; clients that are there keep theirs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """And why, for people."""

    step: MpsStep
    why: str = ""
    failed: bool = False
    """The server cannot go on, and its clients fail with it."""


def decide(wish: Wish | None, served: Served | None, now: Observed) -> Decision:
    """The next step for one card; `wish` None: it is not to be served, and no container is left that was."""
    if served is None:
        return _without(wish, now)
    if fault := _fault(now):
        return Decision(MpsStep.END, fault, failed=True)
    if wish is None:
        return Decision(MpsStep.END, "the card is not served by MPS any more")
    if wish.uid is not None and wish.uid != served.uid:
        return Decision(MpsStep.END, f"its containers run as user {wish.uid}, the server serves user {served.uid}")
    if wish.bytes > served.bytes or wish.percent > served.percent:
        return Decision(MpsStep.RAISE)
    return Decision(MpsStep.NOTHING)


def _without(wish: Wish | None, now: Observed) -> Decision:
    if now.alive:
        return Decision(MpsStep.END, "another process started it")
    if wish is None or wish.uid is None:
        return Decision(MpsStep.NOTHING)
    if wish.held:
        return Decision(MpsStep.NOTHING, "waiting until containers of the server before have ended")
    return Decision(MpsStep.BEGIN)


def _fault(now: Observed) -> str:
    """Why the server cannot go on; empty: it can."""
    if not now.alive:
        return "the MPS daemon died"
    if not now.server:
        return "the MPS server died"
    if now.unanswered >= UNANSWERED:
        return "the MPS daemon does not answer"
    if now.status not in ACTIVE:
        return f"a client's fault stopped the MPS server ({now.status[:20]})"
    return ""
