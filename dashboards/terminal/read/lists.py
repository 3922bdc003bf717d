# SPDX-License-Identifier: Apache-2.0
"""
Lists of nodes and pods, as the API server sends them, to a fleet; quick enough for one screen of many thousands.

Decides the same as `contract.codec` does of each object, which the tests hold against each other, and reads
less of it: what a template asks for is worked out once, nodes alike are worked out once. Pure; a broken
object is a note and no exception, and never takes the others with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from dashboards.terminal.read.fleet import FleetNode, FleetPod, Wanted
from dashboards.terminal.read.records import cards_in, slices_in
from isolation.contract.codec import CodecError, decode_vendor, node_of, request_of
from isolation.contract.codec.cursor import At
from isolation.contract.codec.pod import seconds_of
from isolation.contract.model import Card, Mode, Refusal, Slice
from isolation.contract.names import ACK, AGENT, ALLOCATION, CARDS, POOL, RESERVATION
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from isolation.contract.model import Node, Request

_MOST_KEPT: Final = 8192
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, CodecError)


class _PodNotes(msgspec.Struct):
    ours: str = msgspec.field(name=ALLOCATION, default="")
    vendor: str = msgspec.field(name=ACK.allocation_annotation, default="")
    reservation: str = msgspec.field(name=RESERVATION, default="")


class _PodLabels(msgspec.Struct):
    count: msgspec.Raw = msgspec.field(name=ACK.card_count, default=msgspec.Raw())


class _PodMeta(msgspec.Struct):
    name: str
    uid: str
    namespace: str = "default"
    annotations: _PodNotes | None = None
    labels: _PodLabels | None = None
    creationTimestamp: str | None = None  # noqa: N815 (Kubernetes' spelling, here and below)


class _Container(msgspec.Struct):
    resources: msgspec.Raw = msgspec.Raw()
    restartPolicy: msgspec.Raw = msgspec.Raw()  # noqa: N815


class _PodSpec(msgspec.Struct):
    containers: list[_Container]
    initContainers: list[_Container] | None = None  # noqa: N815
    resources: msgspec.Raw = msgspec.Raw()
    nodeName: str = ""  # noqa: N815


class _PodStatus(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _PodMeta
    spec: _PodSpec
    status: _PodStatus | None = None


class _NodeNotes(msgspec.Struct):
    cards: str = msgspec.field(name=CARDS, default="")
    agent: msgspec.Raw = msgspec.field(name=AGENT, default=msgspec.Raw())


class _NodeMeta(msgspec.Struct):
    name: str
    annotations: _NodeNotes | None = None
    labels: dict[str, str] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Address(msgspec.Struct):
    type: str = ""
    address: str = ""


class _NodeStatus(msgspec.Struct):
    capacity: msgspec.Raw = msgspec.Raw()
    allocatable: msgspec.Raw = msgspec.Raw()
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False


class _Node(msgspec.Struct):
    metadata: _NodeMeta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


_POD: Final = msgspec.json.Decoder(_Pod)
_NODE: Final = msgspec.json.Decoder(_Node)
_SPELT: Final = (ACK.mode_label, *ACK.model_labels, *ACK.memory_labels)
"""Labels on which a node's cards depend."""


