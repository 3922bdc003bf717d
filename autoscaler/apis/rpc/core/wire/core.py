# SPDX-License-Identifier: Apache-2.0
"""
Kubernetes' Node and Pod as cluster-autoscaler sends and takes them: protobuf, cut to what is read here.

Turns bytes into the JSON shape that `isolation.contract` reads and a node's JSON into bytes; what either
means is the codec's business. Fields that nobody reads pass by as unknown.

Source: k8s.io/api/core/v1/generated.proto, k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto and
k8s.io/apimachinery/pkg/api/resource/generated.proto (a Quantity is a message of one text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from isolation.contract.protobuf import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_QUANTITY: Final = "Quantity"
_INLINE: Final = "volumeSource"
"""A message on the wire, and no level of its own in JSON."""

WIRE: Final = Wire()
_core: Final = WIRE.package(
    "core",
    {
        "Quantity": {"string": "1 string"},
        "Blank": {},
        "ObjectMeta": {
            "name": "1 string",
            "namespace": "3 string",
            "uid": "5 string",
            "labels": "11 {string}",
            "annotations": "12 {string}",
            "ownerReferences": "13 *OwnerReference",
        },
        "OwnerReference": {"kind": "1 string", "name": "3 string", "uid": "4 string", "controller": "6 bool"},
        "Node": {"metadata": "1 ObjectMeta", "spec": "2 NodeSpec", "status": "3 NodeStatus"},
        "NodeSpec": {"providerID": "3 string", "unschedulable": "4 bool", "taints": "5 *Taint"},
        "Taint": {"key": "1 string", "value": "2 string", "effect": "3 string"},
        "NodeStatus": {
            "capacity": "1 {Quantity}",
            "allocatable": "2 {Quantity}",
            "conditions": "4 *NodeCondition",
        },
        "NodeCondition": {"type": "1 string", "status": "2 string", "reason": "5 string"},
        "Pod": {"metadata": "1 ObjectMeta", "spec": "2 PodSpec"},
        "PodSpec": {
            "volumes": "1 *Volume",
            "containers": "2 *Container",
            "nodeSelector": "7 {string}",
            "nodeName": "10 string",
            "hostNetwork": "11 bool",
            "affinity": "18 Affinity",
            "schedulerName": "19 string",
            "initContainers": "20 *Container",
            "tolerations": "22 *Toleration",
            "runtimeClassName": "29 string",
            "overhead": "32 {Quantity}",
            "topologySpreadConstraints": "33 *Blank",
            "schedulingGates": "38 *Blank",
            "resourceClaims": "39 *Blank",
            "resources": "40 ResourceRequirements",
            "schedulingGroup": "43 Blank",
        },
        "Volume": {"name": "1 string", _INLINE: "2 VolumeSource"},
        "VolumeSource": {
            "gcePersistentDisk": "3 Blank",
            "awsElasticBlockStore": "4 Blank",
            "persistentVolumeClaim": "10 Blank",
            "azureDisk": "22 Blank",
            "ephemeral": "29 Blank",
        },
        "Container": {
            "name": "1 string",
            "ports": "6 *ContainerPort",
            "resources": "8 ResourceRequirements",
            "restartPolicy": "24 string",
        },
        "ContainerPort": {"hostPort": "2 int32"},
        "ResourceRequirements": {"limits": "1 {Quantity}", "requests": "2 {Quantity}"},
        "Toleration": {"key": "1 string", "operator": "2 string", "value": "3 string", "effect": "4 string"},
        "Affinity": {"nodeAffinity": "1 NodeAffinity", "podAffinity": "2 Terms", "podAntiAffinity": "3 Terms"},
        "NodeAffinity": {_REQUIRED: "1 NodeSelector", _PREFERRED: "2 *Blank"},
        "NodeSelector": {"nodeSelectorTerms": "1 *NodeSelectorTerm"},
        "NodeSelectorTerm": {"matchExpressions": "1 *Requirement", "matchFields": "2 *Requirement"},
        "Requirement": {"key": "1 string", "operator": "2 string", "values": "3 *string"},
        "Terms": {_REQUIRED: "1 *Blank", _PREFERRED: "2 *Blank"},
    },
)
Node: Final = _core["Node"]
Pod: Final = _core["Pod"]


class UnreadableError(ValueError):
    """Bytes that are no such message."""


def node_json(raw: bytes) -> dict[str, Any]:
    """The node in these bytes, as JSON; UnreadableError."""
    return _read(Node, raw)


def pod_json(raw: bytes) -> dict[str, Any]:
    """The pod in these bytes, as JSON; UnreadableError."""
    return _read(Pod, raw)


def node_bytes(node: Mapping[str, Any]) -> bytes:
    """A node's JSON as bytes; only the fields above."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    amounts = {key: _quantities(status.get(key, {})) for key in ("capacity", "allocatable")}
    text: bytes = Node(
        metadata=dict(metadata), spec=dict(spec), status={**amounts, "conditions": status.get("conditions", [])}
    ).SerializeToString()
    return text


def _quantities(amounts: Mapping[str, str]) -> dict[str, Any]:
    return {name: _core[_QUANTITY](string=amount) for name, amount in amounts.items()}


def _read(kind: Any, raw: bytes) -> dict[str, Any]:
    try:
        message = kind.FromString(raw)
    except DecodeError as exc:
        raise UnreadableError(f"no {kind.DESCRIPTOR.name} in {len(raw)} bytes: {exc}") from None
    return _plain(message)


def _plain(message: Any) -> dict[str, Any]:
    """What is set, under the names that JSON has for it; as deep as the messages above and no deeper."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            found[field.name] = list(value) if field.is_repeated else value
        elif field.message_type.GetOptions().map_entry:
            found[field.name] = {key: _value(one) for key, one in value.items()}
        elif field.is_repeated:
            found[field.name] = [_plain(one) for one in value]
        elif field.name == _INLINE:
            found |= _plain(value)
        else:
            found[field.name] = _plain(value)
    return found


def _value(value: Any) -> str:
    """Of a map: texts stand for themselves, quantities for their text."""
    text: str = value if isinstance(value, str) else value.string
    return text
