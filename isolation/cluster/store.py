"""
What is known of the cluster: nodes and pods by what the API server said last.

Decides what an object's JSON does to the picture, without I/O and without a clock. What cannot
be read stays visible and is never guessed: an unreadable object keeps its last readable value
(a pod that holds a card must not seem to have let go of it), a pod whose request makes no
sense stands among the refused. Which objects arrive, in which order, is `follow`'s business.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.cluster.failure import MalformedError
from isolation.cluster.wire import node_wire, pod_wire
from isolation.contract.codec import CodecError, node_of, pod_of
from isolation.contract.model import Cluster, Node, Pod, Refusal, Request
from isolation.contract.names import ACK, ALLOCATION, Dialect
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import msgspec

    from isolation.cluster.wire import NodeWire, PodWire

log = logging.getLogger(__name__)
_MOST_REQUESTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Change:
    """One object before and after; None is absent. Exactly one pair is filled."""

    node_before: Node | None = None
    node: Node | None = None
    pod_before: Pod | None = None
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod whose request no fleet could serve, so that it is not in the model."""

    key: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class View:
    """One consistent reading; never changes again."""

    cluster: Cluster
    refused: Mapping[str, Refused]
    """By UID."""
    unreadable: Mapping[str, str]
    """What cannot be read, by `node/<name>` or `pod/<UID>`, with the reason."""
    generation: int
    """Grows with every change; equal generations are equal readings of one store."""


class Store:
    """The picture; one thread writes and reads it."""

    def __init__(self, dialect: Dialect = ACK, unit_bytes: int = GIB) -> None:
        self._dialect, self._unit = dialect, unit_bytes
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self._refused: dict[str, Refused] = {}
        self._unreadable: dict[str, str] = {}
        self._by_index: dict[str, PodWire] = {}
        """Bound pods whose record names cards by index: read again when their node's cards change."""
        self._requests: dict[Request, Request] = {}
        self._listeners: list[Callable[[Change], None]] = []
        self._generation = 0
        self._view: View | None = None

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call this with every change, in order, at once; it must not block and what it raises is only logged."""
        self._listeners.append(listener)

    def view(self) -> View:
        """The reading of this moment; made once per change that somebody looks at."""
        if self._view is None:
            self._view = View(
                cluster=Cluster(tuple(self.nodes.values()), tuple(self.pods.values())),
                refused=MappingProxyType(dict(self._refused)),
                unreadable=MappingProxyType(dict(self._unreadable)),
                generation=self._generation,
            )
        return self._view

    # Nodes.

    def node_is(self, raw: msgspec.Raw) -> str:
        """A node as it is now; its key. Raises MalformedError where not even the name can be read."""
        wire = node_wire(raw)
        name = _text(wire, "name")
        try:
            node = node_of(wire, dialect=self._dialect, unit_bytes=self._unit)
        except CodecError as exc:
            self._cannot_read(f"node/{name}", str(exc))
            return name
        self._can_read(f"node/{name}")
        before = self.nodes.get(name)
        if before != node:
            self.nodes[name] = node
            self._tell(Change(node_before=before, node=node))
            if before is None or before.cards != node.cards:
                self._read_again(name)
        return name

    def node_gone(self, name: str) -> None:
        """A node that is no more."""
        self._can_read(f"node/{name}")
        before = self.nodes.pop(name, None)
        if before is not None:
            self._tell(Change(node_before=before))

    # Pods.

    def pod_is(self, raw: msgspec.Raw) -> str:
        """A pod as it is now; its key. Raises MalformedError where not even the UID can be read."""
        wire = pod_wire(raw)
        uid = _text(wire, "uid")
        self._read(uid, wire)
        return uid

    def pod_gone(self, uid: str) -> None:
        """A pod that is no more, or is none of ours any more."""
        self._by_index.pop(uid, None)
        self._can_read(f"pod/{uid}")
        if self._refused.pop(uid, None) is not None:
            self._touch()
        before = self.pods.pop(uid, None)
        if before is not None:
            self._tell(Change(pod_before=before))

    def _read(self, uid: str, wire: PodWire) -> None:
        try:
            pod = pod_of(wire, self.nodes, dialect=self._dialect, unit_bytes=self._unit)
        except CodecError as exc:
            self._cannot_read(f"pod/{uid}", str(exc))
            return
        self._can_read(f"pod/{uid}")
        if isinstance(pod, Refusal):
            self.pod_gone(uid)
            self._refused[uid] = Refused(_key(wire), pod)
            self._touch()
            return
        if self._refused.pop(uid, None) is not None:
            self._touch()
        self._keep_if_by_index(uid, wire, pod)
        before = self.pods.get(uid)
        if before != pod:
            self.pods[uid] = self._shared(pod)
            self._tell(Change(pod_before=before, pod=pod))

    def _keep_if_by_index(self, uid: str, wire: PodWire, pod: Pod) -> None:
        record = wire["metadata"].get("annotations") or {}
        if pod.placement is not None and self._dialect.allocation_annotation in record and ALLOCATION not in record:
            self._by_index[uid] = wire
        else:
            self._by_index.pop(uid, None)

    def _read_again(self, node: str) -> None:
        """Records that count cards mean other cards now."""
        for uid, wire in list(self._by_index.items()):
            if wire.get("spec", {}).get("nodeName") == node:
                self._read(uid, wire)

    def _shared(self, pod: Pod) -> Pod:
        """The same pod, its request one object with that of its replicas: half the memory of a large fleet."""
        if len(self._requests) >= _MOST_REQUESTS:
            self._requests.clear()
        request = self._requests.setdefault(pod.request, pod.request)
        return pod if request is pod.request else replace(pod, request=request)

    # Whole lists.

    def keep_nodes(self, names: Iterable[str]) -> None:
        """Every node but these is gone."""
        wanted = frozenset(names)
        known = self.nodes.keys() | {key[5:] for key in self._unreadable if key.startswith("node/")}
        for name in known - wanted:
            self.node_gone(name)

    def keep_pods(self, uids: Iterable[str]) -> None:
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

    def _tell(self, change: Change) -> None:
        self._touch()
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:  # one broken consumer must not stop the others or the watch
                log.exception("a listener failed")


def _text(wire: NodeWire | PodWire, field: str) -> str:
    """A field of the metadata that an object cannot be without."""
    value = wire.get("metadata", {}).get(field)
    if not isinstance(value, str) or not value:
        raise MalformedError(f"an object without metadata.{field}")
    return value


def _key(wire: PodWire) -> str:
    meta = wire.get("metadata", {})
    return f"{meta.get('namespace', 'default')}/{meta.get('name', '')}"