class Lists:
    """Reads one cluster's lists: nodes first, since the vendor's records count cards."""

    def __init__(self, unit_bytes: int = GIB) -> None:
        self._unit = unit_bytes
        self._asked: dict[tuple[object, ...], Wanted | str] = {}
        self._alike: dict[tuple[object, ...], Node] = {}
        self._uuids: dict[str, dict[int, str]] = {}
        self._records: dict[str, tuple[Slice, ...]] = {}
        self.unreadable: list[str] = []
        """Which objects are left out, and why."""

    def node(self, raw: msgspec.Raw) -> FleetNode | None:
        """One node of a list; None for one without cards that gpushare serves."""
        try:
            found = self._node(_NODE.decode(raw), raw)
        except _BROKEN as exc:
            self._left_out("node", raw, exc)
            return None
        if found is None or not found.cards:
            return None
        self._uuids[found.name] = {card.index: card.uuid for card in found.cards}
        return found

    def pod(self, raw: msgspec.Raw) -> FleetPod | None:
        """One pod of a list; None for one that has ended or asks nothing of cards."""
        try:
            return self._pod(_POD.decode(raw), raw)
        except _BROKEN as exc:
            self._left_out("pod", raw, exc)
            return None

    # Nodes.

    def _node(self, node: _Node, raw: msgspec.Raw) -> FleetNode | None:
        meta, status = node.metadata, node.status or _NodeStatus()
        notes, labels = meta.annotations or _NodeNotes(), meta.labels or {}
        key = (
            *(labels.get(name) for name in _SPELT),
            bytes(status.capacity),
            bytes(status.allocatable),
            bool(notes.cards),
            bytes(notes.agent),
        )
        model = next((labels[name] for name in ACK.model_labels if labels.get(name)), "")
        known = self._alike.get(key)
        if known is None:
            if len(self._alike) >= _MOST_KEPT:
                self._alike.clear()
            known = self._alike[key] = node_of(msgspec.json.decode(raw), unit_bytes=self._unit)
        if known.mode is Mode.NONE:
            return None
        return FleetNode(
            name=meta.name,
            mode=known.mode,
            cards=self._cards_of(meta.name, notes.cards, model, known, raw),
            ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
            cordoned=bool(node.spec and node.spec.unschedulable),
            serving=known.serving,
            pool=labels.get(POOL, ""),
            address=next((one.address for one in status.addresses or () if one.type == "InternalIP"), ""),
        )

    def _cards_of(self, name: str, record: str, model: str, alike: Node, raw: msgspec.Raw) -> tuple[Card, ...]:
        """The node's own cards: by its agent's record, else like those of its likes; a label names the model."""
        if not record:
            return tuple(replace(card, uuid=f"{name}/{card.index}") for card in alike.cards)
        try:
            cards = cards_in(record)
        except CodecError:
            return node_of(msgspec.json.decode(raw), unit_bytes=self._unit).cards
        return tuple(replace(card, model=model) for card in cards) if model else cards

    # Pods.

    def _pod(self, pod: _Pod, raw: msgspec.Raw) -> FleetPod | None:
        meta, spec = pod.metadata, pod.spec
        if pod.status is not None and pod.status.phase in _ENDED:
            return None
        wanted = self._wanted(pod, raw)
        notes = meta.annotations
        slices = self._slices(notes, spec.nodeName) if spec.nodeName and notes is not None else ()
        fault = wanted if isinstance(wanted, str) else ""
        if isinstance(wanted, str):
            most = max((part.bytes for part in slices), default=0)
            wanted = Wanted(len(slices), most, max((part.core for part in slices), default=0))
            slices = tuple(Slice(s.uuid, s.index, most, wanted.core) for s in slices)
        elif wanted.cards != len(slices):
            slices = ()
        elif not wanted.whole:
            slices = _each(slices, wanted)
        if not wanted.cards and not fault:
            return None
        created = seconds_of(At(meta.creationTimestamp)) if not spec.nodeName and meta.creationTimestamp else 0.0
        used = notes.reservation if notes is not None and spec.nodeName else ""
        return FleetPod(meta.namespace, meta.name, meta.uid, spec.nodeName, wanted, slices, created, fault, used)

    def _wanted(self, pod: _Pod, raw: msgspec.Raw) -> Wanted | str:
        """What the pod asks for, or why that makes no sense; worked out once for all that say the same."""
        spec, labels = pod.spec, pod.metadata.labels
        key = (
            bytes(labels.count) if labels else b"",
            bytes(spec.resources),
            *(bytes(one.resources) for one in spec.containers),
            None,
            *((bytes(one.resources), bytes(one.restartPolicy)) for one in spec.initContainers or ()),
        )
        found = self._asked.get(key)
        if found is None:
            if len(self._asked) >= _MOST_KEPT:
                self._asked.clear()
            whole = msgspec.json.decode(raw)
            said = request_of(whole["metadata"], whole["spec"], unit_bytes=self._unit)
            found = said.reason if isinstance(said, Refusal) else _wanted_by(said)
            self._asked[key] = found
        return found

    def _slices(self, notes: _PodNotes, node: str) -> tuple[Slice, ...]:
        """The cards that the record names, ours before the vendor's; none where it cannot be read."""
        try:
            if notes.ours:
                return self._named(slices_in(notes.ours), node)
            if not notes.vendor:
                return ()
            return self._by_index(notes.vendor, node)
        except CodecError:
            return ()

    def _named(self, slices: tuple[Slice, ...], node: str) -> tuple[Slice, ...]:
        """A card that the record calls by node and index, since nobody had named it yet, is the card of that index."""
        if all("/" not in part.uuid for part in slices):
            return slices
        uuids = self._uuids.get(node, {})
        return tuple(
            replace(part, uuid=uuids.get(part.index, part.uuid)) if part.uuid == f"{node}/{part.index}" else part
            for part in slices
        )

    def _by_index(self, record: str, node: str) -> tuple[Slice, ...]:
        """The vendor's record; most pods have the same few."""
        found = self._records.get(record)
        if found is None:
            if len(self._records) >= _MOST_KEPT:
                self._records.clear()
            found = self._records[record] = decode_vendor(record, {}, "", unit_bytes=self._unit)
        uuids = self._uuids.get(node, {})
        return tuple(Slice(uuids.get(one.index) or f"{node}/{one.index}", one.index, one.bytes) for one in found)

    def _left_out(self, kind: str, raw: msgspec.Raw, exc: Exception) -> None:
        self.unreadable.append(f"cannot read a {kind} of {len(bytes(raw))} bytes: {exc}")


def _each(slices: tuple[Slice, ...], wanted: Wanted) -> tuple[Slice, ...]:
    """What is asked for, rather than what the record says; mostly they say the same."""
    size, core = wanted.bytes, wanted.core
    for one in slices:
        if one.bytes != size or one.core != core:
            return tuple(Slice(s.uuid, s.index, size, core) for s in slices)
    return slices


def _wanted_by(request: Request) -> Wanted:
    return Wanted(request.cards, request.card_bytes, request.card_core, request.whole)
