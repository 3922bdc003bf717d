# SPDX-License-Identifier: Apache-2.0
"""
Kubernetes objects reduced to what the doctor judges.

Pure, and total over whatever the server holds: an object that cannot be read says so in its own facts.
"""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.cluster_autoscaler_annotations import HANDOVER
from isolation.contract.codec import CodecError, decode_allocation, decode_isolation, node_of, pod_of
from isolation.contract.codec.cursor import At
from isolation.contract.codec.node import policy_of
from isolation.contract.codec.pod import seconds_of
from isolation.contract.codec.request import goes_with_its_node, owner_of
from isolation.contract.model import Refusal
from isolation.contract.names import (
    ACK,
    AGENT,
    ALLOCATION,
    AUTOSCALER_CLIENT,
    CARD_COUNT,
    CARD_UNITS,
    CARDS,
    COMPUTE_POLICY,
    DIALECT,
    ISOLATION,
    MIG_PREFIX,
    QGPU_POLICY_LABEL,
    SHARED,
    UNHEALTHY_CARDS,
)
from isolation.contract.quantity import GIB
from isolation.doctor.checks.cluster.facts import Caller, ClusterNode, PodFacts, Secret, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.model import Node, Slice

_VENDORS: Final = ("alibabacloud.com/nodepool-id", "ack.aliyun.com")
"""Labels by which Alibaba's Kubernetes marks its nodes."""
_MANAGED: Final = "cert-manager.io/certificate-name"
"""Annotation by which cert-manager marks the Secrets that it renews."""
_LISTS: Final = ("containers", "initContainers")
_ENDED: Final = ("Succeeded", "Failed")
_STATUSES: Final = ("containerStatuses", "initContainerStatuses")


def node_facts(item: Mapping[str, Any]) -> ClusterNode:
    """One node."""
    meta, status = table(item, "metadata"), table(item, "status")
    labels, annotations, left = table(meta, "labels"), table(meta, "annotations"), table(status, "allocatable")
    why, node = "", None
    try:
        node = node_of(item)
    except CodecError as exc:
        why = str(exc)
    mode = labels.get(ACK.mode_label)
    backend, text = _backend(annotations)
    return ClusterNode(
        name=str(meta.get("name", "")),
        node=node,
        why=why,
        mode=mode if isinstance(mode, str) else None,
        policy=_strange_policy(labels),
        backend=backend,
        backend_text=text,
        units=_count(left.get(ACK.memory)),
        whole=_count(left.get(ACK.whole)) + sum(_count(left[name]) for name in left if name.startswith(MIG_PREFIX)),
        kubelet=str(table(status, "nodeInfo").get("kubeletVersion", "")),
        agent=str(annotations.get(AGENT, "")),
        card_units=str(labels.get(CARD_UNITS, "")),
        card_count=str(labels.get(CARD_COUNT, "")),
        unhealthy=str(annotations.get(UNHEALTHY_CARDS, "")),
        described=CARDS in annotations,
        vendors=any(label in labels for label in _VENDORS),
        offered=tuple(key for key, value in table(status, "capacity").items() if "/" in key and _count(value)),
    )


def _backend(annotations: Mapping[str, Any]) -> tuple[str | None, str]:
    """What the agent says that it enforces by, and what that holds."""
    try:
        return decode_isolation(str(annotations[ISOLATION]))
    except (KeyError, CodecError):
        return None, ""


def _strange_policy(labels: Mapping[str, Any]) -> str | None:
    """What stands where a compute policy should; None: nothing is wrong with it."""
    said = {key: str(labels[key]) for key in (COMPUTE_POLICY, QGPU_POLICY_LABEL) if key in labels}
    return next(iter(said.values())) if said and policy_of(said) is None else None


def asks_for_shares(item: Mapping[str, Any]) -> bool:
    """Whether a pod is any business of ours."""
    return _labelled(item) or _asks(item)


def unit_of(nodes: Iterable[ClusterNode]) -> int:
    """Bytes of one unit of shares in this cluster, as most agents say; a GiB where none says."""
    said = Counter(card.unit_bytes for one in nodes if one.node and one.described for card in one.node.cards[:1])
    return max(said, key=lambda unit: (said[unit], unit), default=GIB)


