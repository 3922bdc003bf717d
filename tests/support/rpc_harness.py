# SPDX-License-Identifier: Apache-2.0
"""
A few pools in memory behind `autoscaler.apis.rpc.core.node_groups.State`, and real gRPC clients of either generation.

The clients' messages are typed here again, as each generation of cluster-autoscaler declares them, so that a
number that is wrong in the server is not wrong in the same way in its test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.rpc.core.node_groups import GroupInstance, InstancePhase, NodeGroup
from autoscaler.apis.rpc.server import GrpcPort, serve
from isolation.contract.protobuf import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

PROVIDER = "clusterautoscaler.cloudprovider.v1.externalgrpc"
CORE = {
    "Quantity": {"string": "1 string"},
    "ObjectMeta": {
        "name": "1 string",
        "namespace": "3 string",
        "uid": "5 string",
        "labels": "11 {string}",
        "annotations": "12 {string}",
    },
    "Node": {"metadata": "1 ObjectMeta", "spec": "2 NodeSpec", "status": "3 NodeStatus"},
    "NodeSpec": {"podCIDR": "1 string", "providerID": "3 string", "taints": "5 *Taint"},
    "Taint": {"key": "1 string", "value": "2 string", "effect": "3 string"},
    "NodeStatus": {"capacity": "1 {Quantity}", "allocatable": "2 {Quantity}", "conditions": "4 *Condition"},
    "Condition": {"type": "1 string", "status": "2 string"},
    "Pod": {"metadata": "1 ObjectMeta", "spec": "2 PodSpec"},
    "PodSpec": {"containers": "2 *Container", "nodeSelector": "7 {string}", "restartPolicy": "3 string"},
    "Container": {"name": "1 string", "image": "2 string", "resources": "8 Resources"},
    "Resources": {"limits": "1 {Quantity}", "requests": "2 {Quantity}"},
}
_BOTH: dict[str, dict[str, str]] = {
    "Empty": {},
    "OfGroup": {"id": "1 string"},
    "NodeGroup": {"id": "1 string", "minSize": "2 int32", "maxSize": "3 int32", "debug": "4 string"},
    "GrpcNode": {"providerID": "1 string", "name": "2 string", "labels": "3 {string}", "annotations": "4 {string}"},
    "Groups": {"nodeGroups": "1 *NodeGroup"},
    "ForNode": {"node": "1 GrpcNode"},
    "OneGroup": {"nodeGroup": "1 NodeGroup"},
    "Price": {"price": "1 double"},
    "Label": {"label": "1 string"},
    "Kind": {"type_url": "1 string"},
    "Kinds": {"gpuTypes": "1 {Kind}"},
    "Size": {"targetSize": "1 int32"},
    "Delta": {"delta": "1 int32", "id": "2 string"},
    "Delete": {"nodes": "1 *GrpcNode", "id": "2 string"},
    "Instances": {"instances": "1 *Instance"},
    "Instance": {"id": "1 string", "status": "2 Status"},
    "Status": {"instanceState": "1 int32", "errorInfo": "2 ErrorInfo"},
    "ErrorInfo": {"errorCode": "1 string", "errorMessage": "2 string", "instanceErrorClass": "3 int32"},
}
_WITH_MESSAGES = {  # up to 1.33
    "Template": {"nodeInfo": "1 core.Node"},
    "Priced": {"pod": "1 core.Pod"},
    "Options": {"scaleDownUtilizationThreshold": "1 double", "scaleDownUnneededTime": "3 Nanos"},
    "Nanos": {"duration": "1 int64"},
    "OptionsOf": {"id": "1 string", "defaults": "2 Options"},
    "ExpanderOption": {"nodeGroupId": "1 string", "nodeCount": "2 int32", "debug": "3 string", "pod": "4 *core.Pod"},
    "BestOptions": {"options": "1 *ExpanderOption", "nodeMap": "2 {core.Node}"},
    "BestAnswer": {"options": "1 *ExpanderOption"},
}
_WITH_BYTES = {  # from 1.35 on
    "Template": {"nodeBytes": "2 bytes"},
    "Priced": {"pod_bytes": "4 bytes"},
    "Options": {"scaleDownUtilizationThreshold": "1 double", "scaleDownUnneededDuration": "8 Seconds"},
    "Seconds": {"seconds": "1 int64", "nanos": "2 int32"},
    "OptionsOf": {"id": "1 string", "defaults": "2 Options"},
    "ExpanderOption": {"nodeGroupId": "1 string", "nodeCount": "2 int32", "debug": "3 string", "podBytes": "5 *bytes"},
    "BestOptions": {"options": "1 *ExpanderOption", "nodeBytesMap": "3 {bytes}"},
    "BestAnswer": {"options": "1 *ExpanderOption"},
}
_METHODS = {
    "NodeGroups": ("Empty", "Groups"),
    "NodeGroupForNode": ("ForNode", "OneGroup"),
    "PricingNodePrice": ("ForNode", "Price"),
    "PricingPodPrice": ("Priced", "Price"),
    "GPULabel": ("Empty", "Label"),
    "GetAvailableGPUTypes": ("Empty", "Kinds"),
    "Cleanup": ("Empty", "Empty"),
    "Refresh": ("Empty", "Empty"),
    "NodeGroupTargetSize": ("OfGroup", "Size"),
    "NodeGroupIncreaseSize": ("Delta", "Empty"),
    "NodeGroupDeleteNodes": ("Delete", "Empty"),
    "NodeGroupDecreaseTargetSize": ("Delta", "Empty"),
    "NodeGroupNodes": ("OfGroup", "Instances"),
    "NodeGroupTemplateNodeInfo": ("OfGroup", "Template"),
    "NodeGroupGetOptions": ("OptionsOf", "Options"),
}


Call = Callable[..., Awaitable[Any]]
"""A method of a client: fields of the request by name, to the answer."""


class Generation:
    """What one generation of cluster-autoscaler says and hears."""

    def __init__(self, name: str, own: dict[str, dict[str, str]]) -> None:
        wire = Wire()
        self.name = name
        self.core = wire.package("core", CORE)
        self.messages = wire.package("generation", {**_BOTH, **own})

    def node_of(self, template: Any) -> Any:
        """The node in an answer to NodeGroupTemplateNodeInfo."""
        return template.nodeInfo if self.name == "messages" else self.core["Node"].FromString(template.nodeBytes)

    def provider(self, channel: grpc.aio.Channel, seconds: float = PATIENCE_SECONDS) -> dict[str, Call]:
        """A client of the 15 methods: `client["NodeGroups"](id="x")`."""
        service = PROVIDER + ".CloudProvider"
        return {name: self._call(channel, f"/{service}/{name}", of, seconds) for name, of in _METHODS.items()}

    def best(
        self,
        channel: grpc.aio.Channel,
        options: Mapping[str, Sequence[Any]],
        nodes: Mapping[str, Any],
        seconds: float = PATIENCE_SECONDS,
    ) -> Awaitable[Any]:
        """Ask the expander; options by group with their pods."""
        listed = []
        for group, pods in options.items():
            carried: dict[str, Any] = (
                {"pod": pods} if self.name == "messages" else {"podBytes": [p.SerializeToString() for p in pods]}
            )
            listed.append(self.messages["ExpanderOption"](nodeGroupId=group, nodeCount=1, **carried))
        if self.name == "messages":
            asked: dict[str, Any] = {"nodeMap": nodes}
        else:
            asked = {"nodeBytesMap": {key: node.SerializeToString() for key, node in nodes.items()}}
        call = self._call(channel, "/grpcplugin.Expander/BestOptions", ("BestOptions", "BestAnswer"), seconds)
        return call(options=listed, **asked)

    def _call(self, channel: grpc.aio.Channel, path: str, of: tuple[str, str], seconds: float) -> Call:
        asked, answered = (self.messages[name] for name in of)
        call = channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answered.FromString,
        )
        return lambda **fields: call(asked(**fields), timeout=seconds)


GENERATIONS = (Generation("messages", _WITH_MESSAGES), Generation("bytes", _WITH_BYTES))


class Pools:
    """Pools in memory; machines come when the test says so."""

    def __init__(self, *groups: NodeGroup) -> None:
        self._groups = {group.name: group for group in groups}
        self.fails: Exception | None = None
        self.asked: list[tuple[object, ...]] = []

    def groups(self) -> tuple[NodeGroup, ...]:
        """As they are now."""
        return tuple(self._groups.values())

    def now(self, name: str) -> NodeGroup:
        """One of them."""
        return self._groups[name]

    def change(self, name: str, **fields: Any) -> None:
        """As if a provider had done it."""
        self._groups[name] = replace(self._groups[name], **fields)

    def arrive(self, name: str, *nodes: str) -> None:
        """Machines have come and run."""
        coming = tuple(GroupInstance(f"test://{node}", node, InstancePhase.RUNNING) for node in nodes)
        self.change(name, instances=self._groups[name].instances + coming)

    async def refresh(self) -> None:
        """Nothing to look up; only noted."""
        self._check("refresh")

    async def grow(self, group: str, by: int) -> None:
        """The target grows at once."""
        self._check("grow", group, by)
        self.change(group, target=self._groups[group].target + by)

    async def remove(self, group: str, instances: Sequence[GroupInstance]) -> None:
        """They are gone at once."""
        self._check("remove", group, [one.id for one in instances])
        left = tuple(one for one in self._groups[group].instances if one not in instances)
        self.change(group, instances=left, target=self._groups[group].target - len(instances))

    async def lower(self, group: str, by: int) -> None:
        """The target sinks at once."""
        self._check("lower", group, by)
        self.change(group, target=self._groups[group].target - by)

    def _check(self, *what: object) -> None:
        self.asked.append(what)
        if self.fails is not None:
            raise self.fails


@asynccontextmanager
async def channel_to(
    *services: grpc.GenericRpcHandler,
    port: GrpcPort | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> AsyncIterator[grpc.aio.Channel]:
    """A server on this machine and a client's connection to it."""
    async with serve(port or GrpcPort("127.0.0.1", 0), services) as number:
        where = f"127.0.0.1:{number}"
        opened = (
            grpc.aio.insecure_channel(where, options=options)
            if credentials is None
            else grpc.aio.secure_channel(where, credentials, options=options)
        )
        async with opened as channel:
            yield channel
