# SPDX-License-Identifier: Apache-2.0
"""
What exporters measure of cards and containers: used memory, compute, health.

Pure: samples in, values out. A value that is absent is None. The node is that of the exporter where it is known,
whatever the labels say: an exporter is not trusted with the figures of other machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from dashboards.terminal.read.fleet import CardRequest, Fleet, FleetNode, FleetPod
from isolation.contract import metrics
from isolation.contract.model import FULL_CORE, Card, Mode, Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.exposition import MetricSample

_BUSY_SECONDS: Final = "gpushare_card_busy_seconds_total"
_COMPUTE_SECONDS: Final = "gpushare_container_compute_seconds_total"
_RATES: Final = MappingProxyType({"busy_seconds": "utilisation", "compute_seconds": "core_used"})
"""What a counter's increase by second is called."""
_CARD: Final = MappingProxyType(
    {
        metrics.CARD_MEMORY_TOTAL.name: "total",
        metrics.CARD_MEMORY_ALLOCATABLE.name: "offered",
        metrics.CARD_MEMORY_ALLOCATED.name: "allocated",
        metrics.CARD_MEMORY_USED.name: "used",
        metrics.CARD_MEMORY_RESERVED.name: "reserved",
        metrics.CARD_MEMORY_UNATTRIBUTED.name: "unattributed",
        metrics.CARD_UTILISATION.name: "utilisation",
        metrics.CARD_HEALTHY.name: "healthy",
        metrics.CARD_POWER.name: "power",
        metrics.CARD_POWER_LIMIT.name: "power_limit",
        metrics.CARD_TEMPERATURE.name: "temperature",
        _BUSY_SECONDS: "busy_seconds",
        metrics.BREACHES_OPEN.name: "breaches",
    }
)
_TENANT: Final = MappingProxyType(
    {
        metrics.CONTAINER_MEMORY_ALLOCATED.name: "allocated",
        metrics.CONTAINER_MEMORY_USED.name: "used",
        metrics.CONTAINER_COMPUTE_ALLOCATED.name: "core",
        metrics.CONTAINER_COMPUTE_LIMIT.name: "core_limit",
        metrics.CONTAINER_COMPUTE_USED.name: "core_used",
        metrics.DENIED_ALLOCATIONS.name: "denied",
        metrics.OVER_LIMIT.name: "over_seconds",
        _COMPUTE_SECONDS: "compute_seconds",
    }
)
FAMILIES: Final = frozenset(
    {*_CARD, *_TENANT, metrics.CARD_INFO.name, metrics.CONTAINER_INFO.name, metrics.SAMPLE_TIMESTAMP.name}
)
LIVELY: Final = frozenset(
    {
        metrics.CARD_MEMORY_USED.name,
        metrics.CARD_MEMORY_RESERVED.name,
        metrics.CARD_MEMORY_UNATTRIBUTED.name,
        metrics.CARD_UTILISATION.name,
        metrics.BREACHES_OPEN.name,
        metrics.CONTAINER_MEMORY_ALLOCATED.name,
        metrics.CONTAINER_MEMORY_USED.name,
        metrics.CONTAINER_COMPUTE_USED.name,
    }
)
"""What an API server does not know: enough to ask of a Prometheus that knows tens of thousands of cards."""
_BY_KIND: Final = frozenset({metrics.BREACHES_OPEN.name})
"""A sample for each kind; what is said of the card is their sum."""
_LARGEST: Final = float(1 << 62)
_MAX_INDEX: Final = 4


@dataclass(frozen=True, slots=True)
class CardUsage:
    """One card."""

    node: str
    uuid: str
    index: int
    model: str = ""
    mode: str = ""
    pool: str = ""
    profile: str = ""
    """Of a MIG instance."""
    figures: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def bytes(self, name: str) -> int | None:
        """One figure in bytes."""
        value = self.figures.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """One container on one card."""

    namespace: str
    pod: str
    container: str
    node: str
    uuid: str
    index: int
    exclusive: bool
    promise: str = ""
    figures: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def bytes(self, name: str) -> int | None:
        """One figure in bytes."""
        value = self.figures.get(name)
        return None if value is None else int(value)

    @property
    def key(self) -> str:
        """`namespace/pod`; a command of `gpushare run` has no namespace."""
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod


