# SPDX-License-Identifier: Apache-2.0
"""
What the metrics APIs are asked about, as values: what pods have and use, what pools have left, who waits.

The seam to whoever measures (`SnapshotSource`). Times are on a clock that cannot be set
(`isolation.kube.election.boottime`), so that a step of the wall clock makes nothing fresh or stale.
What is unknown is None, never 0. Decides how a cluster and measured figures become a snapshot; how
old a figure may be is decided in `answer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from isolation.contract.model import FULL_CORE, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.model import Pod


@dataclass(frozen=True, slots=True)
class ContainerCardUse:
    """What one container has of one card, and what it uses of it."""

    container: str
    uuid: str
    card: int
    """Index on the node."""
    allocated_bytes: int | None
    """None: a whole card whose size its node does not tell now."""
    allocated_core: float | None = None
    """Part of the card's compute that was promised; None: none was."""
    used_bytes: int | None = None
    used_core: float | None = None
    """Part of the card's compute in use, on average over the last `window` seconds."""
    window: float = 0.0


@dataclass(frozen=True, slots=True)
class PodUse:
    """One running pod with shares or whole cards."""

    namespace: str
    name: str
    node: str
    uses: tuple[ContainerCardUse, ...]
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    measured: float | None = None
    """When the exporter of its node measured; None: it has not reported, or not on this pod."""


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """What one pool has left, over its usable nodes."""

    pool: str
    largest_free_bytes: int
    """The largest promise of memory that still fits on one card."""
    idle_cards: float
    """Idle compute, in cards."""
    lost_cards: float
    """What of it is of no use to the pods that come (`isolation.placement.engine.Engine.fragments`)."""


@dataclass(frozen=True, slots=True)
class PendingPod:
    """Memory of cards that pods of a namespace wait for; each pod counts once."""

    namespace: str
    pool: str
    """The pool that would host them; empty: none can."""
    bytes: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One consistent reading."""

    at: float | None = None
    """When nodes, pods and promises were last known to be so; None: not yet."""
    pods: Mapping[str, tuple[PodUse, ...]] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """By namespace."""
    pools: tuple[PoolCapacity, ...] = ()
    waiting: tuple[PendingPod, ...] = ()
    nodes: frozenset[str] = frozenset()
    """Names of all nodes with cards."""


class SnapshotSource(Protocol):
    """Whoever knows."""

    def latest(self) -> MetricsSnapshot:
        """The latest reading; answers at once, from memory."""


class LatestSnapshot:
    """The latest published snapshot."""

    def __init__(self, picture: MetricsSnapshot | None = None) -> None:
        self._picture = picture or MetricsSnapshot()

    def put(self, picture: MetricsSnapshot) -> None:
        """From now on this one."""
        self._picture = picture

    def latest(self) -> MetricsSnapshot:
        """What was put up last."""
        return self._picture


class UseSample(NamedTuple):
    """What an exporter reported of one container on one card."""

    used_bytes: int | None
    used_core: float | None
    window: float = 0.0
    """Seconds over which `used_core` is an average."""


class CardKey(NamedTuple):
    """One container on one card, as exporters name it."""

    namespace: str
    pod: str
    container: str
    uuid: str


class CardOf(NamedTuple):
    """A pod, and the node whose exporter speaks of it."""

    node: str
    namespace: str
    pod: str


def pod_uses(
    pods: Iterable[Pod],
    samples: Mapping[CardKey, UseSample],
    measured: Mapping[str, float],
    whole: Mapping[CardOf, tuple[ContainerCardUse, ...]] = MappingProxyType({}),
) -> Mapping[str, tuple[PodUse, ...]]:
    """
    Every running pod with shares or whole cards, by namespace, with what is known of it.

    Which shares a pod has is Kubernetes' word; which whole cards, its node's (`whole`): only the kubelet knows.

    `measured`: by node, when its exporter took the samples. A pod that its exporter does not name
    at all has not been measured, however fresh the exporter is.
    """
    found: dict[str, list[PodUse]] = {}
    for pod in pods:
        if pod.phase is not Phase.RUNNING or pod.placement is None or not pod.request.cards or pod.deleting:
            continue
        uses, reported = [], False
        if pod.request.whole:
            uses = list(whole.get(CardOf(pod.placement.node, pod.namespace, pod.name), ()))
            reported = bool(uses)
        for hold in pod.holds if pod.request.shared else ():
            sample = samples.get(CardKey(pod.namespace, pod.name, hold.container, hold.uuid))
            reported |= sample is not None
            core = hold.core / FULL_CORE if hold.core else None
            known = sample or UseSample(None, None)
            uses.append(ContainerCardUse(hold.container, hold.uuid, hold.index, hold.bytes, core, *known))
        at = measured.get(pod.placement.node) if reported else None
        found.setdefault(pod.namespace, []).append(
            PodUse(pod.namespace, pod.name, pod.placement.node, tuple(uses), pod.labels, at)
        )
    return MappingProxyType({namespace: tuple(uses) for namespace, uses in found.items()})
