# SPDX-License-Identifier: Apache-2.0
"""
The states of a machine from purchase to return, and the only ways from one to the next.

A node is usable when its cards are registered, not when its kubelet says Ready: in between it
would be counted as room that no pod can have. Pure; what a state looks like outside is the
world's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoscaler.core.limits import Limits


class State(StrEnum):
    """Where a machine stands."""

    REQUESTED = "requested"
    """Asked of the provider, which has not answered with a machine yet."""
    BOOTING = "booting"
    NO_DEVICES = "no-devices"
    """The node is there, its cards are not."""
    READY = "ready"
    DRAINING = "draining"
    """Cordoned; its pods move to the homes reserved for them."""
    DELETING = "deleting"
    GONE = "gone"
    FAILED = "failed"
    """Did not come up in time, or the provider had none."""


MOVES: Final = MappingProxyType(
    {
        State.REQUESTED: frozenset({State.BOOTING, State.FAILED, State.DELETING}),
        State.BOOTING: frozenset({State.NO_DEVICES, State.FAILED, State.DELETING}),
        State.NO_DEVICES: frozenset({State.READY, State.DRAINING, State.FAILED, State.DELETING}),
        State.READY: frozenset({State.DRAINING, State.NO_DEVICES, State.FAILED}),
        State.DRAINING: frozenset({State.READY, State.DELETING, State.FAILED}),
        State.DELETING: frozenset({State.GONE}),
        State.FAILED: frozenset({State.DRAINING, State.DELETING}),
        State.GONE: frozenset(),
    }
)
"""The whole table: what is not here does not happen."""

COMING: Final = frozenset({State.REQUESTED, State.BOOTING, State.NO_DEVICES})
"""Paid for and not usable yet: counted as room, so that nothing is bought twice."""
STANDING: Final = COMING | {State.READY, State.DRAINING}
"""What counts towards the size of a pool."""


class IllegalMove(RuntimeError):  # noqa: N818 (named for what happened, like a chess move)
    """A transition that the table does not have: broken plumbing, never a normal event."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a pool; `name` is also the name of its node."""

    name: str
    pool: str
    state: State = State.REQUESTED
    since: float = 0.0

    def to(self, state: State, at: float) -> Machine:
        """The machine in its next state."""
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self.name}: illegal transition from {self.state} to {state}")
        return replace(self, state=state, since=at)


def overdue(machine: Machine, limits: Limits, now: float) -> State | None:
    """Where a machine goes that has stayed too long where it is; None while it is in time."""
    longest = {
        State.REQUESTED: (limits.max_node_provision_seconds, State.FAILED),
        State.BOOTING: (limits.max_node_provision_seconds, State.FAILED),
        State.NO_DEVICES: (limits.max_device_registration_seconds, State.FAILED),
        State.DRAINING: (limits.drain_timeout_seconds, State.READY),
    }.get(machine.state)
    if longest is None or now - machine.since < longest[0]:
        return None
    return longest[1]
