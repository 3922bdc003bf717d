# SPDX-License-Identifier: Apache-2.0
"""
The calls of cluster-autoscaler's externalgrpc client and gRPC expander, with what that client keeps of the answers.

Groups and the group of a node are kept until the next Refresh, a node of *no* group is asked about each time; the GPU
label is kept for ever; an error of NodeGroups is an empty list (cloudprovider/externalgrpc). Machines of a group are
kept for two minutes or until it is changed (clusterstate).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from e2e.cluster_autoscaler.objects import Node
from e2e.cluster_autoscaler.scale_up import Group
from kubernetes.utils.quantity import parse_quantity
from support.rpc_harness import GENERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.cluster_autoscaler.objects import Pod
    from e2e.cluster_autoscaler.scale_up import Option

CALL_SECONDS = 5.0
_INSTANCES_SECONDS = 120.0
_CREATING = 2
_WIRE = GENERATIONS[1]


class CallError(Exception):
    """A call was not answered, or with an error."""


class Channel(Protocol):
    """Where the questions go."""

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        """As gRPC has it."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine of a group."""

    id: str
    creating: bool = False
    trouble: str = ""


class Cloud:
    """One connection for as long as the autoscaler lives; `asked` counts the calls."""

    def __init__(self, channel: Channel, expander: Channel | None, timeout: float = CALL_SECONDS) -> None:
        """`timeout`: of the provider's calls, seconds."""
        self._call = _WIRE.provider(channel, timeout)
        self._expander = expander
        self._groups: dict[str, Group] | None = None
        self._of: dict[str, str] = {}
        self._templates: dict[str, Node | None] = {}
        self._instances: dict[str, tuple[float, list[Instance]]] = {}
        self._label: str | None = None
        self.asked: Counter[str] = Counter()

    async def refresh(self) -> None:
        """Everything that was kept goes first, whatever the answer."""
        self._groups, self._of, self._templates = None, {}, {}
        await self._ask("Refresh")

    async def gpu_label(self) -> str:
        """The label of nodes with whole cards; empty: not known."""
        if self._label is None:
            try:
                self._label = (await self._ask("GPULabel")).label
            except CallError:
                return ""
        return self._label

    async def groups(self) -> dict[str, Group]:
        """By name; none where nobody answers."""
        if self._groups is None:
            try:
                answer = await self._ask("NodeGroups")
            except CallError:
                return {}
            self._groups = {one.id: Group(one.id, one.minSize, one.maxSize, 0) for one in answer.nodeGroups}
        return self._groups

    async def group_of(self, node: Node) -> str:
        """Its name; empty: of none."""
        key = node.name + node.provider_id
        if key not in self._of:
            who = _WIRE.messages["GrpcNode"](
                providerID=node.provider_id,
                name=node.name,
                labels=dict(node.labels),
                annotations=dict(node.annotations),
            )
            answer = await self._ask("NodeGroupForNode", node=who)
            if not answer.nodeGroup.id:
                return ""
            self._of[key] = answer.nodeGroup.id
        return self._of[key]

    async def target(self, group: str) -> int:
        """How many machines it wants."""
        size: int = (await self._ask("NodeGroupTargetSize", id=group)).targetSize
        return size

    async def instances(self, group: str, now: float) -> list[Instance]:
        """Its machines."""
        kept = self._instances.get(group)
        if kept is None or now - kept[0] >= _INSTANCES_SECONDS:
            answer = await self._ask("NodeGroupNodes", id=group)
            found = [
                Instance(
                    one.id,
                    one.status.instanceState == _CREATING,
                    one.status.errorInfo.errorMessage if one.status.errorInfo.errorCode else "",
                )
                for one in answer.instances
            ]
            self._instances[group] = kept = (now, found)
        return kept[1]

    async def template(self, group: str) -> Node | None:
        """A fresh node of it; None: it cannot tell."""
        if group not in self._templates:
            try:
                answer = await self._ask("NodeGroupTemplateNodeInfo", id=group)
            except CallError:
                return None
            self._templates[group] = _node(_WIRE.node_of(answer)) if answer.nodeBytes else None
        return self._templates[group]

    async def increase(self, group: str, by: int) -> None:
        """Buy."""
        self._instances.pop(group, None)
        await self._ask("NodeGroupIncreaseSize", id=group, delta=by)

    async def decrease(self, group: str, by: int) -> None:
        """Give up what did not come."""
        self._instances.pop(group, None)
        await self._ask("NodeGroupDecreaseTargetSize", id=group, delta=-by)

    async def delete(self, group: str, nodes: Sequence[tuple[str, str]]) -> None:
        """Give machines back, each by ID and name."""
        self._instances.pop(group, None)
        named = [_WIRE.messages["GrpcNode"](providerID=ident, name=name) for ident, name in nodes]
        await self._ask("NodeGroupDeleteNodes", id=group, nodes=named)

    async def best(self, options: Sequence[Option]) -> list[Option]:
        """Those that the expander prefers; all of them where it does not answer."""
        if self._expander is None:
            return list(options)
        by_group = {option.group: option for option in options}
        asked = {option.group: [_pod_message(pod) for pod in option.pods] for option in options}
        nodes = {option.group: _node_message(option.template) for option in options}
        self.asked["BestOptions"] += 1
        try:
            answer = await _answer(_WIRE.best(self._expander, asked, nodes, CALL_SECONDS))
        except CallError:
            return list(options)
        self.asked["BestOptions answered"] += 1
        return [by_group[one.nodeGroupId] for one in answer.options if one.nodeGroupId in by_group]

    async def _ask(self, method: str, **fields: Any) -> Any:
        self.asked[method] += 1
        return await _answer(self._call[method](**fields))


