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
class LeaseTiming:
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
class LeaseRecord:
    """What the Lease says."""

    version: str
    holder: str = ""
    duration: float = 0.0
    epoch: int = 0
    """Number of changes of the holder: grows with each, so that an old holder's writes are recognized."""


@dataclass(frozen=True, slots=True)
class CandidateState:
    """What one candidate knows."""

    record: LeaseRecord | None = None
    """As read last; None where there is no Lease, or it was not read yet."""
    observed: float = NEVER
    """When we read this version first."""
    until: float = NEVER
    """We may act before this moment."""
    matures: float = NEVER
    """A renewal sent before this moment gives no right: the Lease is too young."""


class LeaseStep(Enum):
    """What to do next about the Lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def observe(
    state: CandidateState, record: LeaseRecord | None, me: str, now: float, timing: LeaseTiming
) -> CandidateState:
    """After a look at the Lease whose answer came at `now`: another's name in it ends our time at once."""
    if record is None or record.holder != me:
        until = matures = NEVER
    else:
        # Ours, where there was none: a creation of ours whose answer was lost.
        until, matures = state.until, now + timing.duration if state.record is None else state.matures
    if record is not None and state.record is not None and record.version == state.record.version:
        return CandidateState(record, state.observed, until, matures)
    return CandidateState(record, now, until, matures)


def choose_step(state: CandidateState, me: str, now: float, timing: LeaseTiming) -> LeaseStep:
    """What a candidate that has just looked does next."""
    record = state.record
    if record is None:
        return LeaseStep.CREATE
    if record.holder == me:
        return LeaseStep.RENEW
    if not record.holder:  # given back: nobody acts on it
        return LeaseStep.TAKE
    wait = record.duration if 0 < record.duration <= _LONGEST_DURATION else timing.duration
    return LeaseStep.TAKE if now >= state.observed + wait else LeaseStep.WAIT


def record_write(
    state: CandidateState, record: LeaseRecord, sent: float, now: float, timing: LeaseTiming
) -> CandidateState:
    """After the server took our write, which we began to send at `sent`."""
    if state.record is None:
        return CandidateState(record, now, NEVER, now + timing.duration)
    until = sent + timing.act if sent >= state.matures else NEVER
    return CandidateState(record, now, max(state.until, until), state.matures)


def stop_acting(state: CandidateState) -> CandidateState:
    """We do not act any more, whatever the Lease says."""
    return replace(state, until=NEVER)


def build_record(state: CandidateState, me: str, timing: LeaseTiming) -> LeaseRecord:
    """What we would write: the version is the one that must still be there."""
    old = state.record
    if old is None:
        return LeaseRecord("", me, timing.duration, 0)
    return LeaseRecord(old.version, me, timing.duration, old.epoch + (old.holder != me))


def build_release(state: CandidateState) -> LeaseRecord | None:
    """What to write so that the next one need not wait; None where we never had the right to act."""
    old = state.record
    # the API server refuses a duration of 0
    return None if old is None or state.until == NEVER else replace(old, holder="", duration=1.0)
