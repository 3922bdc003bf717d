# SPDX-License-Identifier: Apache-2.0
"""
What the kubelet says and hears on its sockets: pod-resources v1, the Pods API and device plugins v1beta1.

Knows names, numbers and types of fields (as `protobuf` writes them) and the paths of methods; who
connects, waits and believes is decided elsewhere. Only fields that somebody reads here are listed; the
rest passes by as unknown.

Sources: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto
(maps stand as their entries: the same on the wire), k8s.io/kubelet/pkg/apis/pods/v1alpha1/api.proto (KEP-4188; pods
travel as bytes of k8s.io/api/core/v1 Pod), k8s.io/api/core/v1/generated.proto,
k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
"""

from __future__ import annotations

from typing import Final

from isolation.contract.protobuf import Wire

POD_RESOURCES_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
PODS_SOCKET: Final = "/var/lib/kubelet/pods-api/pods-api.sock"
"""Feature gate PodsAPI: alpha in Kubernetes 1.36, on by default from 1.37."""

POD_RESOURCES: Final = "v1.PodResourcesLister"
LIST: Final = f"/{POD_RESOURCES}/List"
GET: Final = f"/{POD_RESOURCES}/Get"
PODS: Final = "v1alpha1.Pods"
LIST_PODS: Final = f"/{PODS}/ListPods"
"""Whole pods: the documentation speaks of a field mask in the metadata, the kubelet's server knows none."""

REGISTRATION_SOCKET: Final = "kubelet.sock"
PLUGIN_VERSION: Final = "v1beta1"
REGISTRATION: Final = f"{PLUGIN_VERSION}.Registration"
REGISTER: Final = f"/{REGISTRATION}/Register"
PLUGIN: Final = f"{PLUGIN_VERSION}.DevicePlugin"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
MAX_MESSAGE_BYTES: Final = 4 << 20
"""The kubelet takes no larger message from a plugin: gRPC's default, which it leaves as it is."""

_package: Final = Wire().package

_resources: Final = _package(
    "v1",
    {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {"pod_resources": "1 *PodResources"},
        "GetPodResourcesRequest": {"pod_name": "1 string", "pod_namespace": "2 string"},
        "GetPodResourcesResponse": {"pod_resources": "1 PodResources"},
        "AllocatableResourcesRequest": {},
        "AllocatableResourcesResponse": {"devices": "1 *ContainerDevices", "cpu_ids": "2 *int64"},
        "PodResources": {"name": "1 string", "namespace": "2 string", "containers": "3 *ContainerResources"},
        "ContainerResources": {
            "name": "1 string",
            "devices": "2 *ContainerDevices",
            "cpu_ids": "3 *int64",
            "dynamic_resources": "5 *DynamicResource",
        },
        "ContainerDevices": {"resource_name": "1 string", "device_ids": "2 *string", "topology": "3 TopologyInfo"},
        "TopologyInfo": {"nodes": "1 *NUMANode"},
        "NUMANode": {"ID": "1 int64"},
        "DynamicResource": {
            "claim_name": "2 string",
            "claim_namespace": "3 string",
            "claim_resources": "4 *ClaimResource",
        },
        "ClaimResource": {
            "cdi_devices": "1 *CDIDevice",
            "driver_name": "2 string",
            "pool_name": "3 string",
            "device_name": "4 string",
            "share_id": "5 string",
        },
        "CDIDevice": {"name": "1 string"},
    },
)
ListPodResourcesRequest: Final = _resources["ListPodResourcesRequest"]
ListPodResourcesResponse: Final = _resources["ListPodResourcesResponse"]
GetPodResourcesRequest: Final = _resources["GetPodResourcesRequest"]
GetPodResourcesResponse: Final = _resources["GetPodResourcesResponse"]
AllocatableResourcesRequest: Final = _resources["AllocatableResourcesRequest"]
AllocatableResourcesResponse: Final = _resources["AllocatableResourcesResponse"]
PodResources: Final = _resources["PodResources"]

_pods: Final = _package(
    "v1alpha1",
    {
        "ListPodsRequest": {"filter": "1 string", "page_token": "2 string", "page_size": "3 int32"},
        "ListPodsResponse": {"pods": "1 *bytes"},
    },
)
ListPodsRequest: Final = _pods["ListPodsRequest"]
ListPodsResponse: Final = _pods["ListPodsResponse"]

_plugin: Final = _package(
    PLUGIN_VERSION,
    {
        "Empty": {},
        "DevicePluginOptions": {"pre_start_required": "1 bool", "get_preferred_allocation_available": "2 bool"},
        "RegisterRequest": {
            "version": "1 string",
            "endpoint": "2 string",
            "resource_name": "3 string",
            "options": "4 DevicePluginOptions",
        },
        "Device": {"ID": "1 string", "health": "2 string"},
        "ListAndWatchResponse": {"devices": "1 *Device"},
        "PreferredAllocationRequest": {"container_requests": "1 *ContainerPreferredAllocationRequest"},
        "ContainerPreferredAllocationRequest": {
            "available_deviceIDs": "1 *string",
            "must_include_deviceIDs": "2 *string",
            "allocation_size": "3 int32",
        },
        "PreferredAllocationResponse": {"container_responses": "1 *ContainerPreferredAllocationResponse"},
        "ContainerPreferredAllocationResponse": {"deviceIDs": "1 *string"},
        "AllocateRequest": {"container_requests": "1 *ContainerAllocateRequest"},
        "ContainerAllocateRequest": {"devices_ids": "1 *string"},
        "AllocateResponse": {"container_responses": "1 *ContainerAllocateResponse"},
        "ContainerAllocateResponse": {"envs": "1 *Entry", "mounts": "2 *Mount", "cdi_devices": "5 *CDIDevice"},
        "Entry": {"key": "1 string", "value": "2 string"},
        "Mount": {"container_path": "1 string", "host_path": "2 string", "read_only": "3 bool"},
        "CDIDevice": {"name": "1 string"},
        "PreStartContainerRequest": {"devices_ids": "1 *string"},
        "PreStartContainerResponse": {},
    },
)
Empty: Final = _plugin["Empty"]
DevicePluginOptions: Final = _plugin["DevicePluginOptions"]
RegisterRequest: Final = _plugin["RegisterRequest"]
ListAndWatchResponse: Final = _plugin["ListAndWatchResponse"]
PreferredAllocationRequest: Final = _plugin["PreferredAllocationRequest"]
PreferredAllocationResponse: Final = _plugin["PreferredAllocationResponse"]
AllocateRequest: Final = _plugin["AllocateRequest"]
AllocateResponse: Final = _plugin["AllocateResponse"]
PreStartContainerRequest: Final = _plugin["PreStartContainerRequest"]
PreStartContainerResponse: Final = _plugin["PreStartContainerResponse"]

_core: Final = _package(
    "core.v1",
    {
        "Pod": {"metadata": "1 ObjectMeta", "status": "3 PodStatus"},
        "ObjectMeta": {"name": "1 string", "namespace": "3 string", "uid": "5 string"},
        "PodStatus": {
            "phase": "1 string",
            "containerStatuses": "8 *ContainerStatus",
            "initContainerStatuses": "10 *ContainerStatus",
            "ephemeralContainerStatuses": "13 *ContainerStatus",
        },
        "ContainerStatus": {"name": "1 string", "containerID": "8 string"},
    },
)
Pod: Final = _core["Pod"]
