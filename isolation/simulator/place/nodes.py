# SPDX-License-Identifier: Apache-2.0
"""
The nodes to place on: written on the command line, or a cluster's own description of itself.

Decides what a node specification means and fills in what is left out: plenty of CPU and memory,
the labels that a node of its mode would carry. Whether anything fits is placement's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract import quantity
from isolation.contract.codec import node_of, pod_of
from isolation.contract.codec.cursor import At, CodecError, show
from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.model import (
    Card,
    CardChoice,
    ComputePolicy,
    Mode,
    Node,
    Phase,
    Pod,
)
from isolation.contract.names import ACK, COMPUTE_POLICY, POOL
from isolation.host.core.context_memory import under_mps
from isolation.placement.node_rules import whole_cards
from isolation.simulator.place.manifests import ManifestError, ManifestSource, iterate_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLENTY_CPU_MILLI: Final = 1 << 50
PLENTY_BYTES: Final = 1 << 60
MAX_NODES: Final = 10_000
MAX_FILE_BYTES: Final = 64 << 20
"""Bytes in a file of nodes: some thousand nodes with their pods."""
MAX_GIB: Final = 1 << 20
"""GiB on one card: a petabyte."""
_DEFAULT_PODS: Final = 110  # pods: the kubelet's own default
_LABEL: Final = "label."
_KEYS: Final = (
    "name",
    "cards",
    "gib",
    "mode",
    "placement",
    "cpu",
    "memory",
    "pods",
    "model",
    "pool",
    "policy",
    "count",
)
_NUMBER: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")
_MODES: Final = tuple(mode.value for mode in Mode if mode is not Mode.NONE)
_CHOICES: Final = tuple(choice.value for choice in CardChoice)


class NodeSpecError(ValueError):
    """A node specification that makes no sense; the message says what to change."""


@dataclass(frozen=True, slots=True)
class NodesAndPods:
    """The nodes, the pods that are on them already, and what could not be read of either."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    notes: tuple[str, ...] = ()


def parse_nodes(text: str, unit_bytes: int) -> tuple[Node, ...]:
    """The nodes of one `--node name=n1,cards=4,gib=15,...`."""
    fields = _parse_fields(text)
    mode = _parse_choice(fields, "mode", _MODES, Mode.CGPU.value)
    cards = _parse_whole(fields, "cards", 0, MAX_CARDS)
    if cards and "gib" not in fields:
        raise NodeSpecError("gib is missing; write gib=15 for cards of 15 GiB each")
    gib = _parse_decimal(fields, "gib", MAX_GIB) if cards else Fraction(0)
    if cards and gib * quantity.GIB < unit_bytes:
        raise NodeSpecError(
            f"gib={fields['gib']} is less than one unit of {quantity.show_bytes(unit_bytes)}; increase it"
        )
    made = [Card("", i, int(gib * quantity.GIB), 0, unit_bytes, fields.get("model", "")) for i in range(cards)]
    if mode == Mode.MPS:
        made = list(map(under_mps, made))
        if made and not made[0].allocatable_bytes:
            raise NodeSpecError(
                f"gib={fields['gib']} is less than one unit of {quantity.show_bytes(unit_bytes)} and the "
                f"{quantity.show_bytes(made[0].reserved_bytes)} of an MPS server; increase it"
            )
    mold = Node(
        name="",
        cards=tuple(made),
        mode=Mode(mode) if cards else Mode.NONE,
        choice=CardChoice(_parse_choice(fields, "placement", _CHOICES, CardChoice.BINPACK.value)),
        cpu_milli=int(_parse_decimal(fields, "cpu", 1 << 40) * 1000) if "cpu" in fields else PLENTY_CPU_MILLI,
        memory_bytes=int(_parse_decimal(fields, "memory", 1 << 30) * quantity.GIB)
        if "memory" in fields
        else PLENTY_BYTES,
        pods=_parse_whole(fields, "pods", _DEFAULT_PODS, 1 << 20),
        pool=fields.get("pool", ""),
        policy=ComputePolicy(_parse_choice(fields, "policy", tuple(ComputePolicy), ComputePolicy.FIXED.value)),
    )
    count = _parse_whole(fields, "count", 1, MAX_NODES)
    names = [f"{fields['name']}-{i}" for i in range(count)] if "count" in fields else [fields["name"]]
    try:
        return tuple(_make_node(mold, At(name, ("name",)).name(), fields) for name in names)
    except CodecError as exc:
        raise NodeSpecError(str(exc)) from None


