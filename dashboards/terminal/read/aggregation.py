# SPDX-License-Identifier: Apache-2.0
"""
Cards with what is promised, used, free and stranded of them; the same added up by node, pod and namespace.

Pure: a fleet (what is promised) and what exporters tell (what is used). *Free* is what could be promised
and is not; *stranded* is the part of it that nobody can have: less than half of all promises here ask for, no
compute beside it, a card that is unhealthy or a node that takes nobody.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dashboards.terminal.memory_bar import MemoryUse, add_memory
from isolation.contract.model import FULL_CORE, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dashboards.terminal.read.fleet import Fleet, FleetNode, FleetPod
    from dashboards.terminal.read.usage import CardUsage, TenantUsage, Usage
    from isolation.contract.model import Card


@dataclass(frozen=True, slots=True)
class CardSummary:
    """One card."""

    node: FleetNode
    card: Card
    memory: MemoryUse
    promised: int | None
    """None: who has the whole cards of this node is not written down."""
    partly: bool
    """At least so much is promised."""
    stranded: int
    core: int
    """Percent of its compute that is promised."""
    pods: tuple[FleetPod, ...] = ()
    kept: int = 0
    """Of what is promised, reserved for pods that are not there yet."""
    usage: CardUsage | None = None
    offered: int = 0
    """Bytes that can be promised on the card when it is empty."""
    free: int | None = 0
    """Bytes that could be promised and are not."""

    @property
    def state(self) -> str:
        """Why nobody may start there; empty: one may."""
        return self.node.state or ("" if self.card.healthy else "unhealthy")


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Cards of one node, added up."""

    node: FleetNode
    cards: tuple[CardSummary, ...]
    memory: MemoryUse
    promised: int | None
    partly: bool
    pods: int

    @property
    def offered(self) -> int:
        """Bytes that can be promised on its cards when they are empty."""
        return sum(card.offered for card in self.cards)

    @property
    def free(self) -> int | None:
        """Bytes that could be promised and are not."""
        known = [card.free for card in self.cards if card.free is not None]
        return sum(known) if known else None

    @property
    def stranded(self) -> int:
        """The part of it that nobody can have."""
        return sum(card.stranded for card in self.cards)


@dataclass(frozen=True, slots=True)
class PodSummary:
    """One pod, its containers and cards added up."""

    pod: FleetPod
    promised: int
    used: int | None
    over: int
    core_used: float | None
    core_limit: float | None = None
    """Most cards' worth of compute that it may use; None: not limited, or not known."""
    partly: bool = False
    """At least so much is promised."""


@dataclass(frozen=True, slots=True)
class NamespaceSummary:
    """One namespace's pods."""

    name: str
    pods: int
    waiting: int
    promised: int
    wanted: int
    """Bytes that its waiting pods ask for."""
    used: int | None
    partly: bool
    over: int


def typical(fleet: Fleet) -> int:
    """Bytes per card that half of all pods with shares ask for at most; 0 where there is none."""
    sizes = Counter(pod.wanted.bytes for pod in fleet.pods if pod.wanted.cards and not pod.wanted.whole)
    half, seen = sum(sizes.values()) / 2, 0
    for size in sorted(sizes):
        seen += sizes[size]
        if seen >= half:
            return size
    return 0


def summarize_cards(fleet: Fleet, usage: Usage) -> list[CardSummary]:
    """Every card, by node name and index."""
    measured = _UsageByCard(usage)
    held: dict[str, list[tuple[FleetPod, int, int]]] = {}
    loose: Counter[str] = Counter()
    unrecorded: set[str] = set()
    for pod in fleet.pods:
        for part in pod.slices:
            held.setdefault(part.uuid, []).append((pod, part.bytes, part.core))
        if pod.node and not pod.slices:
            if pod.wanted.whole:
                loose[pod.node] += pod.wanted.cards
            else:
                unrecorded.add(pod.node)
    kept: dict[str, list[tuple[int, int]]] = {}
    for one in fleet.reservations:
        for part in one.placement.slices:
            kept.setdefault(part.uuid, []).append((part.bytes, part.core))
    usual = typical(fleet)
    sums = []
    for node in sorted(fleet.nodes, key=lambda node: node.name):
        way = _NodeContext(node, measured, usual, loose[node.name], fleet.partly or node.name in unrecorded)
        sums += [_card_sum(way, card, held.get(card.uuid, ()), kept.get(card.uuid, ())) for card in node.cards]
    return sums


@dataclass(frozen=True, slots=True)
class _NodeContext:
    """What is the same for all cards of a node."""

    node: FleetNode
    measured: _UsageByCard
    usual: int
    loose: int
    """Whole cards of the node that pods have of which nobody wrote down which."""
    partly: bool
    """At least so much is promised: not all pods are known, or of one here nobody wrote down which cards it shares."""


class _UsageByCard:
    """Figures by card."""

    def __init__(self, usage: Usage) -> None:
        self.cards = {card.uuid: card for card in usage.cards}
        self.places = {(card.node, card.index): card for card in usage.cards}
        self.over: Counter[str] = Counter()
        for one in usage.tenants:
            self.over[one.uuid] += over_promise(one)

    def of(self, node: str, card: Card) -> CardUsage | None:
        """By UUID; by place where the fleet knows no UUIDs."""
        return self.cards.get(card.uuid) or (self.places.get((node, card.index)) if "/" in card.uuid else None)


