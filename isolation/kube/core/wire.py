# SPDX-License-Identifier: Apache-2.0
"""
The parts of Kubernetes' JSON that the codec reads, and nothing else of it.

Decides what is kept of an answer: the rest (images, managed fields, container commands) is
skipped by the decoder and never becomes a Python object. Field names are Kubernetes'; what a
value means is the codec's business, so everything below the second level stays unchecked here.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

import msgspec

from isolation.kube.core.errors import MalformedError

MAX_EVENT_BYTES: Final = 8 << 20
"""etcd refuses objects beyond 1.5 MiB; an ERROR or an event of one object fits many times."""
MAX_PAGE_BYTES: Final = 512 << 20


class Metadata(TypedDict, total=False):
    """Of any object."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: Any
    annotations: Any
    ownerReferences: Any
    creationTimestamp: Any
    deletionTimestamp: Any


class _NodeSpec(TypedDict, total=False):
    taints: Any
    unschedulable: Any


class _NodeStatus(TypedDict, total=False):
    capacity: Any
    allocatable: Any
    conditions: Any
    addresses: Any


class NodeWire(TypedDict, total=False):
    """A node, as far as `contract.codec` reads it."""

    metadata: Metadata
    spec: _NodeSpec
    status: _NodeStatus


class _Resources(TypedDict, total=False):
    limits: Any
    requests: Any


class _SecurityContext(TypedDict, total=False):
    runAsUser: Any


class _Container(TypedDict, total=False):
    name: Any
    restartPolicy: Any
    resources: _Resources
    ports: Any
    securityContext: _SecurityContext | None


class _Volume(TypedDict, total=False):
    """Volumes that can tie a pod to a node or zone; what other kinds say is skipped."""

    name: Any
    persistentVolumeClaim: Any
    ephemeral: Any
    gcePersistentDisk: Any
    awsElasticBlockStore: Any
    azureDisk: Any


class _PodSpec(TypedDict, total=False):
    nodeName: Any
    nodeSelector: Any
    affinity: Any
    tolerations: Any
    containers: list[_Container]
    initContainers: list[_Container]
    overhead: Any
    resources: _Resources
    priority: Any
    preemptionPolicy: Any
    topologySpreadConstraints: Any
    schedulingGates: Any
    resourceClaims: Any
    workloadRef: Any
    schedulingGroup: Any
    hostNetwork: Any
    runtimeClassName: Any
    securityContext: _SecurityContext | None
    volumes: list[_Volume]


class _PodStatus(TypedDict, total=False):
    phase: Any


class PodWire(TypedDict, total=False):
    """A pod, as far as `contract.codec` reads it."""

    metadata: Metadata
    spec: _PodSpec
    status: _PodStatus


class _ListMeta(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 (Kubernetes' spelling, here and below)
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """One page of a list; items are decoded one by one, so that a broken one breaks alone."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class ObjectIdentity(msgspec.Struct):
    """Who any object is, read without the rest of it."""

    name: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815


class _Whole(msgspec.Struct):
    metadata: ObjectIdentity


NODE: Final = msgspec.json.Decoder(NodeWire)
POD: Final = msgspec.json.Decoder(PodWire)
_WHOLE: Final = msgspec.json.Decoder(_Whole)
_PAGE: Final = msgspec.json.Decoder(Page)
_EVENT: Final = msgspec.json.Decoder(Event)
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def page_of(body: bytes) -> Page:
    """One page; raises MalformedError."""
    try:
        page = _PAGE.decode(body)
    except _BROKEN as exc:
        raise MalformedError(f"invalid list: {exc}") from None
    if not page.metadata.resourceVersion:
        raise MalformedError("list has no resourceVersion")
    return page


def event_of(line: bytes) -> Event:
    """One event; raises MalformedError."""
    try:
        return _EVENT.decode(line)
    except _BROKEN as exc:
        raise MalformedError(f"invalid watch event: {exc}") from None


def identity_of(raw: msgspec.Raw) -> ObjectIdentity:
    """Who an object is; raises MalformedError."""
    try:
        return _WHOLE.decode(raw).metadata
    except _BROKEN as exc:
        raise MalformedError(f"invalid object: {exc}") from None


def node_wire(raw: msgspec.Raw) -> NodeWire:
    """A node; raises MalformedError."""
    try:
        return NODE.decode(raw)
    except _BROKEN as exc:
        raise MalformedError(f"invalid Node: {exc}") from None


def pod_wire(raw: msgspec.Raw) -> PodWire:
    """A pod; raises MalformedError."""
    try:
        pod = POD.decode(raw)
    except _BROKEN as exc:
        raise MalformedError(f"invalid Pod: {exc}") from None
    spec = pod.get("spec", {})
    if "volumes" in spec:
        # The token's volume has another name in each replica, and says nothing.
        spec["volumes"] = [volume for volume in spec["volumes"] if len(volume) > 1]
    return pod
