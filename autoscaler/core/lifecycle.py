# SPDX-License-Identifier: Apache-2.0
"""
The states of a machine from purchase to return, and the only ways from one to the next.

A node is usable when its cards are registered, not when its kubelet says Ready: in between it
would be counted as room that no pod can have. Pure; how a state is observed is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoscaler.core.limits import ScalingLimits


class MachineState(StrEnum):
    """A machine's state."""

    REQUESTED = "requested"
    """Requested from the provider, which has not created it yet."""
    BOOTING = "booting"
    NO_DEVICES = "no-devices"
    """The node is there, its cards are not."""
    READY = "ready"
    DRAINING = "draining"
    """Cordoned; its pods move to their reservations."""
    DELETING = "deleting"
    GONE = "gone"
    FAILED = "failed"
    """Did not come up in time, or the provider had none."""


TRANSITIONS: Final = MappingProxyType(
    {
        MachineState.REQUESTED: frozenset({MachineState.BOOTING, MachineState.FAILED, MachineState.DELETING}),
        MachineState.BOOTING: frozenset({MachineState.NO_DEVICES, MachineState.FAILED, MachineState.DELETING}),
        MachineState.NO_DEVICES: frozenset(
            {MachineState.READY, MachineState.DRAINING, MachineState.FAILED, MachineState.DELETING}
        ),
        MachineState.READY: frozenset({MachineState.DRAINING, MachineState.NO_DEVICES, MachineState.FAILED}),
        MachineState.DRAINING: frozenset({MachineState.READY, MachineState.DELETING, MachineState.FAILED}),
        MachineState.DELETING: frozenset({MachineState.GONE}),
        MachineState.FAILED: frozenset({MachineState.DRAINING, MachineState.DELETING}),
        MachineState.GONE: frozenset(),
    }
)
"""All legal transitions."""

COMING: Final = frozenset({MachineState.REQUESTED, MachineState.BOOTING, MachineState.NO_DEVICES})
"""Not usable yet, but counted as capacity, so that nothing is ordered twice."""
STANDING: Final = COMING | {MachineState.READY, MachineState.DRAINING}
"""What counts towards the size of a pool."""


class IllegalTransition(RuntimeError):  # noqa: N818 (named for what happened, like a chess move)
    """A transition that the table does not have: broken plumbing, never a normal event."""


@dataclass(frozen=True, slots=True)
class PoolMachine:
    """One machine of a pool; `name` is also the name of its node."""

    name: str
    pool: str
    state: MachineState = MachineState.REQUESTED
    since: float = 0.0

    def to(self, state: MachineState, at: float) -> PoolMachine:
        """The machine in its next state."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.name}: illegal transition from {self.state} to {state}")
        return replace(self, state=state, since=at)


def overdue(machine: PoolMachine, limits: ScalingLimits, now: float) -> MachineState | None:
    """Where a machine goes that has stayed too long where it is; None while it is in time."""
    longest = {
        MachineState.REQUESTED: (limits.max_node_provision_seconds, MachineState.FAILED),
        MachineState.BOOTING: (limits.max_node_provision_seconds, MachineState.FAILED),
        MachineState.NO_DEVICES: (limits.max_device_registration_seconds, MachineState.FAILED),
        MachineState.DRAINING: (limits.drain_timeout_seconds, MachineState.READY),
    }.get(machine.state)
    if longest is None or now - machine.since < longest[0]:
        return None
    return longest[1]
