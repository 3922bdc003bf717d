# SPDX-License-Identifier: Apache-2.0
"""
Lists of nodes and pods as the model sees them whole, for `gpushare explain`: what the scheduler's store would hold.

Decides the same as `cluster.store` does of each list, which the tests hold against each other, in less time: what a
template asks for is worked out once, whoever made its replicas. Whatever is not of the strictest shape is the
store's to read. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dashboards.terminal.read.records import cards_in, slices_in
from dashboards.terminal.read.whole_shapes import KEY, NODE, POD, Volume
from isolation.contract.codec import CodecError, decode_vendor, node_of, request_of
from isolation.contract.codec.cursor import At
from isolation.contract.codec.pod import seconds_of
from isolation.contract.codec.request import goes_with_its_node
from isolation.contract.model import Mode, Phase, Placement, Pod, Refusal, Request, Slice, Taint
from isolation.contract.names import ACK, AGENT, ALLOCATION, CARDS, EVICT, MIRROR, POOL, RESERVATION
from isolation.contract.quantity import GIB
from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import node_wire, pod_wire
from isolation.kube.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.terminal.read.whole_shapes import Meta, NodeShape, PodShape, Spec
    from isolation.contract.model import Node
    from isolation.kube.store import StoreView

_MOST_KEPT: Final = 16_384
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, CodecError, MalformedError)
_PHASES: Final = {"Succeeded": Phase.DONE, "Failed": Phase.DONE, "Running": Phase.RUNNING, "Unknown": Phase.RUNNING}
_SPELT: Final = (ACK.mode_label, ACK.choice_label, *ACK.model_labels, *ACK.memory_labels)
"""Labels on which a node's cards, mode and choice depend."""


