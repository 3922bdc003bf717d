# SPDX-License-Identifier: Apache-2.0
"""
Since when pods wait, over a restart of the agent: nobody's patience begins anew because we were replaced.

Pure. Within one run of the machine its own seconds are compared, which nobody can set. Over a reboot the wall
clock tells how long it took; one that went back, or was never right, tells nothing, and the wait counts anew.
So it does where the text cannot be read: that is a nuisance, and no reason to doubt the book beside it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from isolation.node.world import Moment

KEY: Final = "waiting"
"""Beside the entries, in the book's text."""
MOST: Final = 4096
"""More pods than any node has."""


@dataclass(slots=True)
class Waits:
    """Seconds of the machine, by UID."""

    seen: dict[str, float] = field(default_factory=dict)
    """Since when a pod is known."""
    blocked: dict[str, float] = field(default_factory=dict)
    """Since when a pod waits for somebody else's end."""

    def only(self, uids: set[str]) -> None:
        """Nobody else is here any more."""
        self.seen = {uid: since for uid, since in self.seen.items() if uid in uids}
        self.blocked = {uid: since for uid, since in self.blocked.items() if uid in uids}


def record(waits: Waits, at: Moment) -> dict[str, Any]:
    """As it lies on the disk; empty where nobody waits."""
    if not waits.seen and not waits.blocked:
        return {}
    known = {"seen": _rounded(waits.seen), "blocked": _rounded(waits.blocked)}
    return {KEY: {"boot": at.boot, "now": round(at.now, 3), "wall": round(at.wall, 3), **known}}


def revived(text: str, at: Moment) -> Waits:
    """What `record` said, in the seconds of this run of the machine; nothing that it does not say clearly."""
    try:
        said = json.loads(text)[KEY]
        now, wall = float(said["now"]), float(said["wall"])
        shift = 0.0 if at.boot and said["boot"] == at.boot else at.now - now - max(0.0, at.wall - wall)
        if not math.isfinite(shift):
            return Waits()
        return Waits(_read(said["seen"], shift, at.now), _read(said["blocked"], shift, at.now))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Waits()


def _rounded(since: dict[str, float]) -> dict[str, float]:
    return {uid: round(moment, 3) for uid, moment in since.items()}


def _read(said: dict[str, Any], shift: float, now: float) -> dict[str, float]:
    """Moments that are past."""
    found = {uid: float(moment) + shift for uid, moment in list(said.items())[:MOST]}
    return {uid: min(moment, now) for uid, moment in found.items() if math.isfinite(moment)}
