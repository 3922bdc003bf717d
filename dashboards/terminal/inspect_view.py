# SPDX-License-Identifier: Apache-2.0
"""
`gpushare inspect`: shared memory by node and card in whole units, as tools of the classic extender print it.

Pure. The JSON is that of the extender's inspect verb, so that who reads the one reads the other. Formats:
AliyunContainerService gpushare-scheduler-extender, "User Guide" (table), `/gpushare-scheduler/inspect` (JSON).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dashboards.terminal.table import WARN, sentence
from isolation.contract.model import SHARED_MODES
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dashboards.terminal.read.fleet import Fleet, FleetNode
    from dashboards.terminal.table import TextOutput

_GAP: Final = "  "
_RULE: Final = 78


@dataclass(frozen=True, slots=True)
class Share:
    """What one pod, or one reservation, has of one card."""

    name: str
    namespace: str
    units: int


@dataclass(frozen=True, slots=True)
class CardShares:
    """One card in units."""

    index: int
    total: int
    shares: tuple[Share, ...]

    @property
    def used(self) -> int:
        """Units promised."""
        return sum(share.units for share in self.shares)


@dataclass(frozen=True, slots=True)
class NodeShares:
    """One node in units."""

    node: FleetNode
    cards: tuple[CardShares, ...]
    pending: tuple[Share, ...]
    """On the node, on cards that nobody wrote down."""

    @property
    def total(self) -> int:
        """Units that its cards offer."""
        return sum(card.total for card in self.cards)

    @property
    def used(self) -> int:
        """Units promised on known cards."""
        return sum(card.used for card in self.cards)

    @property
    def loose(self) -> int:
        """Units promised on unknown ones."""
        return sum(share.units for share in self.pending)


def node_shares(fleet: Fleet, unit: int, only: str | None = None) -> list[NodeShares]:
    """Every node with shared cards, or the one that is named, by name."""
    on: dict[str, list[tuple[str, Share]]] = {}
    loose: dict[str, list[Share]] = {}
    for pod in fleet.pods:
        for part in pod.slices:
            on.setdefault(pod.node, []).append((part.uuid, Share(pod.name, pod.namespace, -(-part.bytes // unit))))
        if pod.node and not pod.slices and not pod.wanted.whole:
            units = -(-pod.wanted.bytes // unit) * pod.wanted.cards
            loose.setdefault(pod.node, []).append(Share(pod.name, pod.namespace, units))
    for one in fleet.reservations:
        for part in one.placement.slices:
            share = Share(f"(reserved: {one.name})", one.namespace, -(-part.bytes // unit))
            on.setdefault(one.placement.node, []).append((part.uuid, share))
    nodes = sorted((node for node in fleet.nodes if node.mode in SHARED_MODES), key=lambda node: node.name)
    return [
        _node(node, on.get(node.name, ()), tuple(loose.get(node.name, ())), unit)
        for node in nodes
        if only in (None, node.name)
    ]


def _node(node: FleetNode, on: Iterable[tuple[str, Share]], loose: tuple[Share, ...], unit: int) -> NodeShares:
    parts: dict[str, list[Share]] = {}
    for uuid, share in on:
        parts.setdefault(uuid, []).append(share)
    cards = tuple(
        CardShares(card.index, card.allocatable_bytes // unit, tuple(parts.get(card.uuid, ()))) for card in node.cards
    )
    return NodeShares(node, cards, loose)


def as_document(nodes: Sequence[NodeShares], only: str | None) -> dict[str, Any]:
    """The answer of the classic extender."""
    error = "" if nodes or only is None else f"node {only} is unknown or has no shared cards"
    return {"nodes": [_document(node) for node in nodes], "error": error}


def _document(node: NodeShares) -> dict[str, Any]:
    devs = [
        {
            "id": card.index,
            "totalGPU": card.total,
            "usedGPU": card.used,
            "pods": [{"name": one.name, "namespace": one.namespace, "usedGPU": one.units} for one in card.shares],
        }
        for card in node.cards
    ]
    return {"name": node.node.name, "totalGPU": node.total, "usedGPU": node.used, "devs": devs}


def summary(nodes: Sequence[NodeShares], unit: str, output: TextOutput, notes: Iterable[str] = ()) -> list[str]:
    """A line for each node, then the sum."""
    most = max((len(node.cards) for node in nodes), default=0)
    loose = any(node.loose for node in nodes)
    memory = f"GPU Memory({unit})"
    heads = [f"GPU{at}(Allocated/Total)" for at in range(most)] + ["PENDING(Allocated)"] * loose
    rows = [["NAME", "IPADDRESS", *heads, memory]]
    for node in nodes:
        cells = [f"{card.used}/{card.total}" for card in node.cards] + ["0/0"] * (most - len(node.cards))
        cells += [str(node.loose)] * loose
        rows.append([node.node.name, node.node.address or "unknown", *cells, f"{node.used + node.loose}/{node.total}"])
    lines = _columns(rows)
    return [*lines, "-" * max(_RULE, *map(len, lines)), *_total(nodes), *_notes(notes, output)]


def details(nodes: Sequence[NodeShares], output: TextOutput, notes: Iterable[str] = ()) -> list[str]:
    """Each node with its pods, then the sum."""
    lines: list[str] = []
    for node in nodes:
        heads = [f"GPU{card.index}(Allocated)" for card in node.cards] + ["Pending(Allocated)"] * bool(node.loose)
        rows = [["NAME", "NAMESPACE", *heads], *_pod_rows(node, len(heads))]
        used = node.used + node.loose
        table = _columns(rows)
        lines += ["", *_columns([["NAME:", node.node.name], ["IPADDRESS:", node.node.address or "unknown"]]), ""]
        lines += [*table, f"Allocated :  {used} ({_part(used, node.total)}%)", f"Total :      {node.total}"]
        lines.append("-" * max(_RULE, *map(len, table)))
    return [*lines, "", *_total(nodes), *_notes(notes, output)]


def _pod_rows(node: NodeShares, width: int) -> list[list[str]]:
    """One row for each pod, with what it has of each card."""
    rows: dict[tuple[str, str], list[int]] = {}
    places = [(at, share) for at, card in enumerate(node.cards) for share in card.shares]
    places += [(width - 1, share) for share in node.pending]
    for at, share in places:
        rows.setdefault((share.name, share.namespace), [0] * width)[at] += share.units
    return [[name, namespace, *map(str, units)] for (name, namespace), units in rows.items()]


def _total(nodes: Sequence[NodeShares]) -> list[str]:
    used, total = sum(node.used + node.loose for node in nodes), sum(node.total for node in nodes)
    return ["Allocated/Total GPU Memory In Cluster:", f"{used}/{total} ({_part(used, total)}%)"]


def _part(used: int, total: int) -> int:
    return 100 * used // total if total else 0


def _notes(notes: Iterable[str], output: TextOutput) -> list[str]:
    return [line for note in notes for line in sentence(output, f"note: {note}", WARN)]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two spaces apart, never cut: programs read them."""
    clean = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    return [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in clean]
