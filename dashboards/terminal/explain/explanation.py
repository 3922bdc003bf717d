# SPDX-License-Identifier: Apache-2.0
"""
What there is to say of one pod, as values: where it is, or why it waits and what would help.

No decision is taken here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isolation.contract.model import Placement, Refusal, Request, Slice, Why


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An Event of the pod."""

    at: float
    """Seconds since the epoch; 0: not known."""
    kind: str
    reason: str
    text: str
    times: int
    who: str


@dataclass(frozen=True, slots=True)
class ExplainedPod:
    """The pod, by its own object."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    created: float
    scheduler: str
    request: Request | Refusal
    slices: tuple[Slice, ...] = ()
    dialect: str = ""
    """Of the system in whose words it was written; empty: in ACK's."""
    foreign: str = ""
    """Systems whose words it still has."""
    asked: str = ""
    """Those words, where admission translated them."""
    record: str = ""
    """Which record names its cards: the annotation's name; empty: none that can be read."""
    record_fault: str = ""
    """Why a record that is there cannot be read."""
    promise: str = ""
    reservation: str = ""
    marked: bool = False
    """Carries the label by which everything of ours watches it."""
    gates: tuple[str, ...] = ()
    deleting: bool = False
    unscheduled: str = ""
    """What the scheduler wrote into its condition."""
    owner_uid: str = ""
    refused: tuple[str, ...] = ()
    """Containers that do not start, each with the runtime's or the node agent's reason."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whatever its record says, its cards are free again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class CardCapacity:
    """What is left of one card, and whether that is enough."""

    index: int
    offered: int
    free: int
    core: int
    """Percent of compute that is left."""
    fits: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeReason:
    """Why the pod does not fit one node."""

    name: str
    pool: str
    why: Why | None
    """None: the node would take it."""
    text: str
    cards: tuple[CardCapacity, ...] = ()
    """Empty where no card is the matter."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing that would help; tried out on a copy of the cluster."""

    kind: str
    """room, smaller, split, mode, node, pool, move: a closed set for programs."""
    text: str


@dataclass(frozen=True, slots=True)
class PendingReason:
    """Why a pod is pending."""

    verdict: Placement | Refusal
    """A placement: there is room now."""
    nodes: tuple[NodeReason, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    reserved: str = ""
    """A reservation that is made out to it: its name, and where."""


@dataclass(frozen=True, slots=True)
class BoundState:
    """Where a bound pod is, and what it uses there."""

    mode: str
    """What its node serves; empty: the node is not known."""
    used: tuple[tuple[str, int, int | None, int | None], ...] | None
    """Container, card, bytes used, bytes promised, as the node's exporter tells; None: nobody was heard."""
    containers: tuple[tuple[str, tuple[Slice, ...]], ...] = ()
    neighbours: tuple[str, ...] = ()
    """Other pods on its cards."""
    over: tuple[int, ...] = ()
    """Cards on which more is promised than they offer."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that `gpushare explain` shows of a pod."""

    subject: ExplainedPod
    faults: tuple[str, ...]
    waits: PendingReason | None = None
    bound: BoundState | None = None
    events: tuple[PodEvent, ...] = ()
    notes: tuple[str, ...] = ()
