# SPDX-License-Identifier: Apache-2.0
"""
`gpushare explain POD`: one pod's story for people and for programs.

Pure. Nodes that come nearest to taking the pod stand first with their cards; nodes that are out for the same
reason share a line. Texts of Events and records are somebody's words and are shown as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dashboards.terminal.json_output import FORMAT
from dashboards.terminal.table import BAD, DIM, STRONG, WARN, Column, sentence, table
from dashboards.terminal.text_format import clock, count, gib, indexes
from isolation.contract.dialects import SYSTEMS
from isolation.contract.model import FULL_CORE, Mode, Placement, Refusal, Why
from isolation.contract.quantity import show_bytes
from isolation.placement.explain import describe_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.explain.explanation import (
        BoundState,
        CardCapacity,
        ExplainedPod,
        Explanation,
        NodeReason,
        PendingReason,
        PodEvent,
    )
    from dashboards.terminal.table import Cell, TextOutput

_NODES_SHOWN: Final = 8
_REASONS_SHOWN: Final = 6
_MAX_TEXT: Final = 600
_INDENT: Final = 2
_BESIDE_CARDS: Final = frozenset({Why.CPU, Why.MEMORY, Why.PODS})
"""What a node lacks though its cards would do."""
_NOTHING_HELPS: Final = (
    "No remedy found. Tried: a smaller request, other numbers of cards, nodes that become usable again, new nodes like "
    "the existing ones, up to three moves. Resolve the reasons above, or add a node of another kind."
)


def explain_lines(explanation: Explanation, now: float, output: TextOutput, *, wide: bool) -> list[str]:
    """The whole story."""
    pod = explanation.subject
    lines = [output.styled(f"{pod.key}", STRONG) + f": {_state(explanation)}"]
    lines += sentence(output, _asks(pod), indent=_INDENT)
    for fault in explanation.faults:
        lines += sentence(output, fault, BAD, _INDENT)
    if explanation.bound is not None:
        lines += _bound(pod, explanation.bound, output)
    if explanation.waits is not None:
        lines += _waits(explanation.waits, pod, output, wide=wide)
    elif not pod.node and pod.unscheduled:
        lines += sentence(output, f"scheduler: {pod.unscheduled[:_MAX_TEXT]}", indent=_INDENT)
    lines += _events(explanation.events, now, output)
    return [*lines, *(line for note in explanation.notes for line in sentence(output, f"note: {note}", WARN))]


def _state(explanation: Explanation) -> str:
    pod = explanation.subject
    if pod.ended:
        return f"ended ({pod.phase}){f' on node {pod.node}' if pod.node else ''}: its cards are released"
    if pod.node:
        return f"bound to node {pod.node}, {pod.phase}"
    if isinstance(pod.request, Refusal):
        return "invalid request"
    if explanation.faults:
        only = "only " if isinstance(_verdict(explanation), Refusal) else ""
        return f"pending, not {only}for lack of room"
    return "pending"


def _verdict(explanation: Explanation) -> Placement | Refusal | None:
    return explanation.waits.verdict if explanation.waits else None


def _asks(pod: ExplainedPod) -> str:
    if isinstance(pod.request, Refusal):
        return "its request contradicts itself"
    if not pod.request.cards:
        return "requests no cards" + (
            "" if pod.node or pod.ended else ": see its scheduler and its Events for why it is pending"
        )
    own = f", written for {SYSTEMS[pod.dialect].title}: {pod.asked or 'its words were not kept'}" if pod.dialect else ""
    return f"requests {describe_request(pod.request)}{own}"


# Bound.


def _bound(pod: ExplainedPod, bound: BoundState, output: TextOutput) -> list[str]:
    lines: list[str] = []
    if pod.slices:
        cards = ", ".join(f"{part.index} ({_amount(part.bytes, part.core)}, {part.uuid})" for part in pod.slices)
        lines += sentence(output, f"card {cards}", indent=_INDENT)
        by = f"from annotation {pod.record}"
        by += f", promise {pod.promise}" if pod.promise else ""
        by += f", from reservation {pod.reservation}" if pod.reservation else ""
        lines += sentence(output, by, indent=_INDENT)
        if bound.mode == Mode.SHARE.value:
            lines += sentence(output, f"node mode {bound.mode}: nothing enforces the promise there", WARN, _INDENT)
    for container, slices in bound.containers:
        parts = "; ".join(f"card {part.index}: {_amount(part.bytes, part.core)}" for part in slices)
        lines += sentence(output, f"container {container}: {parts}", indent=_INDENT)
    lines += _used(pod, bound, output)
    if bound.neighbours:
        shown = ", ".join(bound.neighbours[:_NODES_SHOWN])
        more = len(bound.neighbours) - _NODES_SHOWN
        lines += sentence(
            output, f"shares its cards with {shown}{f' and {more} more' if more > 0 else ''}", indent=_INDENT
        )
    for card in bound.over:
        lines += sentence(output, f"card {card} is overcommitted: more is promised than it offers", BAD, _INDENT)
    return lines


def _used(pod: ExplainedPod, bound: BoundState, output: TextOutput) -> list[str]:
    if bound.used is None:
        return []
    if not bound.used:
        known = "the exporter of its node reports nothing about it" if pod.slices else ""
        return sentence(output, known, WARN, _INDENT) if known else []
    lines = []
    for container, card, used, promised in bound.used:
        over = used is not None and promised is not None and used > promised
        text = f"container {container} uses {gib(used)} of {gib(promised)} GiB on card {card}"
        lines += sentence(output, text + (": over its promise" if over else ""), BAD if over else "", _INDENT)
    return lines


def _amount(size: int, core: int) -> str:
    if core == FULL_CORE:
        return "whole"
    return show_bytes(size) + (f" and {core} % compute" if core else "")


# Waiting.


def _waits(waits: PendingReason, pod: ExplainedPod, output: TextOutput, *, wide: bool) -> list[str]:
    lines: list[str] = []
    verdict = waits.verdict
    if isinstance(verdict, Placement):
        cards = indexes(tuple(sorted(part.index for part in verdict.slices)))
        where = f"{verdict.node}, card {cards}" if cards else verdict.node
        lines += sentence(output, f"there is room now: {where}; the pod is not bound yet", "green", _INDENT)
    else:
        lines += sentence(output, verdict.reason, WARN, _INDENT)
    if waits.reserved:
        lines += sentence(output, f"room is reserved for it: {waits.reserved}", "green", _INDENT)
    if pod.unscheduled:
        lines += sentence(output, f"scheduler: {pod.unscheduled[:_MAX_TEXT]}", DIM, _INDENT)
    lines += ["", *_nodes(waits.nodes, output, wide=wide)]
    if waits.remedies:
        lines += ["", output.styled("What would help", STRONG)]
        for one in waits.remedies:
            first, *rest = sentence(output, f"- {one.text}", indent=_INDENT)
            lines += [first, *("  " + line for line in rest)]
    elif isinstance(verdict, Refusal):
        lines += ["", *sentence(output, _NOTHING_HELPS)]
    return lines


def _nodes(nodes: Sequence[NodeReason], output: TextOutput, *, wide: bool) -> list[str]:
    near = [one for one in nodes if one.cards]
    shown = near if wide else near[:_NODES_SHOWN]
    lines: list[str] = []
    if shown:
        columns = [Column("NODE", cut=True), Column("CARDS"), Column("FREE", right=True)]
        columns += [Column("OF GiB", right=True), Column("COMPUTE", right=True), Column("WHY NOT")]
        rows: list[list[Cell]] = []
        for one in shown:
            rows += [_card_row(one, alike) for alike in _alike(one.cards)]
        lines += table(output, columns, rows)
        if len(near) > len(shown):
            rest = count(len(near) - len(shown), "node")
            lines.append(output.styled(f"{rest} with unsuitable cards not shown: use -o wide", "magenta"))
    grouped: dict[str, list[str]] = {}
    for one in nodes:
        if not one.cards:
            grouped.setdefault(one.text, []).append(one.name)
    reasons = sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    for text, names in reasons if wide else reasons[:_REASONS_SHOWN]:
        who = names[0] if len(names) == 1 else f"{len(names):,} nodes, such as {names[0]}"
        lines += sentence(output, f"{who}: {text}")
    if not wide and len(reasons) > _REASONS_SHOWN:
        lines.append(output.styled(f"{len(reasons) - _REASONS_SHOWN} more reasons not shown: use -o wide", "magenta"))
    return lines


def _alike(cards: Sequence[CardCapacity]) -> list[list[CardCapacity]]:
    """Cards of which the same is left share a line."""
    groups: dict[tuple[int, int, int, str], list[CardCapacity]] = {}
    for card in cards:
        groups.setdefault((card.free, card.offered, card.core, card.why), []).append(card)
    return list(groups.values())


def _card_row(node: NodeReason, alike: Sequence[CardCapacity]) -> list[Cell]:
    card, which = alike[0], indexes(tuple(one.index for one in alike))
    elsewhere = node.why in _BESIDE_CARDS
    fits: Cell = ((node.text, WARN) if elsewhere else ("fits", "green")) if card.fits else card.why
    return [node.name, which, gib(card.free), gib(card.offered), f"{card.core} %", fits]


# Events.


def _events(events: Sequence[PodEvent], now: float, output: TextOutput) -> list[str]:
    if not events:
        return []
    lines = ["", output.styled("Events", STRONG)]
    for one in events:
        ago = f"{clock(now - one.at)} ago" if one.at else "?"
        times = f" ({one.times} times)" if one.times > 1 else ""
        text = f"{ago}, {one.reason}{times} by {one.who or '?'}: {one.text[:_MAX_TEXT]}"
        lines += sentence(output, text, WARN if one.kind == "Warning" else "", _INDENT)
    return lines


# For programs.


def explain_document(explanation: Explanation) -> dict[str, Any]:
    """The same as data."""
    pod, waits, bound = explanation.subject, explanation.waits, explanation.bound
    asked = None
    if not isinstance(pod.request, Refusal):
        one = pod.request
        asked = {"cards": one.cards, "card_bytes": one.card_bytes, "card_core": one.card_core, "whole": one.whole}
    return {
        "format": FORMAT,
        "namespace": pod.namespace,
        "pod": pod.name,
        "uid": pod.uid,
        "phase": pod.phase,
        "node": pod.node or None,
        "request": asked,
        "dialect": pod.dialect or None,
        "asked": pod.asked or None,
        "problems": list(explanation.faults),
        "bound": None if bound is None else _bound_document(pod, bound),
        "pending": None if waits is None else _waits_document(waits),
        "events": [
            {"at": e.at or None, "type": e.kind, "reason": e.reason, "text": e.text, "times": e.times, "from": e.who}
            for e in explanation.events
        ],
        "notes": list(explanation.notes),
    }


def _bound_document(pod: ExplainedPod, bound: BoundState) -> dict[str, Any]:
    used = bound.used
    return {
        "cards": [{"uuid": p.uuid, "card": p.index, "bytes": p.bytes, "core": p.core} for p in pod.slices],
        "record": pod.record or None,
        "promise": pod.promise or None,
        "reservation": pod.reservation or None,
        "mode": bound.mode or None,
        "used": used and [{"container": c, "card": i, "used_bytes": u, "allocated_bytes": p} for c, i, u, p in used],
        "other_pods": list(bound.neighbours),
        "overcommitted_cards": list(bound.over),
    }


def _waits_document(waits: PendingReason) -> dict[str, Any]:
    verdict = waits.verdict
    room = why = reason = None
    if isinstance(verdict, Placement):
        room = {"node": verdict.node, "cards": [part.index for part in verdict.slices]}
    else:
        why, reason = verdict.why.value, verdict.reason
    return {
        "placement": room,
        "why": why,
        "reason": reason,
        "reserved": waits.reserved or None,
        "nodes": [
            {
                "node": one.name,
                "pool": one.pool or None,
                "why": one.why.value if one.why else None,
                "text": one.text,
                "cards": [
                    {
                        "card": c.index,
                        "free_bytes": c.free,
                        "allocatable_bytes": c.offered,
                        "core": c.core,
                        "fits": c.fits,
                    }
                    for c in one.cards
                ],
            }
            for one in waits.nodes
        ],
        "remedies": [{"kind": one.kind, "text": one.text} for one in waits.remedies],
    }