def pod_facts(item: Mapping[str, Any], nodes: Mapping[str, Node], unit_bytes: int = GIB) -> PodFacts:
    """One pod."""
    meta, spec = table(item, "metadata"), table(item, "spec")
    said = table(meta, "annotations")
    record = said.get(ALLOCATION)
    wrong, created, slices = "", 0.0, _slices(record)
    try:
        pod = pod_of(item, nodes, unit_bytes=unit_bytes)
        if isinstance(pod, Refusal):
            wrong = pod.reason
        else:
            created = pod.created
            slices = pod.placement.slices if pod.placement else ()
    except CodecError as exc:
        wrong = str(exc)
    namespace = str(meta.get("namespace", ""))
    return PodFacts(
        key=f"{namespace}/{meta.get('name', '')}",
        namespace=namespace,
        node=str(spec.get("nodeName") or ""),
        scheduler=str(spec.get("schedulerName") or ""),
        labelled=_labelled(item),
        done=table(item, "status").get("phase") in _ENDED,
        deleting="deletionTimestamp" in meta,
        asks=_asks(item),
        recorded=record is not None,
        slices=slices,
        dialect=str(said.get(DIALECT, "")),
        wrong=wrong,
        created=created,
        annotations={key: str(said[key]) for key in HANDOVER if key in said},
        resident=_goes_with_its_node(meta),
        devices=_devices(table(item, "status")),
    )


def _goes_with_its_node(meta: Mapping[str, Any]) -> bool:
    try:
        return goes_with_its_node(owner_of(meta))
    except CodecError:
        return False


def caller(item: Mapping[str, Any]) -> Caller | None:
    """A pod that runs with the certificate for cluster-autoscaler; None where it does not."""
    if AUTOSCALER_CLIENT not in _needs(table(item, "spec")):
        return None
    meta, boxes = table(item, "metadata"), tables(table(item, "status"), "containerStatuses")
    try:
        begun = [seconds_of(At(table(table(box, "state"), "running"))["startedAt"]) for box in boxes]
    except CodecError:
        return None
    # of several, that of the one that has run for longest: which of them asks us, nobody here knows
    known = [at for at in begun if at]
    return Caller(f"{meta.get('namespace', '')}/{meta.get('name', '')}", min(known)) if known else None


def ungoverned(item: Mapping[str, Any]) -> Workload | None:
    """A pod as a workload of its own, where no controller made it (static pods); None where one did."""
    owners = tables(table(item, "metadata"), "ownerReferences")
    if any(one.get("kind") != "Node" for one in owners):
        return None
    return workload("Pod", {**item, "spec": {"template": item, "replicas": 1}})


def workload(kind: str, item: Mapping[str, Any]) -> Workload:
    """A Deployment or DaemonSet."""
    meta, spec, status = table(item, "metadata"), table(item, "spec"), table(item, "status")
    inner = table(table(spec, "template"), "spec")
    images = tuple(str(one.get("image", "")) for part in _LISTS for one in tables(inner, part))
    wanted = _count(status.get("desiredNumberScheduled") if kind == "DaemonSet" else spec.get("replicas", 1))
    ready = _count(status.get("numberReady") if kind == "DaemonSet" else status.get("readyReplicas"))
    return Workload(
        kind, f"{meta.get('namespace', '')}/{meta.get('name', '')}", images, wanted, ready, _words(inner), _needs(inner)
    )


def secret(item: Mapping[str, Any]) -> Secret:
    """Its certificates."""
    data, notes = table(item, "data"), table(table(item, "metadata"), "annotations")
    return Secret(_bytes(data.get("tls.crt")), _bytes(data.get("ca.crt")), str(notes.get(_MANAGED, "")))


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _words(inner: Mapping[str, Any]) -> tuple[str, ...]:
    lists = [one.get(part) for kind in _LISTS for one in tables(inner, kind) for part in ("command", "args")]
    return tuple(str(word) for words in lists if isinstance(words, list) for word in words)


def _needs(inner: Mapping[str, Any]) -> tuple[str, ...]:
    mounted = [table(volume, "secret") for volume in tables(inner, "volumes")]
    names = {one.get("secretName") for one in mounted if one.get("optional") is not True}
    return tuple(sorted(name for name in names if isinstance(name, str)))


def _devices(status: Mapping[str, Any]) -> frozenset[str]:
    """`allocatedResourcesStatus` of containers (KEP-4680, on since Kubernetes 1.36)."""
    return frozenset(
        str(device.get("resourceID", ""))
        for part in _STATUSES
        for container in tables(status, part)
        for resource in tables(container, "allocatedResourcesStatus")
        if resource.get("name") == ACK.memory
        for device in tables(resource, "resources")
    )


def _slices(record: object) -> tuple[Slice, ...]:
    try:
        return decode_allocation(record).slices if isinstance(record, str) else ()
    except CodecError:
        return ()


def _labelled(item: Mapping[str, Any]) -> bool:
    return table(table(item, "metadata"), "labels").get(SHARED) == "true"


def _asks(item: Mapping[str, Any]) -> bool:
    spec = table(item, "spec")
    for part in _LISTS:
        for container in tables(spec, part):
            resources = table(container, "resources")
            for side in ("limits", "requests"):
                if ACK.memory in table(resources, side):
                    return True
    return False


def table(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table under a key; empty where something else is there."""
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def tables(item: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The tables in the list under a key."""
    found = item.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _count(value: object) -> int:
    """A plain number; 0 for anything else, as Kubernetes has where nothing is stated."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0  # noqa: PLR2004 (a trillion)