class WholeLists:
    """Reads one cluster's lists, nodes first."""

    def __init__(self, unit_bytes: int = GIB) -> None:
        self._unit = unit_bytes
        self._store = Store(unit_bytes=unit_bytes)
        self._alike: dict[tuple[object, ...], Node] = {}
        self._asked: dict[tuple[bytes, str | None], Request | Refusal] = {}
        self._requests: dict[tuple[bytes, str | None, str], Request] = {}
        self._uuids: dict[str, dict[int, str]] = {}
        self._odd_nodes: set[str] = set()
        self._odd_pods: set[str] = set()
        """What the store has read: should it come twice, the store knows what it said of it."""

    def view(self) -> StoreView:
        """What was read."""
        return self._store.view()

    def node(self, raw: msgspec.Raw) -> None:
        """One node; raises MalformedError where not even its name can be read."""
        try:
            node = self._node(NODE.decode(raw), raw)
        except _BROKEN:
            node = None
        if node is None or node.name in self._odd_nodes:
            self._odd_nodes.add(self._store.node_is(raw))
        else:
            self._store.nodes[node.name] = node

    def pod(self, raw: msgspec.Raw) -> None:
        """One pod; raises MalformedError where not even its UID can be read."""
        try:
            pod = self._pod(POD.decode(raw), raw)
        except _BROKEN:
            pod = None
        if pod is None or pod.uid in self._odd_pods:
            self._odd_pods.add(self._store.pod_is(raw))
        else:
            self._store.pods[pod.uid] = pod

    # Nodes.

    def _node(self, node: NodeShape, raw: msgspec.Raw) -> Node:
        meta, status = node.metadata, node.status
        labels, record = meta.labels, meta.annotations.get(CARDS)
        spelt = tuple(labels.get(name) for name in _SPELT)
        agent = meta.annotations.get(AGENT)
        key = (*spelt, bytes(status.capacity), bytes(status.allocatable), record is None, agent)
        known = self._alike.get(key)
        if known is None:
            known = node_of(node_wire(raw), unit_bytes=self._unit)
            _kept(self._alike)[key] = known
            return known
        model = next((labels[name] for name in ACK.model_labels if labels.get(name)), "")
        cards = known.cards
        if record is not None and known.mode is not Mode.NONE:
            cards = cards_in(record)
            cards = tuple(replace(card, model=model) for card in cards) if model else cards
        else:
            cards = tuple(replace(card, uuid=f"{meta.name}/{card.index}") for card in cards)
        return replace(
            known,
            name=At(meta.name).name(),
            cards=cards,
            labels=labels,
            taints=tuple(Taint(one.key, one.value, one.effect) for one in node.spec.taints),
            ready=any(one.type == "Ready" and one.status == "True" for one in status.conditions),
            cordoned=node.spec.unschedulable,
            pool=labels.get(POOL, ""),
        )

    # Pods.

    def _pod(self, pod: PodShape, raw: msgspec.Raw) -> Pod | None:
        """None: the store has to read it."""
        meta, spec = pod.metadata, pod.spec
        node, annotations = spec.nodeName, meta.annotations
        At(meta.name).name()
        At(meta.namespace).label_name()
        maker = next((one for one in meta.ownerReferences if one.controller), None)
        owner = "" if maker is None else f"{maker.kind}/{meta.namespace}/{maker.name}"
        priority, preempts = spec.priority, spec.preemptionPolicy != "Never"
        request = self._request(meta, spec, raw, owner)
        if request is None or not meta.uid:
            return None
        slices = self._recorded(annotations, node) if node else ()
        if request.cards != len(slices):
            slices = ()
        elif request.shared:
            size, core = request.card_bytes, request.card_core
            slices = tuple(
                one if (one.bytes, one.core) == (size, core) else Slice(one.uuid, one.index, size, core)
                for one in slices
            )
        static = MIRROR in annotations
        return Pod(
            uid=meta.uid,
            name=meta.name,
            namespace=meta.namespace,
            request=request,
            placement=Placement(node, slices) if node else None,
            phase=_PHASES.get(pod.status.phase, Phase.PENDING),
            created=0.0 if meta.creationTimestamp is None else _seconds(meta.creationTimestamp),
            priority=priority,
            labels=meta.labels,
            evictable=bool(owner)
            and not goes_with_its_node(owner)
            and not static
            and annotations.get(EVICT) != "false",
            deleting=meta.deletionTimestamp is not None,
            owner_uid="" if maker is None else maker.uid,
            reservation=annotations.get(RESERVATION, "") if node else "",
            static=static,
            preempts=preempts,
        )

    def _request(self, meta: Meta, spec: Spec, raw: msgspec.Raw, owner: str) -> Request | None:
        """What the pod asks for, shared by replicas; None: it makes no sense, or cannot be read."""
        spec.nodeName, spec.priority, spec.preemptionPolicy = "", 0, ""
        spec.volumes = [one for one in spec.volumes if one != Volume(one.name)]
        count = meta.labels.get(ACK.card_count)
        template = KEY.encode(spec)
        request = self._requests.get((template, count, owner))
        if request is not None:
            return request
        asked = self._asked.get((template, count))
        if asked is None:
            wire = pod_wire(raw)
            labels = {} if count is None else {ACK.card_count: count}
            asked = request_of({"labels": labels}, wire.get("spec", {}), unit_bytes=self._unit)
            _kept(self._asked)[template, count] = asked
        if isinstance(asked, Refusal):
            return None
        found = replace(asked, owner=owner) if owner else asked
        _kept(self._requests)[template, count, owner] = found
        return found

    def _recorded(self, annotations: Mapping[str, str], node: str) -> tuple[Slice, ...]:
        """The cards that a record names, ours before the vendor's; none where it cannot be read."""
        ours, vendor = annotations.get(ALLOCATION), annotations.get(ACK.allocation_annotation)
        try:
            if ours is not None:
                return slices_in(ours)
            if vendor is not None:
                return decode_vendor(vendor, self._named(node), node, unit_bytes=self._unit)
        except CodecError:
            pass
        return ()

    def _named(self, node: str) -> dict[int, str]:
        """UUIDs of the node's cards by index."""
        found = self._uuids.get(node)
        if found is None:
            known = self._store.nodes.get(node)
            found = self._uuids[node] = {card.index: card.uuid for card in known.cards} if known else {}
        return found


def _kept(kept: dict[Any, Any]) -> dict[Any, Any]:
    """A memory that does not grow for ever."""
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    return kept


@lru_cache(_MOST_KEPT)
def _seconds(text: str) -> float:
    return seconds_of(At(text))
