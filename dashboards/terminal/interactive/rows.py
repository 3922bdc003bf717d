# SPDX-License-Identifier: Apache-2.0
"""
One reading as the interactive view shows it: added up once, then sorted and filtered as often as keys say so.

Pure. Decides what belongs to a place and in which order; nothing of how a row looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dashboards.terminal.interactive.navigation import WITHIN
from dashboards.terminal.read.aggregation import (
    CardSummary,
    NamespaceSummary,
    NodeSummary,
    PodSummary,
    summarize_cards,
    summarize_namespaces,
    summarize_nodes,
    summarize_pods,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dashboards.terminal.interactive.navigation import Navigation
    from dashboards.terminal.read.fleet import FleetPod
    from dashboards.terminal.read.processes import Processes
    from dashboards.terminal.read.source import Reading
    from dashboards.terminal.read.usage import TenantUsage


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container on one card, or a pod of which no container is known there."""

    pod: FleetPod | None
    usage: TenantUsage | None
    promised: int | None

    @property
    def key(self) -> str:
        """Of its pod, and what tells it from the pod's other containers."""
        name = self.usage.container if self.usage else ""
        return f"{self.pod_key}{WITHIN}{name}{WITHIN}{self.usage.uuid if self.usage else ''}"

    @property
    def pod_key(self) -> str:
        """`namespace/name`."""
        return self.usage.key if self.usage else self.pod.key if self.pod else ""


@dataclass(slots=True)
class ReadingSummary:
    """A reading with its sums."""

    reading: Reading
    processes: Processes | None = None
    """Of the node that is looked at; None: not asked, or not answered."""
    cards: list[CardSummary] = field(init=False)
    nodes: list[NodeSummary] = field(init=False)
    pods: list[PodSummary] = field(init=False)
    namespaces: list[NamespaceSummary] = field(init=False)

    def __post_init__(self) -> None:
        """Add up."""
        fleet, usage = self.reading.fleet, self.reading.usage
        self.cards = summarize_cards(fleet, usage)
        self.nodes = summarize_nodes(self.cards)
        self.pods = summarize_pods(fleet, usage)
        self.namespaces = summarize_namespaces(self.pods)

    def card(self, uuid: str) -> CardSummary | None:
        """By UUID."""
        return next((one for one in self.cards if one.card.uuid == uuid), None)

    def pod(self, key: str) -> PodSummary | None:
        """By `namespace/name`."""
        return next((one for one in self.pods if one.pod.key == key), None)

    def rows(self, state: Navigation) -> list[Any]:
        """What stands in this place, in order."""
        place = state.place
        found: list[Any]
        match place.kind:
            case "node":
                found = self.nodes
            case "card":
                found = [one for one in self.cards if place.of in ("", one.node.name)]
            case "pod":
                found = [one for one in self.pods if place.of in ("", one.pod.namespace)]
            case "namespace":
                found = self.namespaces
            case "one card":
                return self._on_card(place.of)
            case _:
                return self._of_pod(place.of)
        if place.filter:
            found = [one for one in found if place.filter.lower() in _words(one)]
        return sorted(found, key=_SORTS[state.sort], reverse=state.reverse)

    def _on_card(self, uuid: str) -> list[ContainerRow]:
        """Containers on a card, and pods with a share of it of which no exporter tells a container."""
        card = self.card(uuid)
        tenants = [
            one for one in self.reading.usage.tenants if card is not None and card.usage and one.uuid == card.usage.uuid
        ]
        known = {one.key for one in tenants}
        by_key = {pod.key: pod for pod in card.pods} if card is not None else {}
        found = [ContainerRow(by_key.get(one.key), one, one.bytes("allocated")) for one in tenants]
        for pod in by_key.values():
            if pod.key not in known:
                promised = sum(part.bytes for part in pod.slices if part.uuid == uuid)
                found.append(ContainerRow(pod, None, promised))
        return sorted(found, key=lambda one: one.key)

    def _of_pod(self, key: str) -> list[CardSummary]:
        """The cards of a pod."""
        pod = self.pod(key)
        mine = {part.uuid for part in pod.pod.slices} if pod is not None else set()
        mine |= {one.uuid for one in self.reading.usage.tenants if one.key == key}
        return [one for one in self.cards if one.card.uuid in mine or (one.usage and one.usage.uuid in mine)]


Thing: TypeAlias = CardSummary | NodeSummary | PodSummary | NamespaceSummary | ContainerRow


def key_of(one: Thing) -> str:
    """What a row is known by while figures change."""
    match one:
        case ContainerRow():
            return one.key
        case CardSummary():
            return one.card.uuid
        case PodSummary():
            return one.pod.key
        case NodeSummary():
            return one.node.name
    return one.name


def _words(one: Thing) -> str:
    """What a filter looks through."""
    match one:
        case CardSummary():
            pods = " ".join(pod.key for pod in one.pods)
            return f"{one.node.name} {one.node.pool} {one.card.uuid} {one.card.model} {one.state} {pods}".lower()
        case PodSummary():
            return f"{one.pod.key} {one.pod.node or 'pending'}".lower()
        case NodeSummary():
            return f"{one.node.name} {one.node.pool} {one.node.mode.value} {one.node.state}".lower()
    return key_of(one).lower()


def busy_of(one: Thing) -> float | None:
    """Utilisation of a card, the mean of a node's cards, compute of a pod; None: not known."""
    match one:
        case CardSummary():
            return one.usage.figures.get("utilisation") if one.usage else None
        case NodeSummary():
            known = [part for card in one.cards if (part := busy_of(card)) is not None]
            return sum(known) / len(known) if known else None
        case PodSummary():
            return one.core_used
    return None


def _name(one: Thing) -> tuple[str | int, ...]:
    return (one.node.name, one.card.index, one.card.uuid) if isinstance(one, CardSummary) else (key_of(one),)


def _used(one: Any) -> int:
    return (one.memory.used if isinstance(one, CardSummary | NodeSummary) else one.used) or 0


def _free(one: Any) -> int:
    return (one.free if isinstance(one, CardSummary | NodeSummary) else one.promised - _used(one)) or 0


def _stranded(one: Any) -> int:
    return one.stranded if isinstance(one, CardSummary | NodeSummary) else _free(one)


_SORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": _name,
    "allocated": lambda one: (-(one.promised or 0), _name(one)),
    "used": lambda one: (-_used(one), _name(one)),
    "free": lambda one: (-_free(one), _name(one)),
    "stranded": lambda one: (-_stranded(one), _name(one)),
    "utilisation": lambda one: (-(busy_of(one) or 0.0), _name(one)),
}


def keys_in(rows: Sequence[Thing]) -> list[str]:
    """The rows' keys."""
    return [key_of(one) for one in rows]
