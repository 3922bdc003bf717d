# SPDX-License-Identifier: Apache-2.0
"""
Why this process may not act at this moment, whatever the cluster looks like.

Decides the order of the reasons: the first that holds is given. It is asked before a cycle's steps and again right
before each write, so that a switch thrown or a Lease lost in between stops the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.kube.switch import Position


class Cause(StrEnum):
    """A closed set: those that are conditions stand in the metric with `autoscaler.kube.core.conditions.Kind`."""

    STOPPING = "stopping"
    STANDBY = "standby"
    """Another replica has the Lease, or nobody knows who has."""
    SWITCH = "switch"
    """Switched off, or the switch cannot be followed."""
    STATE = "state"
    """The saved state has not been read, is corrupt, or was overwritten by another client."""
    DRY_RUN = "dry_run"


@dataclass(frozen=True, slots=True)
class Inhibition:
    """One reason, for programs and for people."""

    cause: Cause
    text: str

    @property
    def condition(self) -> bool:
        """Whether somebody should look: nobody asked for this by an option of ours or by running two replicas."""
        return self.cause in (Cause.SWITCH, Cause.STATE)


@dataclass(frozen=True, slots=True)
class Authority:
    """What an inhibition is decided from."""

    stopping: bool
    epoch: int | None
    """Of our Lease; None: we have no right to act."""
    holder: str | None
    position: Position
    where: str
    """The switch's name, for people."""
    dry_run: bool
    """By the options; the switch overrules it."""
    loaded: int | None
    """The epoch for which the saved state has been read; None: for none."""
    trouble: str = ""
    """What keeps the state from being read or written."""

    @property
    def is_dry_run(self) -> bool:
        """Whether it is a dry run."""
        return self.dry_run if self.position.dry_run is None else self.position.dry_run


def find_inhibition(now: Authority) -> Inhibition | None:
    """Why not to act now; None: nothing of ours is in the way."""
    if now.stopping:
        return Inhibition(Cause.STOPPING, "this process is shutting down")
    if now.epoch is None:
        holder = "unknown" if now.holder is None else now.holder or "none"
        return Inhibition(Cause.STANDBY, f"this replica is on standby (Lease holder: {holder})")
    if now.position.problem:
        return Inhibition(Cause.SWITCH, f"cannot use the switch {now.where}: {now.position.problem}")
    if now.position.enabled is False:
        return Inhibition(
            Cause.SWITCH, f"switched off by {now.where}; set enabled=true there or delete it to switch on"
        )
    if now.is_dry_run:
        by = now.where if now.position.dry_run is not None else "--dry-run"
        return Inhibition(Cause.DRY_RUN, f"dry run (set by {by}): actions are logged, not taken")
    if now.trouble:
        return Inhibition(Cause.STATE, now.trouble)
    if now.loaded != now.epoch:
        return Inhibition(Cause.STATE, "the saved state has not been read yet")
    return None