async def sized(cloud: Cloud, group: Group) -> Group:
    """The group with its target as it is now."""
    return replace(group, target=await cloud.target(group.name))


async def _answer(call: Any) -> Any:
    try:
        return await call
    except (OSError, TimeoutError, RuntimeError) as exc:
        raise CallError(str(exc)) from exc
    except Exception as exc:
        # gRPC's own error is known by what it can tell, so that this module needs no gRPC
        if not hasattr(exc, "code"):
            raise
        raise CallError(f"{exc.code()}: {exc.details()}") from exc  # type: ignore[attr-defined]


def _node(message: Any) -> Node:
    return Node(
        name=message.metadata.name,
        labels=dict(message.metadata.labels),
        annotations=dict(message.metadata.annotations),
        taints=tuple({"key": t.key, "value": t.value, "effect": t.effect} for t in message.spec.taints),
        allocatable={key: Decimal(parse_quantity(one.string)) for key, one in message.status.allocatable.items()},
    )


def _node_message(node: Node) -> Any:
    amounts = {key: _WIRE.core["Quantity"](string=str(amount)) for key, amount in node.allocatable.items()}
    return _WIRE.core["Node"](
        metadata={"name": node.name, "labels": dict(node.labels), "annotations": dict(node.annotations)},
        status={"capacity": amounts, "allocatable": amounts},
    )


def _pod_message(pod: Pod) -> Any:
    def amounts(texts: Any) -> dict[str, Any]:
        return {key: _WIRE.core["Quantity"](string=str(text)) for key, text in (texts or {}).items()}

    boxes = []
    for box in pod.spec["containers"]:
        resources = box.get("resources") or {}
        both = {key: amounts(resources.get(key)) for key in ("limits", "requests")}
        boxes.append({"name": box["name"], "image": box.get("image", ""), "resources": both})
    meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return _WIRE.core["Pod"](
        metadata=meta | {"labels": dict(pod.labels), "annotations": dict(pod.annotations)},
        spec={"containers": boxes, "nodeSelector": dict(pod.spec.get("nodeSelector") or {})},
    )
