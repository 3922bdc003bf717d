"""
What is seen: one reading of cards and containers, and one frame of a whole fleet.

The seam between those who measure (exporter, embedded cluster) and those who show (metrics,
terminal, dashboards): neither imports the other. `None` means cannot tell and is shown as
absent, never as 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerReading:
    """One container on one card."""

    namespace: str
    pod: str
    container: str
    promise: str
    uuid: str
    index: int
    exclusive: bool
    allocated_bytes: int
    used_bytes: int | None
    allocated_core_ratio: float | None
    """Promised part of the card's compute, 0..1; None where none was promised."""
    used_core_ratio: float | None
    source: str
    """Where the used figures come from: nvml, accounting, library, simulation."""
    over_limit_seconds: float = 0.0
    """How long this container has used more memory than promised, up to this reading."""


@dataclass(frozen=True, slots=True)
class CardReading:
    """One card."""

    uuid: str
    index: int
    model: str
    total_bytes: int
    reserved_bytes: int
    used_bytes: int | None
    allocated_bytes: int
    offered_bytes: int
    unattributed_bytes: int | None
    """Measured in processes outside any hold; never the residual."""
    utilisation_ratio: float | None
    power_watts: float | None
    temperature_celsius: float | None
    healthy: bool


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One machine."""

    node: str
    pool: str
    mode: str
    isolation: str
    """What enforces promises here: none, library, mps, kernel."""
    cards: tuple[CardReading, ...]
    containers: tuple[ContainerReading, ...]
    state: str = "ready"


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One node pool as the autoscaler sees it."""

    name: str
    nodes: int
    booting: int
    smallest: int
    largest: int
    mode: str = ""
    """What its nodes serve, known also while there are none."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod without a place, and why."""

    pod: str
    seconds: float
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that was done, and why: for the screen, the log and the tests."""

    at: float
    kind: str
    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything a person is shown at one moment."""

    at: float
    """Seconds of the fleet's own clock."""
    nodes: tuple[NodeReading, ...]
    pools: tuple[PoolReading, ...]
    waiting: tuple[Waiting, ...]
    happenings: tuple[Happening, ...]
    """The latest, oldest first."""
    counts: tuple[tuple[str, int], ...] = ()
    """Totals since the start, such as pods placed, nodes bought, moves."""
    phantoms: int | None = None
    """Pods that wait now although the sums over some node's cards have room for them: no card set has."""
