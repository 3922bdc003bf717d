# SPDX-License-Identifier: Apache-2.0
"""
The pools as a cloud provider of cluster-autoscaler (`--cloud-provider=externalgrpc`).

Decides what may be done to a group: never above its maximum size, never below its minimum with running machines, never
to a machine of another group; all of a request or nothing of it. When to grow or to shrink is cluster-autoscaler's
decision, or our loop's through the minimum size of a group.

Prices and options of groups are not implemented, on purpose: prices are weighed per card by our expander, and
whoever answers the options sends a start-up time of 0 to versions whose message has no field for it, after which
fresh nodes are taken for broken ones (kubernetes/autoscaler issues 10245 and 5935).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from autoscaler.apis.rpc.core.node_groups import InstancePhase
from autoscaler.apis.rpc.core.templates import encode_template
from autoscaler.apis.rpc.core.wire import cloud as wire
from autoscaler.apis.rpc.handler import (
    INVALID,
    NOT_FOUND,
    REFUSED,
    UNIMPLEMENTED,
    CallPolicy,
    MethodHandlers,
    StatusError,
)
from isolation.contract.codec.cursor import show
from isolation.contract.model import Mode
from isolation.contract.names import WHOLE_CARDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.apis.rpc.core.node_groups import GroupInstance, NodeGroup, NodeGroups

_STATES: Final = {
    InstancePhase.UNKNOWN: wire.UNSPECIFIED,
    InstancePhase.RUNNING: wire.RUNNING,
    InstancePhase.CREATING: wire.CREATING,
    InstancePhase.DELETING: wire.DELETING,
}


class CloudProvider:
    """Answers 12 of the 15 methods; the other three say UNIMPLEMENTED."""

    def __init__(self, state: NodeGroups, policy: CallPolicy | None = None) -> None:
        self._state = state
        self._service = MethodHandlers(wire.SERVICE, wire.METHODS, policy or CallPolicy())
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._index = GroupIndex(())

    def handler(self) -> Any:
        """For the server."""
        answers = {
            "NodeGroups": self._groups,
            "NodeGroupForNode": self._group_of,
            "GPULabel": self._gpu_label,
            "GetAvailableGPUTypes": self._gpu_types,
            "Cleanup": self._cleanup,
            "Refresh": self._refresh,
            "NodeGroupTargetSize": self._target,
            "NodeGroupIncreaseSize": self._increase,
            "NodeGroupDeleteNodes": self._delete,
            "NodeGroupDecreaseTargetSize": self._decrease,
            "NodeGroupNodes": self._nodes,
            "NodeGroupTemplateNodeInfo": self._template,
            "PricingNodePrice": self._not_served,
            "PricingPodPrice": self._not_served,
            "NodeGroupGetOptions": self._not_served,
        }
        return self._service.handler(answers)

    async def finish(self, seconds: float) -> None:
        """Wait at most so long for the calls that have begun."""
        await self._service.finish(seconds)

    # -- reads -----------------------------------------------------------------------------------

    def _get_index(self) -> GroupIndex:
        """Of the current groups: built once for as long as they stay the same."""
        groups = self._state.groups()
        if groups is not self._index.groups:
            self._index = GroupIndex(groups)
        return self._index

    async def _groups(self, _request: Any) -> Any:
        return _answer("NodeGroups", nodeGroups=[_group_message(group) for group in self._state.groups()])

    def _group_of(self, request: Any) -> Any:
        return self._get_index().of(request.node.providerID, request.node.name)

    async def _gpu_label(self, _request: Any) -> Any:
        return _answer("GPULabel", label=WHOLE_CARDS)

    async def _gpu_types(self, _request: Any) -> Any:
        kinds = wire.METHODS["GetAvailableGPUTypes"][1]()
        for group in self._state.groups():
            if group.template is not None and group.template.mode is Mode.EXCLUSIVE:
                for card in group.template.cards:
                    kinds.gpuTypes[card.model or "unknown"].SetInParent()
        return kinds

    async def _cleanup(self, _request: Any) -> Any:
        return _answer("Cleanup")

    async def _refresh(self, _request: Any) -> Any:
        await self._state.refresh()
        return _answer("Refresh")

    async def _target(self, request: Any) -> Any:
        return _answer("NodeGroupTargetSize", targetSize=self._group(request.id).target)

    async def _nodes(self, request: Any) -> Any:
        instances = [_instance_message(instance) for instance in self._group(request.id).instances]
        return _answer("NodeGroupNodes", instances=instances)

    async def _template(self, request: Any) -> Any:
        raw = encode_template(self._group(request.id))
        if raw is None:
            raise StatusError(
                UNIMPLEMENTED,
                f"pool {show(request.id)} has no node to learn from yet and no profile in the configuration",
            )
        return _answer("NodeGroupTemplateNodeInfo", nodeInfo=raw, nodeBytes=raw)

    async def _not_served(self, _request: Any) -> Any:
        raise StatusError(UNIMPLEMENTED, "not implemented by design: cluster-autoscaler uses its own flags")

    # -- changes ---------------------------------------------------------------------------------

    async def _increase(self, request: Any) -> Any:
        async with self._one_at_a_time[self._group(request.id).name]:
            group, by = self._group(request.id), request.delta
            if by <= 0:
                raise StatusError(INVALID, f"delta is {by}; it must be 1 or more")
            if group.target + by > group.max_nodes:
                raise StatusError(
                    REFUSED,
                    f"{_name(group)}: target size {group.target} plus {by} exceeds its maximum {group.max_nodes}",
                )
            await self._state.grow(group.name, by)
        return _answer("NodeGroupIncreaseSize")

    async def _delete(self, request: Any) -> Any:
        async with self._one_at_a_time[self._group(request.id).name]:
            group = self._group(request.id)
            instances = _find_instances(group, request.nodes)
            running = sum(
                not instance.trouble and instance.standing is not InstancePhase.DELETING for instance in instances
            )
            if running and group.target - len(instances) < group.min_nodes:
                why = f"target size {group.target} minus {len(instances)} is below its minimum {group.min_nodes}"
                raise StatusError(REFUSED, f"{_name(group)}: {why}")
            if instances:
                await self._state.remove(group.name, instances)
        return _answer("NodeGroupDeleteNodes")

    async def _decrease(self, request: Any) -> Any:
        async with self._one_at_a_time[self._group(request.id).name]:
            group, by = self._group(request.id), -request.delta
            if by <= 0:
                raise StatusError(INVALID, f"delta is {request.delta}; it must be negative")
            there = sum(
                instance.standing is not InstancePhase.DELETING and not instance.trouble for instance in group.instances
            )
            if group.target - by < there:
                raise StatusError(REFUSED, f"{_name(group)} has {there} existing nodes; name the nodes to delete")
            await self._state.lower(group.name, by)
        return _answer("NodeGroupDecreaseTargetSize")

    def _group(self, name: str) -> NodeGroup:
        found = self._get_index().by_group.get(name)
        if found is None:
            raise StatusError(NOT_FOUND, f"pool {show(name)} does not exist")
        return found


class GroupIndex:
    """
    Which group a node belongs to, as `Group.find` of one group after the other would say, in one step.

    cluster-autoscaler asks in every loop for every node of the cluster, up to nine times for one of no group.
    """

    def __init__(self, groups: Sequence[NodeGroup]) -> None:
        self.groups = groups
        self.by_group = {group.name: group for group in reversed(groups)}
        self._answers = [_answer("NodeGroupForNode", nodeGroup=_group_message(group)) for group in groups]
        # no group: not ours to scale, which an empty id says
        self._answers.append(_answer("NodeGroupForNode", nodeGroup=wire.NodeGroup()))
        self._by_id: dict[str, int] = {}
        self._by_name: dict[str, int] = {}
        for at, group in enumerate(groups):
            for instance in group.instances:
                self._by_id.setdefault(instance.id, at)
                self._by_name.setdefault(instance.id, at)
                self._by_name.setdefault(instance.node, at)
        self._by_id.pop("", None)
        self._by_name.pop("", None)

    def of(self, provider_id: str, name: str) -> Any:
        """The answer to NodeGroupForNode."""
        no_group = len(self.groups)
        return self._answers[min(self._by_id.get(provider_id, no_group), self._by_name.get(name, no_group))]


def _find_instances(group: NodeGroup, nodes: Sequence[Any]) -> list[GroupInstance]:
    """The machines to delete, each once, all of this group; less those that are being deleted already."""
    found: dict[str, GroupInstance] = {}
    for node in nodes:
        instance = group.find(node.providerID, node.name)
        if instance is None:
            raise StatusError(NOT_FOUND, f"node {show(node.name)} is not in {_name(group)}; no node was deleted")
        if instance.standing is not InstancePhase.DELETING:
            found[instance.id] = instance
    return list(found.values())


def _name(group: NodeGroup) -> str:
    return f"pool {show(group.name)}"


def _answer(method: str, **fields: Any) -> Any:
    return wire.METHODS[method][1](**fields)


def _group_message(group: NodeGroup) -> Any:
    commanded = f", scaling up to {group.floor}" if group.floor > group.min_nodes else ""
    debug = f"{group.name}: target size {group.target}, {len(group.instances)} instances{commanded}"
    return wire.NodeGroup(id=group.name, minSize=group.floor, maxSize=group.max_nodes, debug=debug)


def _instance_message(instance: GroupInstance) -> Any:
    status: dict[str, Any] = {"instanceState": _STATES[instance.standing]}
    if instance.trouble:
        # trouble without a state is dropped on the other side, and only of a machine that is coming is it read
        status["instanceState"] = wire.CREATING
        kind = wire.OUT_OF_RESOURCES if instance.out_of_stock else wire.OTHER_ERROR
        code = "OutOfStock" if instance.out_of_stock else "Failed"
        status["errorInfo"] = {"errorCode": code, "errorMessage": instance.trouble, "instanceErrorClass": kind}
    return wire.Instance(id=instance.id, status=status)