T = TypeVar("T", CardUsage, TenantUsage)


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything that was measured."""

    cards: tuple[CardUsage, ...] = ()
    tenants: tuple[TenantUsage, ...] = ()
    read_at: float | None = None
    """When the oldest of it was measured, in seconds since the epoch."""
    heard: frozenset[str] = frozenset()
    """Nodes whose exporter answered."""

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        known = [at for at in (self.read_at, other.read_at) if at is not None]
        return Usage(
            self.cards + other.cards, self.tenants + other.tenants, min(known, default=None), self.heard | other.heard
        )


def build_usage(samples: Iterable[MetricSample], node: str = "") -> Usage:
    """The usage by these samples; `node`: of which exporter they are, whatever their labels say."""
    cards: dict[tuple[str, str], dict[str, float]] = {}
    facts: dict[tuple[str, str], tuple[int, str, str, str, str]] = {}
    divided: set[tuple[str, str]] = set()
    tenants: dict[tuple[str, ...], dict[str, float]] = {}
    promises: dict[tuple[str, ...], str] = {}
    times: list[float] = []
    for sample in samples:
        labels = sample.labels
        if sample.name == metrics.SAMPLE_TIMESTAMP.name:
            times.append(sample.value)
            continue
        node_name, uuid, index = node or labels.get("node", ""), labels.get("uuid", ""), _index(labels.get("card", ""))
        if index is None or not uuid or not 0 <= sample.value < _LARGEST:
            continue
        if sample.name in _TENANT or sample.name == metrics.CONTAINER_INFO.name:
            who = tuple(labels.get(key, "") for key in ("namespace", "pod", "container", "mode"))
            key = (*who, node_name, uuid, str(index))
            if sample.name == metrics.CONTAINER_INFO.name:
                promises[key] = labels.get("promise", "")
            else:
                tenants.setdefault(key, {})[_TENANT[sample.name]] = sample.value
            continue
        facts.setdefault((node_name, uuid), (index, "", "", "", ""))
        if sample.name == metrics.CARD_INFO.name:
            model, mode, pool, profile = (labels.get(key, "") for key in ("model", "mode", "pool", "profile"))
            facts[node_name, uuid] = (index, model, mode, pool, profile)
            divided.add((node_name, labels.get("parent", "")))
        else:
            figures, name = cards.setdefault((node_name, uuid), {}), _CARD[sample.name]
            figures[name] = sample.value + (figures.get(name, 0.0) if sample.name in _BY_KIND else 0.0)
    # A card that is divided into MIG instances has no memory of its own: they have it.
    whole = [key for key in facts if key not in divided]
    found = tuple(CardUsage(key[0], key[1], *facts[key], figures=cards.get(key, {})) for key in whole)
    return Usage(
        tuple(sorted(found, key=lambda card: (card.node, card.index, card.uuid))),
        tuple(_tenant(key, figures, promises.get(key, "")) for key, figures in sorted(tenants.items())),
        min(times, default=None),
        frozenset({node} if node else {node_name for node_name, _ in facts}),
    )


def add_rates(before: Usage, now: Usage) -> Usage:
    """
    Compute by the seconds counters' increase since an earlier reading: the whole time between both, not its end.

    What has no counter, or a new one, keeps the gauge of the exporter's last cycle.
    """
    if before.read_at is None or now.read_at is None or now.read_at <= before.read_at:
        return now
    seconds = now.read_at - before.read_at
    cards = {(one.node, one.uuid): one.figures for one in before.cards}
    tenants = {_container_key(one): one.figures for one in before.tenants}
    return replace(
        now,
        cards=tuple(_rated(one, cards.get((one.node, one.uuid)), seconds) for one in now.cards),
        tenants=tuple(_rated(one, tenants.get(_container_key(one)), seconds) for one in now.tenants),
    )


def _container_key(one: TenantUsage) -> tuple[str, ...]:
    return one.node, one.uuid, one.namespace, one.pod, one.container


def _rated(one: T, before: Mapping[str, float] | None, seconds: float) -> T:
    rates = {
        rate: min(1.0, (one.figures[counter] - before[counter]) / seconds)
        for counter, rate in _RATES.items()
        if before is not None and counter in one.figures and one.figures[counter] >= before.get(counter, float("inf"))
    }
    return replace(one, figures={**one.figures, **rates}) if rates else one


def _tenant(key: tuple[str, ...], figures: Mapping[str, float], promise: str) -> TenantUsage:
    namespace, pod, container, mode, node, uuid, index = key
    return TenantUsage(namespace, pod, container, node, uuid, int(index), mode == "exclusive", promise, figures)


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_INDEX else None


def build_fleet(usage: Usage) -> Fleet:
    """A fleet by what exporters alone tell: one machine, where no API server is asked."""
    nodes: dict[str, list[CardUsage]] = {}
    for card in usage.cards:
        nodes.setdefault(card.node, []).append(card)
    held: dict[tuple[str, str, str], list[TenantUsage]] = {}
    for one in usage.tenants:
        held.setdefault((one.namespace, one.pod, one.node), []).append(one)
    return Fleet(
        tuple(_node(name, cards) for name, cards in nodes.items()),
        tuple(_pod(*key, measured) for key, measured in held.items()),
    )


def _node(name: str, cards: Iterable[CardUsage]) -> FleetNode:
    cards = tuple(cards)
    mode = next((card.mode for card in cards if card.mode in frozenset(Mode)), Mode.SHARE.value)
    return FleetNode(name, Mode(mode), tuple(_card(card) for card in cards), pool=cards[0].pool)


def _card(card: CardUsage) -> Card:
    total = card.bytes("total") or 0
    offered = card.bytes("offered")
    reserved = total - min(offered, total) if offered is not None else min(total, card.bytes("reserved") or 0)
    return Card(card.uuid, card.index, total, reserved, 1, card.model, card.figures.get("healthy", 1.0) > 0)


def _pod(namespace: str, pod: str, node: str, measured: Sequence[TenantUsage]) -> FleetPod:
    """The pod as the sum of its containers, card by card."""
    parts: dict[tuple[str, int], tuple[int, float]] = {}
    for one in measured:
        size, core = parts.get((one.uuid, one.index), (0, 0.0))
        more = one.bytes("allocated") or 0
        parts[one.uuid, one.index] = (size + more, core + one.figures.get("core", 0.0))
    known = all("allocated" in one.figures for one in measured)
    slices = tuple(
        Slice(uuid, index, size, min(FULL_CORE, round(core * FULL_CORE)))
        for (uuid, index), (size, core) in parts.items()
    )
    most = max((part.bytes for part in slices), default=0)
    return FleetPod(
        namespace, pod, f"{namespace}/{pod}", node, CardRequest(len(slices), most), slices, partly=not known
    )
