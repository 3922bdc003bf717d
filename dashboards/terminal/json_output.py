# SPDX-License-Identifier: Apache-2.0
"""
Views as data for programs: JSON or YAML, amounts in bytes, null for what is not known.

Pure. The shape is versioned; names come from outside and are quoted by the format.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dashboards.terminal.read.aggregation import summarize_cards, summarize_namespaces, summarize_nodes, summarize_pods
from isolation.contract.model import FULL_CORE

if TYPE_CHECKING:
    from dashboards.terminal.read.aggregation import CardSummary, NamespaceSummary, NodeSummary, PodSummary
    from dashboards.terminal.read.breaches import BreachRow
    from dashboards.terminal.read.fleet import Fleet
    from dashboards.terminal.read.usage import Usage
    from dashboards.terminal.top_view import TopOptions

FORMAT: Final = 1


def dump_document(document: Any, form: str) -> str:
    """The document as text; `form` is json or yaml."""
    if form == "json":
        return json.dumps(document, indent=2)
    text: str = import_module("yaml").safe_dump(document, sort_keys=False, allow_unicode=False)
    return text.rstrip("\n")


def top_document(fleet: Fleet, usage: Usage, choice: TopOptions) -> dict[str, Any]:
    """`gpushare top` for programs."""
    cards = [card for card in summarize_cards(fleet, usage) if choice.node in ("", card.node.name)]
    pods = [one for one in summarize_pods(fleet, usage) if choice.namespace in ("", one.pod.namespace)]
    rows: list[dict[str, Any]]
    match choice.by:
        case "card":
            rows = [_card(one) for one in cards]
        case "node":
            rows = [_node(one) for one in summarize_nodes(cards)]
        case "pod":
            rows = [_pod(one) for one in pods]
        case _:
            rows = [_namespace(one) for one in summarize_namespaces(pods)]
    return {"format": FORMAT, "by": choice.by, "items": rows, "notes": list(fleet.notes)}


def _card(one: CardSummary) -> dict[str, Any]:
    figures = one.usage.figures if one.usage else {}
    return {
        "node": one.node.name,
        "card": one.card.index,
        "uuid": one.card.uuid,
        "model": one.card.model or None,
        "mode": one.node.mode.value,
        "state": one.state or "ok",
        "total_bytes": one.memory.total or None,
        "allocatable_bytes": one.offered if one.card.total_bytes else None,
        "allocated_bytes": one.promised,
        "allocated_is_lower_bound": one.partly,
        "reservation_bytes": one.kept,
        "used_bytes": one.memory.used,
        "over_promise_bytes": one.memory.over if one.memory.used is not None else None,
        "free_bytes": one.free,
        "stranded_bytes": one.stranded if one.free is not None else None,
        "compute_allocated_percent": one.core,
        "utilisation_ratio": figures.get("utilisation"),
        "power_watts": figures.get("power"),
        "pods": sorted(pod.key for pod in one.pods),
    }


def _node(one: NodeSummary) -> dict[str, Any]:
    return {
        "node": one.node.name,
        "pool": one.node.pool or None,
        "mode": one.node.mode.value,
        "state": one.node.state or "ok",
        "cards": len(one.cards),
        "total_bytes": one.memory.total,
        "allocatable_bytes": one.offered,
        "allocated_bytes": one.promised,
        "allocated_is_lower_bound": one.partly,
        "used_bytes": one.memory.used,
        "used_is_lower_bound": one.memory.partly,
        "free_bytes": one.free,
        "stranded_bytes": one.stranded,
        "pods": one.pods,
    }


def _pod(one: PodSummary) -> dict[str, Any]:
    return {
        "namespace": one.pod.namespace or None,
        "pod": one.pod.name,
        "node": one.pod.node or None,
        "cards": [{"uuid": part.uuid, "card": part.index, "bytes": part.bytes} for part in one.pod.slices],
        "allocated_bytes": one.promised if one.pod.node else 0,
        "allocated_is_lower_bound": one.partly,
        "requested_bytes": one.promised,
        "used_bytes": one.used,
        "over_promise_bytes": one.over if one.used is not None else None,
        "compute_allocated_cards": sum(part.core for part in one.pod.slices) / FULL_CORE,
        "compute_limit_cards": one.core_limit,
        "compute_used_cards": one.core_used,
        "fault": one.pod.fault or None,
    }


def _namespace(one: NamespaceSummary) -> dict[str, Any]:
    return {
        "namespace": one.name or None,
        "pods": one.pods,
        "pending": one.waiting,
        "allocated_bytes": one.promised,
        "requested_bytes": one.wanted,
        "used_bytes": one.used,
        "used_is_lower_bound": one.partly,
        "over_promise_bytes": one.over,
    }


def breach_document(breaches: tuple[BreachRow, ...], notes: tuple[str, ...]) -> dict[str, Any]:
    """`gpushare breaches` for programs."""
    return {
        "format": FORMAT,
        "items": [
            {
                "kind": one.kind,
                "node": one.node,
                "card": one.card,
                "uuid": one.uuid,
                "namespace": one.namespace or None,
                "pod": one.pod or None,
                "container": one.container or None,
                "process": one.process or None,
                "promise": one.promise or None,
                "open": one.open,
                "started": one.begun,
                "last_seen": one.last,
                "count": one.times,
                "used_bytes": one.used,
                "allocated_bytes": one.promised,
                "source": one.source,
                "message": one.text,
            }
            for one in breaches
        ],
        "notes": list(notes),
    }
