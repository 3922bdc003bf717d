# SPDX-License-Identifier: Apache-2.0
"""
Who may act, decided from a Lease and a monotonic clock.

Pure. The server's version of the Lease orders all writes; its timestamps are for people and are
never compared. A candidate counts from the moment at which it saw the Lease change, a holder
from the moment at which it *sent* its last successful renewal: a holder stops `duration - act`
seconds before anybody else may begin, however wrong the clocks of the machines are set, and a
process that slept finds its time used up. A Lease that did not exist gives no right before it is
`duration` old: it may have been deleted under a holder who does not know yet.

Refuses to know how a Lease is stored, and what the holder does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

NEVER: Final = float("-inf")
_LONGEST_DURATION: Final = 600.0  # a Lease that says more was written by nobody of ours


@dataclass(frozen=True, slots=True)
class Terms:
    """How long everything may take, in seconds; the defaults tolerate clocks that run 20 % apart."""

    duration: float = 8.0
    """Others wait this long after the last change that they saw."""
    act: float = 6.0
    """The holder acts at most so long after sending its last successful renewal."""
    retry: float = 1.5
    """Between two looks at the Lease."""
    request: float = 2.0
    """One look or one write."""

    def __post_init__(self) -> None:
        if not 0 < self.retry + self.request < self.act < self.duration <= _LONGEST_DURATION:
            raise ValueError("Lease timing must be 0 < retry + request < act < duration <= 600 s")


@dataclass(frozen=True, slots=True)
class Record:
    """What the Lease says."""

    version: str
    holder: str = ""
    duration: float = 0.0
    epoch: int = 0
    """Number of changes of the holder: grows with each, so that an old holder's work can be told."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What one candidate knows."""

    record: Record | None = None
    """As seen last; None where there is no Lease, or none was seen yet."""
    seen: float = NEVER
    """When this version was seen first."""
    until: float = NEVER
    """We may act before this moment."""
    ripe: float = NEVER
    """A renewal sent before this moment gives no right: the Lease is too young."""


class Step(Enum):
    """What to do next about the Lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def saw(standing: Standing, record: Record | None, me: str, now: float, terms: Terms) -> Standing:
    """After a look at the Lease whose answer came at `now`: another's name in it ends our time at once."""
    if record is None or record.holder != me:
        until = ripe = NEVER
    else:
        # Ours, where there was none: a creation of ours whose answer was lost.
        until, ripe = standing.until, now + terms.duration if standing.record is None else standing.ripe
    if record is not None and standing.record is not None and record.version == standing.record.version:
        return Standing(record, standing.seen, until, ripe)
    return Standing(record, now, until, ripe)


def step(standing: Standing, me: str, now: float, terms: Terms) -> Step:
    """What a candidate that has just looked does next."""
    record = standing.record
    if record is None:
        return Step.CREATE
    if record.holder == me:
        return Step.RENEW
    if not record.holder:
        return Step.TAKE
    wait = record.duration if 0 < record.duration <= _LONGEST_DURATION else terms.duration
    return Step.TAKE if now >= standing.seen + wait else Step.WAIT


def written(standing: Standing, record: Record, sent: float, now: float, terms: Terms) -> Standing:
    """After the server took our write, which we began to send at `sent`."""
    if standing.record is None:
        return Standing(record, now, NEVER, now + terms.duration)
    until = sent + terms.act if sent >= standing.ripe else NEVER
    return Standing(record, now, max(standing.until, until), standing.ripe)


def given_up(standing: Standing) -> Standing:
    """We do not act any more, whatever the Lease says."""
    return replace(standing, until=NEVER)


def wish(standing: Standing, me: str, terms: Terms) -> Record:
    """What we would write: the version is the one that must still be there."""
    old = standing.record
    if old is None:
        return Record("", me, terms.duration, 0)
    return Record(old.version, me, terms.duration, old.epoch + (old.holder != me))


def release(standing: Standing) -> Record | None:
    """What to write so that the next one need not wait; None where we never had the right to act."""
    old = standing.record
    return None if old is None or standing.until == NEVER else replace(old, holder="", duration=1.0)