def over_promise(one: TenantUsage) -> int:
    """Bytes that a container uses beyond its promise; 0 where either is unknown."""
    used, promised = one.bytes("used"), one.bytes("allocated")
    return 0 if used is None or promised is None else max(0, used - promised)


def _card_sum(
    way: _NodeContext, card: Card, held: Sequence[tuple[FleetPod, int, int]], kept: Sequence[tuple[int, int]]
) -> CardSummary:
    node, measured = way.node, way.measured
    usage = measured.of(node.name, card) if measured.cards else None
    kept_bytes, core, partly = 0, 0, way.partly
    promised: int | None
    for size, part in kept:
        kept_bytes, core = kept_bytes + size, core + part
    allocated = kept_bytes
    for pod, size, part in held:
        allocated, core = allocated + size, core + part
        partly = partly or pod.partly
    promised, offered = allocated, card.allocatable_bytes
    if way.loose and not held:
        promised = offered if way.loose >= len(node.cards) else usage.bytes("allocated") if usage else None
    free = None if promised is None or not card.total_bytes else max(0, offered - promised)
    return CardSummary(
        node,
        card,
        _memory(card, promised, usage, measured),
        promised,
        partly,
        _stranded(way, card, free or 0, core),
        core,
        tuple([pod for pod, _, _ in held]) if held else (),
        kept_bytes,
        usage,
        offered,
        free,
    )


def _memory(card: Card, promised: int | None, usage: CardUsage | None, measured: _UsageByCard) -> MemoryUse:
    if usage is None:
        return MemoryUse(card.total_bytes, promised or 0, None, True)
    used, total = usage.bytes("used"), usage.bytes("total") or card.total_bytes
    other = (usage.bytes("reserved") or 0) + (usage.bytes("unattributed") or 0)
    return MemoryUse(total, promised or 0, used, used is None, measured.over[usage.uuid], other)


def _stranded(way: _NodeContext, card: Card, free: int, core: int) -> int:
    """All of what is free, or nothing."""
    if not free:
        return 0
    barred = bool(way.node.state) or not card.healthy
    full = way.node.mode in {Mode.CORE_MEM, Mode.MPS} and core >= FULL_CORE
    small = way.node.mode is not Mode.EXCLUSIVE and free < way.usual
    return free if barred or full or small else 0


def summarize_nodes(cards: Iterable[CardSummary]) -> list[NodeSummary]:
    """By node, in the order of the cards."""
    groups: dict[str, list[CardSummary]] = {}
    for one in cards:
        groups.setdefault(one.node.name, []).append(one)
    return [_group(tuple(group)) for group in groups.values()]


def _group(cards: tuple[CardSummary, ...]) -> NodeSummary:
    known = [card.promised for card in cards if card.promised is not None]
    return NodeSummary(
        cards[0].node,
        cards,
        add_memory(card.memory for card in cards),
        sum(known) if known else None,
        len(known) < len(cards) or any(card.partly for card in cards),
        len({pod.uid for card in cards for pod in card.pods}),
    )


def summarize_pods(fleet: Fleet, usage: Usage) -> list[PodSummary]:
    """Every pod that has something of a card or waits for it, over promise first, then by what is promised."""
    measured: dict[str, list[TenantUsage]] = {}
    for one in usage.tenants:
        measured.setdefault(one.key, []).append(one)
    shown = (pod for pod in fleet.pods if fleet.selected is None or pod.uid in fleet.selected)
    sums = [_pod_sum(pod, measured.get(pod.key, ())) for pod in shown]
    return sorted(sums, key=lambda one: (-one.over, not one.pod.node, -one.promised, one.pod.key))


def _pod_sum(pod: FleetPod, measured: Sequence[TenantUsage]) -> PodSummary:
    used = [one.bytes("used") for one in measured]
    core = [one.figures["core_used"] for one in measured if "core_used" in one.figures]
    limits = [one.figures["core_limit"] for one in measured if "core_limit" in one.figures]
    return PodSummary(
        pod,
        sum(part.bytes for part in pod.slices) if pod.slices else pod.wanted.bytes * pod.wanted.cards,
        sum(one or 0 for one in used) if used and None not in used else None,
        sum(over_promise(one) for one in measured),
        sum(core) if core else None,
        sum(limits) if limits else None,
        pod.partly,
    )


def summarize_namespaces(pods: Iterable[PodSummary]) -> list[NamespaceSummary]:
    """By namespace, who has most first."""
    groups: dict[str, list[PodSummary]] = {}
    for one in pods:
        groups.setdefault(one.pod.namespace, []).append(one)
    sums = [_namespace(name, group) for name, group in groups.items()]
    return sorted(sums, key=lambda one: (-one.promised, -one.wanted, one.name))


def _namespace(name: str, group: Sequence[PodSummary]) -> NamespaceSummary:
    bound = [one for one in group if one.pod.node]
    known = [one.used for one in bound if one.used is not None]
    return NamespaceSummary(
        name=name,
        pods=len(bound),
        waiting=len(group) - len(bound),
        promised=sum(one.promised for one in bound),
        wanted=sum(one.promised for one in group if not one.pod.node),
        used=sum(known) if known or not bound else None,
        partly=len(known) < len(bound),
        over=sum(one.over for one in group),
    )
