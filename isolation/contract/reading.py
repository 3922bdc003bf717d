# SPDX-License-Identifier: Apache-2.0
"""
What is seen: one reading of cards and containers, and one frame of a whole fleet.

The seam between those who measure (exporter, embedded cluster) and those who show (metrics,
terminal, dashboards): neither imports the other. `None` means cannot tell and is shown as
absent, never as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a driver tells of a card besides memory, load and power; `--collect` chooses what is exposed."""

    recovery_action: int | None = None
    """nvmlDeviceGpuRecoveryAction_t: what the driver wants done with the card; 0: nothing."""
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_sent_bytes: int | None = None
    """Counters since the driver was loaded, like all bytes and errors here."""
    pcie_received_bytes: int | None = None
    pcie_errors: tuple[tuple[str, int], ...] = ()
    """By kind: correctable, non_fatal, fatal."""
    nvlink_links: int | None = None
    """Links that are active."""
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    memory_celsius: float | None = None
    remapped_rows: tuple[tuple[str, int], ...] = ()
    """By kind of error: corrected, uncorrected."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: tuple[tuple[str, int], ...] = ()
    """By kind of error: single_bit, double_bit."""
    sm_activity: float | None = None
    """This and below by GPM (Hopper and later), 0..1."""
    sm_occupancy: float | None = None
    tensor_activity: float | None = None
    memory_bandwidth: float | None = None


NO_HARDWARE: Final = Hardware()


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
    """Where the used memory comes from: nvml, library, allocation, simulation; empty: unknown."""
    over_limit_seconds: float = 0.0
    """How long this container has used more memory than promised, up to this reading."""
    core_source: str = ""
    """Likewise for the used compute."""
    allocation_source: str = ""
    """Who wrote the promise down: agent, run, kubelet."""
    policy: str = ""
    """How compute is shared (fixed, burst ...); empty: it is not limited."""
    pod_uid: str = ""
    peak_bytes: int | None = None
    """Most memory that was seen in use, by our samples or by the driver's accounting."""
    peak_source: str = ""
    """nvml or accounting."""
    energy_joules: float | None = None
    """Counter since we first saw this container on the card."""
    compute_seconds: float | None = None
    """Compute time of the card, likewise."""
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    over_limit_episodes: int | None = None
    denied: int | None = None
    """Allocations that the container's own library refused: the tenant's word."""
    overrun_seconds: float | None = None
    """GPU time that kernels too long to be stopped took beyond the promised compute, by the same word."""
    limit_core_ratio: float | None = None
    """Most of the card's compute that it may use, 0..1; None: it is not limited."""
    unknown: tuple[str, ...] = ()
    """Fields above that cannot be told although their type wants a number: 0 there, and not shown."""


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
    allocatable_bytes: int
    unattributed_bytes: int | None
    """Measured in processes outside any hold; never the residual."""
    utilisation_ratio: float | None
    power_watts: float | None
    temperature_celsius: float | None
    healthy: bool
    memory_utilisation_ratio: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Counter since the driver was loaded."""
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    busy_seconds: float | None = None
    """Time in which a kernel ran on the card, since whoever reads began."""
    throttled_seconds: tuple[tuple[str, float], ...] | None = None
    """Time for which clocks were throttled, by reason, since whoever reads began."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xids: tuple[tuple[int, int], ...] = ()
    """XID errors since whoever reads began: number of the error, and how many of it."""
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    largest_free_bytes: int | None = None
    """Largest promise that still fits, in whole units."""
    exclusive: bool | None = None
    """Whether a container has the whole card; None: who has it cannot be told."""
    holders: int | None = None
    """Containers to which something of the card is promised."""
    attributable: bool | None = None
    """Whether used memory can be told apart by container here."""
    breaches: tuple[tuple[str, int], ...] | None = None
    """Breaches that go on now, by each kind that can be checked, 0 too; None: none can."""
    lost: bool = False
    """Fallen off the bus."""
    unhealthy: str = ""
    """Why, in one word: xid, ecc, driver, row_remap, lost; empty: healthy."""
    processes: int | None = None
    hardware: Hardware = NO_HARDWARE
    parent: str = ""
    """UUID of the card of which this is a MIG instance."""
    profile: str = ""
    minor: int | None = None
    """N of /dev/nvidiaN."""
    unknown: tuple[str, ...] = ()
    """Fields above that cannot be told although their type wants a number: 0 there, and not shown."""


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
    driver: str = ""
    host_pids: bool | None = None
    """Whether the reader sees the host's processes; without that nobody's memory can be told from NVML's pids."""
    mps: bool | None = None
    """Whether an MPS server runs here."""
    breach_counts: tuple[tuple[str, int], ...] | None = None
    """Breaches begun since the reader did: kind and number; None: nobody looks for breaches here."""


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One node pool as the autoscaler sees it."""

    name: str
    nodes: int
    booting: int
    min_nodes: int
    max_nodes: int
    mode: str = ""
    """What its nodes serve, known also while there are none."""


@dataclass(frozen=True, slots=True)
class PendingReading:
    """A pod without a place, and why."""

    pod: str
    seconds: float
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class FleetEvent:
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
    waiting: tuple[PendingReading, ...]
    events: tuple[FleetEvent, ...]
    """The latest, oldest first."""
    counts: tuple[tuple[str, int], ...] = ()
    """Totals since the start, such as pods placed, nodes bought, moves."""
    fragmented: int | None = None
    """Pods that wait now although the sums over some node's cards have room for them: no card set has."""