def read_nodes(source: ManifestSource, unit_bytes: int) -> NodesAndPods:
    """The nodes of a file such as `kubectl get nodes -o yaml`; pods in it are taken as running there."""
    nodes: list[Node] = []
    notes: list[str] = []
    bound = []
    for located in iterate_objects(source):
        kind = located.at["kind"].value
        if kind == "Pod":
            bound.append(located)
        elif kind != "Node":
            notes.append(f"{source.name}:{located.line}: {show(kind)[1:-1]} is not a Node; skipped")
        else:
            try:
                node = node_of(located.at.value, unit_bytes=unit_bytes)
                stated = located.at["status"]["conditions"]
            except CodecError as exc:
                raise located.wrong(exc) from None
            # Written by hand, without conditions: ready unless stated otherwise.
            nodes.append(node if stated else replace(node, ready=True))
            notes += [f"{source.name}: node {node.name}: {note}" for note in _describe_problems(node)]
    if not nodes:
        raise ManifestError(f"{source.name}: the file contains no nodes; create it with: kubectl get nodes -o yaml")
    known = {node.name: node for node in nodes}
    pods: list[Pod] = []
    for located in bound:
        try:
            pod = pod_of(located.at.value, known, unit_bytes=unit_bytes)
        except CodecError as exc:
            raise located.wrong(exc) from None
        if isinstance(pod, Pod) and pod.phase is Phase.DONE:
            continue
        if isinstance(pod, Pod) and pod.placement is not None and pod.placement.node in known:
            pods.append(pod)
        else:
            notes.append(
                f"{source.name}:{located.line}: {located.key} runs on none of these nodes; pass it with -f to place it"
            )
    settled, unknown = assign_whole_cards(known, pods)
    return NodesAndPods(tuple(nodes), settled, (*notes, *unknown))


def assign_whole_cards(nodes: Mapping[str, Node], pods: Iterable[Pod]) -> tuple[tuple[Pod, ...], tuple[str, ...]]:
    """
    Give whole cards without a record the first free ones of their node: which ones is recorded nowhere.

    A share without a record stays unknown; it is named, for its card looks emptier than it is.
    """
    settled: list[Pod] = []
    notes: list[str] = []
    taken: dict[str, set[str]] = {}
    for pod in pods:
        if pod.placement is not None:
            taken.setdefault(pod.placement.node, set()).update(part.uuid for part in pod.placement.slices)
    for pod in pods:
        request, placement = pod.request, pod.placement
        if placement is not None and request.cards and not placement.slices:
            if request.whole:
                placement = whole_cards(request, nodes[placement.node], taken[placement.node])
                taken[placement.node].update(part.uuid for part in placement.slices)
            else:
                notes.append(f"pod {pod.key} has no readable record of its cards; its share is not counted")
        settled.append(replace(pod, placement=placement))
    return tuple(settled), tuple(notes)


def _make_node(mold: Node, name: str, fields: Mapping[str, str]) -> Node:
    """One node of the mold, with the labels that its like would carry."""
    labels = {"kubernetes.io/hostname": name}
    if mold.cards:
        labels[ACK.mode_label] = mold.mode.value
    if "placement" in fields and mold.choice is not CardChoice.POLICY:
        labels[ACK.choice_label] = mold.choice.value
    if "policy" in fields:
        labels[COMPUTE_POLICY] = mold.policy.value
    if mold.pool:
        labels[POOL] = mold.pool
    if fields.get("model"):
        labels |= dict.fromkeys(ACK.model_labels, fields["model"])
    labels |= {key.removeprefix(_LABEL): value for key, value in fields.items() if key.startswith(_LABEL)}
    cards = tuple(replace(card, uuid=f"{name}/{card.index}") for card in mold.cards)
    return replace(mold, name=name, cards=cards, labels=MappingProxyType(labels))


def _describe_problems(node: Node) -> list[str]:
    warnings = []
    if not node.cpu_milli or not node.memory_bytes:
        warnings.append("status.allocatable has no cpu or no memory, so no pod that requests it fits")
    unknown = all(card.total_bytes == card.unit_bytes for card in node.cards)
    if node.mode is Mode.EXCLUSIVE and node.cards and unknown:
        warnings.append("the memory of its cards is unknown; each card is shown as one unit")
    if unhealthy := sum(not card.healthy for card in node.cards):
        warnings.append(f"{unhealthy} of {len(node.cards)} cards are unavailable or unhealthy")
    return warnings


def _parse_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key or not value:
            raise NodeSpecError(f"{show(part)} is not KEY=VALUE; write for example name=n1,cards=4,gib=15,mode=cgpu")
        if key not in _KEYS and not (key.startswith(_LABEL) and key != _LABEL):
            raise NodeSpecError(f"unknown key {show(key)}; use {', '.join(_KEYS)} or label.KEY")
        if key in fields:
            raise NodeSpecError(f"key {key} is given twice; keep one")
        fields[key] = value
    if "name" not in fields:
        raise NodeSpecError("name is missing; write name=n1")
    return fields


def _parse_choice(fields: Mapping[str, str], key: str, allowed: tuple[str, ...], default: str) -> str:
    value = fields.get(key, default)
    if value not in allowed:
        raise NodeSpecError(f"{key}={show(value)[1:-1]} is not valid; use {', '.join(allowed)}")
    return value


def _parse_whole(fields: Mapping[str, str], key: str, default: int, most: int) -> int:
    value = fields.get(key, str(default))
    if not (value.isascii() and value.isdigit() and len(value) < 19 and int(value) <= most):  # noqa: PLR2004 (digits of int64)
        raise NodeSpecError(f"{key}={show(value)[1:-1]} is not a whole number from 0 to {most}")
    return int(value)


def _parse_decimal(fields: Mapping[str, str], key: str, most: int) -> Fraction:
    value = fields[key]
    if not _NUMBER.fullmatch(value) or Fraction(value) > most:
        raise NodeSpecError(f"{key}={show(value)[1:-1]} is not a number from 0 to {most}, such as 15 or 15.75")
    return Fraction(value)
