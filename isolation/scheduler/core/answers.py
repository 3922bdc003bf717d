# SPDX-License-Identifier: Apache-2.0
"""
What the scheduler's books answer, as frozen values.

No decision is taken here. Node and pod names are as the caller gave them; reasons are sentences for
people and the same for all nodes alike, because kube-scheduler counts nodes by the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isolation.contract.model import Placement


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Every node that was asked about, in exactly one of three places."""

    fit: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Not now: pods that end, or are pre-empted, may change it."""
    hopeless: dict[str, str] = field(default_factory=dict)
    """Whatever ends there, this node cannot take the pod as it is."""


@dataclass(frozen=True, slots=True)
class AssumedPlacement:
    """Room that was taken for a pod before anybody was told."""

    placement: Placement
    reservation: str = ""
    """Name of the stored reservation that it uses up; empty: none."""
    kept: str = ""
    """What kept the room for it until now: the stored reservation, or one of the books' own."""


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """An assumed pod that has not been seen bound."""

    uid: str
    namespace: str
    name: str
    at: float
    """When the room was taken."""
    assumed: AssumedPlacement
    confirmed: bool = False
    """The server has said that the pod is bound; only the watch has not told it yet."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods that would end on one node so that another finds room there."""

    uids: tuple[str, ...]
    violations: int = 0
    """How many of them a disruption budget protects, by the proposer's count."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pods to evict on one node, and the room that is to be reserved there before."""

    node: str
    victims: tuple[str, ...]
    placement: Placement


@dataclass(frozen=True, slots=True)
class InspectedPod:
    """What one pod (or reservation) has of one card, in units."""

    name: str
    namespace: str
    used: int


@dataclass(frozen=True, slots=True)
class InspectedCard:
    """One card as the books have it, in units."""

    index: int
    uuid: str
    total: int
    used: int
    pods: tuple[InspectedPod, ...]


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """One node as the books have it, in units."""

    name: str
    cards: tuple[InspectedCard, ...]

    @property
    def total(self) -> int:
        """Units that all cards offer."""
        return sum(card.total for card in self.cards)

    @property
    def used(self) -> int:
        """Units promised; more than `total` where the node is over-committed."""
        return sum(card.used for card in self.cards)


@dataclass(frozen=True, slots=True)
class OvercommittedCard:
    """A card of which more is promised than it offers: an alarm."""

    node: str
    uuid: str
    bytes: int
    """By how much."""
    core: int = 0
