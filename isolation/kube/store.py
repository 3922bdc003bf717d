# SPDX-License-Identifier: Apache-2.0
"""
Nodes and pods of a cluster as the API server showed them last, as values of the model.

Decides how an object's JSON changes them, without I/O and without a clock. What cannot
be read stays visible and is never guessed: an unreadable object keeps its last readable value
(a pod that holds a card must not seem to have let go of it), a pod whose request makes no
sense stands among the refused. Which objects arrive, and in which order, is decided in `listwatch`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.contract.codec import CodecError, node_of, owner_of, pod_of, request_of
from isolation.contract.codec.request import READ_ANNOTATIONS, group_of
from isolation.contract.model import Cluster, Node, Pod, Refusal, Request
from isolation.contract.names import (
    ACK,
    ALLOCATION,
    CLASSIC_CARD,
    CLASSIC_UNITS,
    EVICT,
    MIRROR,
    PROVISIONING_REQUEST,
    Dialect,
)
from isolation.contract.quantity import GIB
from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import identity_of, node_wire, pod_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from isolation.kube.core.wire import NodeWire, PodWire

log = logging.getLogger(__name__)
_MAX_REQUESTS: Final = 16_384
_READ: Final = tuple(sorted(READ_ANNOTATIONS))
_OF_ONE: Final = frozenset({"ownerReferences", "namespace"})
"""Of metadata, what is a workload's own and is put into the request afterwards."""
_NOT_ASKED: Final = frozenset({"nodeName", "priority", "preemptionPolicy"})
"""Of a spec, what says nothing about how much is asked for."""


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """One object before and after; None is absent. Exactly one pair is filled."""

    node_before: Node | None = None
    node: Node | None = None
    pod_before: Pod | None = None
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod whose request no fleet could serve, so that it is not in the model."""

    key: str
    refusal: Refusal
    node: str = ""
    """Where it is bound all the same; empty: it waits."""


@dataclass(frozen=True, slots=True)
class StoreView:
    """One consistent reading; never changes again."""

    cluster: Cluster
    refused: Mapping[str, RefusedPod]
    """By UID."""
    unreadable: Mapping[str, str]
    """What cannot be read, by `node/<name>` or `pod/<UID>`, with the reason."""
    generation: int
    """Grows with every change; equal generations are equal readings of one store."""


class Store:
    """The picture; one thread writes and reads it."""

    def __init__(self, dialect: Dialect = ACK, unit_bytes: int = GIB, noted: frozenset[str] = frozenset()) -> None:
        """`noted`: extended resources of others that `offered` tells of."""
        self._dialect, self._unit, self._noted = dialect, unit_bytes, noted
        self.offered: dict[str, frozenset[str]] = {}
        """By node, which of the noted resources it offers; nodes that offer none are left out."""
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self._refused: dict[str, RefusedPod] = {}
        self._unreadable: dict[str, str] = {}
        self._by_index: dict[str, dict[str, bytes]] = {}
        """By node and UID, pods whose record names cards by index: read again when the node's cards change."""
        self._requests: dict[bytes, Request | Refusal] = {}
        """What templates ask for: replicas are read once and share one request."""
        self._read_annotations = READ_ANNOTATIONS | {
            *(ALLOCATION, EVICT, MIRROR, dialect.allocation_annotation),
            *(CLASSIC_CARD, CLASSIC_UNITS, PROVISIONING_REQUEST),
        }
        self._listeners: list[Callable[[ClusterChange], None]] = []
        self._generation = 0
        self._view: StoreView | None = None

    def listen(self, listener: Callable[[ClusterChange], None]) -> None:
        """Call this with every change, in order, at once; it must not block and what it raises is only logged."""
        self._listeners.append(listener)

    def view(self) -> StoreView:
        """The reading of this moment; made once per change that somebody looks at."""
        if self._view is None:
            self._view = StoreView(
                cluster=Cluster(tuple(self.nodes.values()), tuple(self.pods.values())),
                refused=MappingProxyType(dict(self._refused)),
                unreadable=MappingProxyType(dict(self._unreadable)),
                generation=self._generation,
            )
        return self._view

    # Nodes.

    def node_is(self, raw: msgspec.Raw) -> str:
        """A node as it is now; its key. Raises MalformedError where not even the name can be read."""
        name = _known(identity_of(raw).name)
        try:
            wire = node_wire(raw)
            self._note_offered(name, wire)
            node = node_of(wire, dialect=self._dialect, unit_bytes=self._unit)
        except (CodecError, MalformedError) as exc:
            self._cannot_read(f"node/{name}", str(exc))
            return name
        self._can_read(f"node/{name}")
        before = self.nodes.get(name)
        if before != node:
            self.nodes[name] = node
            self._tell(ClusterChange(node_before=before, node=node))
            if before is None or before.cards != node.cards:
                self._read_again(name)
        return name

    def node_gone(self, name: str) -> None:
        """A node that is no more."""
        self._can_read(f"node/{name}")
        self.offered.pop(name, None)
        before = self.nodes.pop(name, None)
        if before is not None:
            self._tell(ClusterChange(node_before=before))

    def _note_offered(self, name: str, wire: NodeWire) -> None:
        capacity = wire.get("status", {}).get("capacity") if self._noted else None
        found = capacity if isinstance(capacity, dict) else {}
        offered = frozenset(one for one in self._noted if found.get(one) not in {None, "0", 0})
        if offered:
            self.offered[name] = offered
        else:
            self.offered.pop(name, None)

    # Pods.

    def pod_is(self, raw: msgspec.Raw) -> str:
        """A pod as it is now; its key. Raises MalformedError where not even the UID can be read."""
        uid = _known(identity_of(raw).uid)
        self._read(uid, raw)
        return uid

    def pod_gone(self, uid: str) -> None:
        """A pod that is no more, or is none of ours any more."""
        self._forget_record(uid)
        self._can_read(f"pod/{uid}")
        if self._refused.pop(uid, None) is not None:
            self._touch()
        before = self.pods.pop(uid, None)
        if before is not None:
            self._tell(ClusterChange(pod_before=before))

    def _read(self, uid: str, raw: msgspec.Raw) -> None:
        try:
            wire = pod_wire(raw)
            asked = self._asked(wire)
            pod = pod_of(wire, self.nodes, dialect=self._dialect, unit_bytes=self._unit, request=asked)
        except (CodecError, MalformedError) as exc:
            self._cannot_read(f"pod/{uid}", str(exc))
            return
        self._can_read(f"pod/{uid}")
        if isinstance(pod, Refusal):
            self.pod_gone(uid)
            self._refused[uid] = RefusedPod(_key(wire), pod, wire.get("spec", {}).get("nodeName") or "")
            self._touch()
            return
        if self._refused.pop(uid, None) is not None:
            self._touch()
        self._keep_record(uid, wire, pod)
        before = self.pods.get(uid)
        if before != pod:
            self.pods[uid] = pod
            self._tell(ClusterChange(pod_before=before, pod=pod))

    def _asked(self, wire: PodWire) -> Request | Refusal:
        """What the pod asks for, read once per template; raises CodecError. The key holds all that it depends on."""
        meta, spec = wire.get("metadata", {}), wire.get("spec", {})
        labels = meta.get("labels")
        count = labels.get(self._dialect.card_count) if isinstance(labels, dict) else labels
        notes = meta.get("annotations")
        said = [(name, notes[name]) for name in _READ if name in notes] if isinstance(notes, dict) else notes
        rest = {key: value for key, value in spec.items() if key not in _NOT_ASKED}
        key = msgspec.json.encode((meta.get("namespace"), meta.get("ownerReferences"), count, said, rest))
        found = self._requests.get(key)
        if found is None:
            # Many workloads ask for the same: one reading serves them all, and the owner and group of each are put in.
            template = msgspec.json.encode((count, said, rest))
            asked = self._requests.get(template)
            if asked is None:
                impersonal = {name: value for name, value in meta.items() if name not in _OF_ONE}
                asked = request_of(impersonal, spec, dialect=self._dialect, unit_bytes=self._unit)
                self._keep_request(template, asked)
            owner = owner_of(meta)
            found = asked
            if isinstance(asked, Request) and (owner or asked.shared):
                found = replace(asked, owner=owner, group=group_of(meta) if asked.shared else "")
            self._keep_request(key, found)
        return found

    def _keep_request(self, key: bytes, request: Request | Refusal) -> None:
        if len(self._requests) >= _MAX_REQUESTS:
            self._requests.clear()
        self._requests[key] = request

    def _keep_record(self, uid: str, wire: PodWire, pod: Pod) -> None:
        """Remember a pod whose record counts cards, as little of it as can be read again."""
        self._forget_record(uid)
        record = wire["metadata"].get("annotations") or {}
        by_index = self._dialect.allocation_annotation in record or CLASSIC_CARD in record
        if pod.placement is None or not by_index or ALLOCATION in record:
            return
        few = {key: value for key, value in record.items() if key in self._read_annotations}
        small = {**wire, "metadata": {**wire["metadata"], "annotations": few}}
        self._by_index.setdefault(pod.placement.node, {})[uid] = msgspec.json.encode(small)

    def _forget_record(self, uid: str) -> None:
        before = self.pods.get(uid)
        if before is not None and before.placement is not None:
            self._by_index.get(before.placement.node, {}).pop(uid, None)

    def _read_again(self, node: str) -> None:
        """Records that count cards mean other cards now."""
        for uid, small in list(self._by_index.get(node, {}).items()):
            self._read(uid, msgspec.Raw(small))

    # Whole lists.

    def retain_nodes(self, names: Iterable[str]) -> None:
        """Every node but these is gone."""
        wanted = frozenset(names)
        known = self.nodes.keys() | {key[5:] for key in self._unreadable if key.startswith("node/")}
        for name in known - wanted:
            self.node_gone(name)

    def retain_pods(self, uids: Iterable[str]) -> None:
        """Every pod but these is gone."""
        wanted = frozenset(uids)
        known = self.pods.keys() | self._refused.keys()
        for uid in (known | {key[4:] for key in self._unreadable if key.startswith("pod/")}) - wanted:
            self.pod_gone(uid)

    # Bookkeeping.

    def _cannot_read(self, key: str, why: str) -> None:
        if self._unreadable.get(key) != why:
            self._unreadable[key] = why
            self._touch()

    def _can_read(self, key: str) -> None:
        if self._unreadable.pop(key, None) is not None:
            self._touch()

    def _touch(self) -> None:
        self._generation += 1
        self._view = None

    def _tell(self, change: ClusterChange) -> None:
        self._touch()
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:  # one broken consumer must not stop the others or the watch
                log.exception("cannot process cluster change: internal error")


def _known(identity: str) -> str:
    if not identity:
        raise MalformedError("object has no name or UID")
    return identity


def _key(wire: PodWire) -> str:
    meta = wire.get("metadata", {})
    return f"{meta.get('namespace', 'default')}/{meta.get('name', '')}"
