# SPDX-License-Identifier: Apache-2.0
"""
What the sources read in one cycle, before anything is concluded from it.

The values between `exporter.sources`, which read, and `exporter.pipeline`, which decides. None means unknown, never 0;
a source that failed has an error instead of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from isolation.contract.reading import NO_HARDWARE, Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.abi import RegionReading
    from isolation.contract.breach_ring import BreachRecord
    from isolation.contract.host_allocation import HostAllocation, Process

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceOutcome(Generic[T]):
    """One source's run: its value, or why there is none."""

    value: T | None
    error: str = ""
    seconds: float = 0.0
    """How long it took."""
    at: float = 0.0
    """Monotonic seconds at which it was complete."""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


@dataclass(frozen=True, slots=True)
class CardProcess:
    """One process on one card, as the driver lists it."""

    pid: int
    bytes: int | None
    kind: str = "compute"
    """compute, graphics or mps."""


@dataclass(frozen=True, slots=True)
class CardSample:
    """One card (or MIG instance) as NVML tells of it."""

    uuid: str
    index: int
    """NVML's index; of the parent card for a MIG instance."""
    model: str
    total_bytes: int
    reserved_bytes: int | None
    free_bytes: int | None
    processes: tuple[CardProcess, ...] | None
    """Each (pid) once; None: the list could not be read."""
    busy: Mapping[int, float] | None
    """
    Part of the time, 0..1, in which each process computed since the last cycle, time-weighted; who is
    missing did nothing. None: this card cannot tell (MIG), or the call failed.
    """
    utilisation_ratio: float | None = None
    memory_utilisation_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Counter since the driver was loaded."""
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    busy_seconds: float | None = None
    """Time in which a kernel ran, since the exporter began; None: the card cannot tell."""
    throttled_seconds: Mapping[str, float] | None = None
    """Time for which clocks were throttled since the exporter began, by reason."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xids: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """XID errors since the exporter began, by number; the latest is the last."""
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    unhealthy: str = ""
    """Why it is not healthy, in one word: xid, ecc, driver, row_remap, lost; empty: it is."""
    lost: bool = False
    """Fallen off the bus: every figure is unknown."""
    parent: str = ""
    """UUID of the card of which this is a MIG instance."""
    profile: str = ""
    """MIG profile, such as 1g.10gb."""
    minor: int | None = None
    """N of /dev/nvidiaN."""
    peaks: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Most bytes a process ever had, by pid, where the driver's accounting is on."""
    compute_mode: str = ""
    """default, exclusive, prohibited."""
    gpu_instance: int | None = None
    """GPU instance id of a MIG instance: N of nvidiaX/giN, as some device plugins name it."""
    hardware: Hardware = NO_HARDWARE
    compute_seconds: Mapping[int, float] | None = None
    """`busy` added up by process since the exporter began: what a reading that got lost missed is in the next one."""
    copy_busy: Mapping[int, float] | None = None
    """As `busy`, for the memory controller."""
    samples_shared: bool = False
    """The driver's samples do not tell processes apart: by process, all of these are a guess."""
    encoder_busy: Mapping[int, float] | None = None
    decoder_busy: Mapping[int, float] | None = None

    @property
    def healthy(self) -> bool:
        """Whether it can be promised."""
        return not self.unhealthy


@dataclass(frozen=True, slots=True)
class MachineSample:
    """Every card of the node at one moment."""

    cards: tuple[CardSample, ...]
    driver: str = ""
    mps: bool = False
    """An MPS server is among the processes: its clients' memory may stand under its pid."""
    mps_servers: frozenset[int] = frozenset()
    """Pids that call themselves an MPS server: a name that any program can take."""
    divided: tuple[CardSample, ...] = ()
    """
    Physical cards that MIG divides, which nobody uses as such: their power, energy, temperature, errors
    and links. Memory and processes stand in their instances, in `cards`; summing both counts twice.
    """


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Where a process belongs, as the kernel tells."""

    pid: int
    start_ticks: int
    uid: int
    name: str
    pod_uid: str = ""
    """Of the pod whose control group it is in; dashed, or a static pod's 32 hex digits."""
    container_id: str = ""
    """64 hex digits of the innermost container."""
    hold: str = ""
    """Promise id of the `gpushare run` hold that it descends from."""
    parent_name: str = ""
    namespace_pid: int | None = None
    """Its pid in its own PID namespace (the last of NSpid), as it stands in the container's region."""


@dataclass(frozen=True, slots=True)
class KernelSample:
    """Processes that have to do with the cards, and the containers that live."""

    processes: Mapping[int, ProcessSample]
    """By pid; a pid that is missing is gone."""
    host_pids: bool
    """Whether we see the host's processes; without that NVML's pids mean nothing here."""
    live_pods: frozenset[str] | None = None
    """UIDs of pods with a control group; None: the hierarchy cannot be read."""
    ended: Mapping[int, ProcessSample] = field(default_factory=lambda: MappingProxyType({}))
    """Who was there a moment ago and is gone, by pid: the driver still tells what they computed."""


@dataclass(frozen=True, slots=True)
class ContainerIdentity:
    """Names of a running container."""

    namespace: str
    pod: str
    container: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class IdentitySample:
    """Container IDs to names, from the kubelet's own records."""

    containers: Mapping[str, ContainerIdentity]
    """By 64 hex digits."""
    source: str = ""
    """pods-api or log-directory."""
    pods: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Namespace and name by pod UID, also of pods with unknown containers."""


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """What the kubelet gave to one container, of one resource."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    pod_uid: str = ""
    """Known from the pods API or holds only: pod-resources does not tell."""


@dataclass(frozen=True, slots=True)
class KubeletSample:
    """Devices by container."""

    grants: tuple[DeviceGrant, ...]
    unanswered: frozenset[tuple[str, str]] = frozenset()
    """Namespace and name of pods about which the kubelet has not answered yet, for its rate limit: unknown."""


@dataclass(frozen=True, slots=True)
class RegionSample:
    """A tenant's region, or why it cannot be read. All of it is the tenant's word."""

    reading: RegionReading | None
    breaches: tuple[BreachRecord, ...] = ()
    """New since the last cycle."""
    lost: int = 0
    """Records that were overwritten before we came."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class HoldSample:
    """One promise that somebody lives on."""

    hold: HostAllocation
    region: RegionSample | None
    """None: nothing is enforced here."""
    pids: tuple[int, ...] = ()
    """Who descends from the command, as its keeper noted; empty for pods."""
    limits_error: str = ""
    """Why the limits file cannot be read, or in which way it is not what was promised."""
    members: tuple[Process, ...] = ()
    """The same as `pids`, each with its start time."""
    limits_generation: int | None = None
    """Of the limits file; the region tells which one its library goes by."""


@dataclass(frozen=True, slots=True)
class PromiseSample:
    """Every promise on this node that its agent or `gpushare run` wrote down."""

    holds: tuple[HoldSample, ...]
    agent: bool = False
    """A node agent of ours is on this node, or was."""
    unreadable: int = 0
    """Records that could not be read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known about a node at about one moment."""

    at: float
    """Monotonic seconds."""
    epoch: float
    """Seconds since the epoch, for people."""
    machine: SourceOutcome[MachineSample]
    kernel: SourceOutcome[KernelSample]
    promises: SourceOutcome[PromiseSample]
    kubelet: SourceOutcome[KubeletSample] | None
    """None: not a Kubernetes node."""
    identities: SourceOutcome[IdentitySample] | None
