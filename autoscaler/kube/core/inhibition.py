# SPDX-License-Identifier: Apache-2.0
"""
Why this process may not act at this moment, whatever the cluster looks like.

Decides the order of the reasons: the first one that stands is told. It is asked before a turn's steps and again
right before each write, so that a switch thrown or a Lease lost in between stops the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.kube.switch import Position


class Why(StrEnum):
    """A closed set: those that are doubts stand in the metric beside `autoscaler.kube.core.conditions.Kind`."""

    STOPPING = "stopping"
    STANDBY = "standby"
    """Another replica has the Lease, or nobody knows who has."""
    SWITCH = "switch"
    """Switched off, or the switch cannot be followed."""
    STATE = "state"
    """What was remembered has not been read, cannot be believed, or was overwritten by somebody else."""
    DRY_RUN = "dry_run"


@dataclass(frozen=True, slots=True)
class Hold:
    """One reason, for programs and for people."""

    why: Why
    text: str

    @property
    def doubt(self) -> bool:
        """Whether somebody should look: nobody asked for this by an option of ours or by running two replicas."""
        return self.why in (Why.SWITCH, Why.STATE)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a hold is decided from."""

    stopping: bool
    epoch: int | None
    """Of our Lease; None: we have no right to act."""
    holder: str | None
    position: Position
    where: str
    """The switch's name, for people."""
    dry_run: bool
    """By the options; the switch overrules it."""
    inherited: int | None
    """The epoch for which what was remembered has been read; None: for none."""
    trouble: str = ""
    """What keeps what is remembered from being read or written."""

    @property
    def only_says(self) -> bool:
        """Whether it is a dry run."""
        return self.dry_run if self.position.dry_run is None else self.position.dry_run


def hold_of(facts: Facts) -> Hold | None:
    """Why not to act now; None: nothing of ours is in the way."""
    if facts.stopping:
        return Hold(Why.STOPPING, "this process is shutting down")
    if facts.epoch is None:
        holder = "unknown" if facts.holder is None else facts.holder or "none"
        return Hold(Why.STANDBY, f"this replica is on standby (Lease holder: {holder})")
    if facts.position.problem:
        return Hold(Why.SWITCH, f"cannot use the switch {facts.where}: {facts.position.problem}")
    if facts.position.enabled is False:
        return Hold(Why.SWITCH, f"switched off by {facts.where}; set enabled=true there or delete it to switch on")
    if facts.only_says:
        by = facts.where if facts.position.dry_run is not None else "--dry-run"
        return Hold(Why.DRY_RUN, f"dry run (set by {by}): actions are logged, not taken")
    if facts.trouble:
        return Hold(Why.STATE, facts.trouble)
    if facts.inherited != facts.epoch:
        return Hold(Why.STATE, "the saved state has not been read yet")
    return None
