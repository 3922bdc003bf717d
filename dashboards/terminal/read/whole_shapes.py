# SPDX-License-Identifier: Apache-2.0
"""
Nodes and pods in the strictest shape that the API server sends, as far as the scheduler's store reads them.

Decides what `whole_lists` may read quickly: JSON of any other shape is no such object. What Kubernetes writes as it
was sent stays text, so that two templates are alike if their texts are. Names are Kubernetes' spelling.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_NONE: Final = msgspec.Raw()


class Owner(msgspec.Struct):
    """Who made the pod."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(msgspec.Struct):
    """Of nodes and pods."""

    name: str
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    namespace: str = "default"
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    ownerReferences: list[Owner] = msgspec.field(default_factory=list)  # noqa: N815
    creationTimestamp: str | None = None  # noqa: N815
    deletionTimestamp: str | None = None  # noqa: N815


class Container(msgspec.Struct, omit_defaults=True):
    """What is asked for."""

    name: msgspec.Raw = _NONE
    restartPolicy: msgspec.Raw = _NONE  # noqa: N815
    resources: msgspec.Raw = _NONE
    ports: msgspec.Raw = _NONE


class Volume(msgspec.Struct, omit_defaults=True):
    """What can tie a pod to a place; the token's volume has another name in each replica, and says nothing."""

    name: str = ""
    persistentVolumeClaim: msgspec.Raw = _NONE  # noqa: N815
    ephemeral: msgspec.Raw = _NONE
    gcePersistentDisk: msgspec.Raw = _NONE  # noqa: N815
    awsElasticBlockStore: msgspec.Raw = _NONE  # noqa: N815
    azureDisk: msgspec.Raw = _NONE  # noqa: N815


class Spec(msgspec.Struct, omit_defaults=True):
    """All that the store reads of a pod's."""

    containers: list[Container]
    nodeName: str = ""  # noqa: N815
    priority: _Int32 = 0
    preemptionPolicy: str = ""  # noqa: N815
    initContainers: list[Container] = msgspec.field(default_factory=list)  # noqa: N815
    volumes: list[Volume] = msgspec.field(default_factory=list)
    nodeSelector: msgspec.Raw = _NONE  # noqa: N815
    affinity: msgspec.Raw = _NONE
    tolerations: msgspec.Raw = _NONE
    overhead: msgspec.Raw = _NONE
    resources: msgspec.Raw = _NONE
    topologySpreadConstraints: msgspec.Raw = _NONE  # noqa: N815
    schedulingGates: msgspec.Raw = _NONE  # noqa: N815
    resourceClaims: msgspec.Raw = _NONE  # noqa: N815
    workloadRef: msgspec.Raw = _NONE  # noqa: N815
    schedulingGroup: msgspec.Raw = _NONE  # noqa: N815
    hostNetwork: msgspec.Raw = _NONE  # noqa: N815
    runtimeClassName: msgspec.Raw = _NONE  # noqa: N815


class Status(msgspec.Struct):
    """A pod's."""

    phase: str = ""


class PodShape(msgspec.Struct):
    """One pod."""

    metadata: Meta
    spec: Spec
    status: Status = msgspec.field(default_factory=Status)


class TaintShape(msgspec.Struct):
    """Whom the node keeps away."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(msgspec.Struct):
    """What was set on the node."""

    taints: list[TaintShape] = msgspec.field(default_factory=list)
    unschedulable: bool = False


class Condition(msgspec.Struct):
    """One of the node."""

    type: str = ""
    status: str = ""


class NodeStatus(msgspec.Struct):
    """What the kubelet states."""

    capacity: msgspec.Raw = _NONE
    allocatable: msgspec.Raw = _NONE
    conditions: list[Condition] = msgspec.field(default_factory=list)


class NodeShape(msgspec.Struct):
    """One node."""

    metadata: Meta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


POD: Final = msgspec.json.Decoder(PodShape)
NODE: Final = msgspec.json.Decoder(NodeShape)
KEY: Final = msgspec.json.Encoder()
