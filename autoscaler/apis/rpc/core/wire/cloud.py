# SPDX-License-Identifier: Apache-2.0
"""
cluster-autoscaler's externalgrpc CloudProvider: names, numbers and types, in both generations at once.

Up to 1.33 a template is `nodeInfo`, 1.34 reads both, from 1.35 on it is `nodeBytes` alone; likewise a pod is
`pod` and then `pod_bytes`. A message inside a message and bytes are the same on the wire, so all four stand
as bytes here and whoever answers fills both. The options of a group have durations as metav1 (3, 4, 5) and as
google.protobuf (8 to 11). Knows nothing of what a group is.

Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/externalgrpc/protos/externalgrpc.proto, at the
versions of 2022 and of 2026; metav1.Duration is nanoseconds.
"""

from __future__ import annotations

from typing import Final

from isolation.contract.protobuf import Wire

SERVICE: Final = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider"
_PACKAGE: Final = SERVICE.rpartition(".")[0]
UNSPECIFIED, RUNNING, CREATING, DELETING = range(4)
"""InstanceState."""
OUT_OF_RESOURCES: Final = 1
OTHER_ERROR: Final = 99
"""InstanceErrorClass (cloudprovider.OutOfResourcesErrorClass, OtherErrorClass)."""

_wire: Final = Wire()
_wire.package(
    "google.protobuf",
    {"Any": {"type_url": "1 string", "value": "2 bytes"}, "Duration": {"seconds": "1 int64", "nanos": "2 int32"}},
)
_wire.package("metav1", {"Duration": {"duration": "1 int64"}})
_empty: Final = ("NodeGroups", "GPULabel", "GetAvailableGPUTypes", "Cleanup", "Refresh")
_of_group: Final = ("NodeGroupTargetSize", "NodeGroupNodes", "NodeGroupTemplateNodeInfo")
_messages: Final = _wire.package(
    _PACKAGE,
    {
        **{f"{name}Request": {} for name in _empty},
        **{f"{name}Request": {"id": "1 string"} for name in _of_group},
        "NodeGroup": {"id": "1 string", "minSize": "2 int32", "maxSize": "3 int32", "debug": "4 string"},
        "ExternalGrpcNode": {
            "providerID": "1 string",
            "name": "2 string",
            "labels": "3 {string}",
            "annotations": "4 {string}",
        },
        "NodeGroupsResponse": {"nodeGroups": "1 *NodeGroup"},
        "NodeGroupForNodeRequest": {"node": "1 ExternalGrpcNode"},
        "NodeGroupForNodeResponse": {"nodeGroup": "1 NodeGroup"},
        "PricingNodePriceRequest": {"node": "1 ExternalGrpcNode"},
        "PricingPodPriceRequest": {"pod": "1 bytes", "pod_bytes": "4 bytes"},
        "PricingNodePriceResponse": {"price": "1 double"},
        "PricingPodPriceResponse": {"price": "1 double"},
        "GPULabelResponse": {"label": "1 string"},
        "GetAvailableGPUTypesResponse": {"gpuTypes": "1 {google.protobuf.Any}"},
        "CleanupResponse": {},
        "RefreshResponse": {},
        "NodeGroupTargetSizeResponse": {"targetSize": "1 int32"},
        "NodeGroupIncreaseSizeRequest": {"delta": "1 int32", "id": "2 string"},
        "NodeGroupIncreaseSizeResponse": {},
        "NodeGroupDeleteNodesRequest": {"nodes": "1 *ExternalGrpcNode", "id": "2 string"},
        "NodeGroupDeleteNodesResponse": {},
        "NodeGroupDecreaseTargetSizeRequest": {"delta": "1 int32", "id": "2 string"},
        "NodeGroupDecreaseTargetSizeResponse": {},
        "NodeGroupNodesResponse": {"instances": "1 *Instance"},
        "Instance": {"id": "1 string", "status": "2 InstanceStatus"},
        "InstanceStatus": {"instanceState": "1 int32", "errorInfo": "2 InstanceErrorInfo"},
        "InstanceErrorInfo": {"errorCode": "1 string", "errorMessage": "2 string", "instanceErrorClass": "3 int32"},
        "NodeGroupTemplateNodeInfoResponse": {"nodeInfo": "1 bytes", "nodeBytes": "2 bytes"},
        "NodeGroupAutoscalingOptions": {
            "scaleDownUtilizationThreshold": "1 double",
            "scaleDownGpuUtilizationThreshold": "2 double",
            "scaleDownUnneededTime": "3 metav1.Duration",
            "scaleDownUnreadyTime": "4 metav1.Duration",
            "MaxNodeProvisionTime": "5 metav1.Duration",
            "zeroOrMaxNodeScaling": "6 bool",
            "ignoreDaemonSetsUtilization": "7 bool",
            "scaleDownUnneededDuration": "8 google.protobuf.Duration",
            "scaleDownUnreadyDuration": "9 google.protobuf.Duration",
            "MaxNodeProvisionDuration": "10 google.protobuf.Duration",
            "maxNodeStartupDuration": "11 google.protobuf.Duration",
            "allowNonAtomicScaleUpToMax": "12 bool",
        },
        "NodeGroupAutoscalingOptionsRequest": {"id": "1 string", "defaults": "2 NodeGroupAutoscalingOptions"},
        "NodeGroupAutoscalingOptionsResponse": {"nodeGroupAutoscalingOptions": "1 NodeGroupAutoscalingOptions"},
    },
)
NodeGroup: Final = _messages["NodeGroup"]
Instance: Final = _messages["Instance"]

METHODS: Final = {
    name: (_messages[f"{stem}Request"], _messages[f"{stem}Response"])
    for name, stem in {
        **{name: name for name in (*_empty, *_of_group)},
        "NodeGroupForNode": "NodeGroupForNode",
        "PricingNodePrice": "PricingNodePrice",
        "PricingPodPrice": "PricingPodPrice",
        "NodeGroupIncreaseSize": "NodeGroupIncreaseSize",
        "NodeGroupDeleteNodes": "NodeGroupDeleteNodes",
        "NodeGroupDecreaseTargetSize": "NodeGroupDecreaseTargetSize",
        "NodeGroupGetOptions": "NodeGroupAutoscalingOptions",
    }.items()
}
"""All 15, by name: what is asked and what is answered."""
