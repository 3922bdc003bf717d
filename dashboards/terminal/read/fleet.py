# SPDX-License-Identifier: Apache-2.0
"""
A cluster as the views see it: nodes with cards, pods with their parts of cards, what could not be read.

Values only, smaller than the model: a fleet of thousands of nodes is read for one screen. Knows neither
where they come from nor how they are shown; `None` means cannot tell, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isolation.contract.model import Card, Mode, Slice
    from isolation.contract.reservation import Reservation


@dataclass(frozen=True, slots=True)
class CardRequest:
    """What a pod asks of cards: the same of each."""

    cards: int = 0
    bytes: int = 0
    core: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One machine with cards."""

    name: str
    mode: Mode
    cards: tuple[Card, ...]
    ready: bool = True
    cordoned: bool = False
    serving: bool = True
    pool: str = ""
    address: str = ""
    draining: bool = False
    """The autoscaler empties it."""

    @property
    def state(self) -> str:
        """Why no pod may start there, in a word; empty: it may."""
        if not self.ready:
            return "not ready"
        if self.cordoned:
            return "cordoned"
        if self.draining:
            return "draining"
        return "" if self.serving else "no agent"


@dataclass(frozen=True, slots=True)
class FleetPod:
    """One pod that has to do with cards and has not ended."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty: it waits."""
    wanted: CardRequest
    slices: tuple[Slice, ...] = ()
    """Empty on a bound pod: its allocation record is missing or cannot be read."""
    fault: str = ""
    """Why no fleet could serve it; empty: one could."""
    reservation: str = ""
    """Name of the reservation that it has used up."""
    partly: bool = False
    """How much some of its containers were promised is not known: it has at least this."""

    @property
    def key(self) -> str:
        """`namespace/name`; a command of `gpushare run` has no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Fleet:
    """One reading."""

    nodes: tuple[FleetNode, ...] = ()
    pods: tuple[FleetPod, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    partly: bool = False
    """Not every pod could be read: what is promised is at least what is known."""
    notes: tuple[str, ...] = ()
    """What could not be read, for people."""
    selected: frozenset[str] | None = None
    """UIDs of the pods that are to be shown; None: all. What is promised counts them all."""
