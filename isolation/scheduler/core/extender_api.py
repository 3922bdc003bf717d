# SPDX-License-Identifier: Apache-2.0
"""
The scheduler extender API, version 1: requests of kube-scheduler into values, results into bytes.

Knows no cluster and decides nothing. What cannot be read is an `InvalidArgs` with the reason, never an exception.
Keys are capitalised as on the wire (Kubernetes, `k8s.io/kube-scheduler/extender/v1`: the types carry no
JSON names). With `nodeCacheCapable` nodes travel as names; without it as whole objects, which go back
as they came, since kube-scheduler then scores with what we return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.contract.text import printable
from isolation.scheduler.core.preemption import Victims

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EXTENDER: Final = "/extender"
"""Path prefix of the verbs."""
MAX_BYTES: Final = 8 << 20
"""Of a request: 5,000 names are 0.2 MiB, an admission review holds two objects of at most 3 MiB."""
MAX_NODES: Final = 50_000
MAX_VICTIMS: Final = 50_000
_LONGEST_REASON: Final = 1000
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class InvalidArgs:
    """A request that cannot be read, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """Arguments of filter and prioritize (`ExtenderArgs`): one pod, some nodes."""

    pod: msgspec.Raw
    uid: str
    """Of the pod, as sent; empty: none."""
    names: Sequence[str]
    nodes: Sequence[msgspec.Raw] | None = None
    """The whole objects in the order of `names`, where they were sent."""


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """Arguments of bind (`ExtenderBindingArgs`)."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """Arguments of preempt (`ExtenderPreemptionArgs`): a pod, and the proposed victims by node."""

    pod: msgspec.Raw
    uid: str
    victims: Mapping[str, Victims]


class _Meta(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


class _NodeAffinity(msgspec.Struct, rename="camel"):
    preferred_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: dict[str, msgspec.Raw] | None = None
    pod_anti_affinity: dict[str, msgspec.Raw] | None = None


class _Wishes(msgspec.Struct, rename="camel", frozen=True):
    affinity: _Affinity | None = None
    topology_spread_constraints: list[msgspec.Raw] | None = None


class _Wishing(msgspec.Struct):
    spec: _Wishes = _Wishes()


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _NodesArgs(msgspec.Struct):
    Pod: msgspec.Raw = msgspec.Raw()
    Nodes: _NodeList | None = None
    NodeNames: list[str] | None = None


class _BindArgs(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class _MetaVictims(msgspec.Struct):
    Pods: list[dict[str, str]] | None = None
    NumPDBViolations: int = 0


class _FullVictims(msgspec.Struct):
    Pods: list[_Named] | None = None
    NumPDBViolations: int = 0


class _PreemptArgs(msgspec.Struct):
    Pod: msgspec.Raw = msgspec.Raw()
    NodeNameToVictims: dict[str, _FullVictims] | None = None
    NodeNameToMetaVictims: dict[str, _MetaVictims] | None = None


_NODES: Final = msgspec.json.Decoder(_NodesArgs)
_BIND: Final = msgspec.json.Decoder(_BindArgs)
_PREEMPT: Final = msgspec.json.Decoder(_PreemptArgs)
_NAMED: Final = msgspec.json.Decoder(_Named)
_WISHING: Final = msgspec.json.Decoder(_Wishing)
_ENCODE: Final = msgspec.json.Encoder()


def read_extender_args(body: bytes) -> ExtenderArgs | InvalidArgs:
    """A request of filter or prioritize."""
    try:
        args = _NODES.decode(body)
        if not bytes(args.Pod):
            return InvalidArgs("request has no Pod")
        uid = _NAMED.decode(args.Pod).metadata.uid
        if args.NodeNames is not None:
            names, nodes = args.NodeNames, None
        elif args.Nodes is None:
            return InvalidArgs("request has neither Nodes nor NodeNames")
        else:
            nodes = args.Nodes.items or []
            names = [_NAMED.decode(node).metadata.name for node in nodes]
    except _UNREADABLE as exc:
        return _broken(exc)
    if len(names) > MAX_NODES:
        return InvalidArgs(f"request has {len(names)} nodes; at most {MAX_NODES} are accepted")
    return ExtenderArgs(args.Pod, uid, names, nodes)


def read_binding_args(body: bytes) -> BindingArgs | InvalidArgs:
    """A request of bind."""
    try:
        args = _BIND.decode(body)
    except _UNREADABLE as exc:
        return _broken(exc)
    if not (args.PodName and args.PodNamespace and args.PodUID and args.Node):
        return InvalidArgs("bind request needs PodName, PodNamespace, PodUID and Node")
    return BindingArgs(args.PodNamespace, args.PodName, args.PodUID, args.Node)


def read_preemption_args(body: bytes) -> PreemptionArgs | InvalidArgs:
    """A request of preempt, with victims as whole pods or by UID."""
    try:
        args = _PREEMPT.decode(body)
        if not bytes(args.Pod):
            return InvalidArgs("request has no Pod")
        uid = _NAMED.decode(args.Pod).metadata.uid
        victims: dict[str, Victims] = {}
        for node, proposed in (args.NodeNameToMetaVictims or {}).items():
            uids = tuple(pod.get("UID", "") for pod in proposed.Pods or ())
            victims[node] = Victims(uids, proposed.NumPDBViolations)
        for node, whole in (args.NodeNameToVictims or {}).items():
            uids = tuple(pod.metadata.uid for pod in whole.Pods or ())
            victims.setdefault(node, Victims(uids, whole.NumPDBViolations))
    except _UNREADABLE as exc:
        return _broken(exc)
    if len(victims) > MAX_NODES or sum(len(found.uids) for found in victims.values()) > MAX_VICTIMS:
        return InvalidArgs(f"request has more than {MAX_NODES} nodes or {MAX_VICTIMS} victims")
    return PreemptionArgs(args.Pod, uid, victims)


def encode_filter_result(
    ask: ExtenderArgs, fit: Iterable[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """Nodes that fit, nodes that preemption might help (with reasons), and nodes that it cannot help."""
    answer: dict[str, object] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""}
    if ask.nodes is None:
        answer["NodeNames"] = list(fit)
    else:
        wanted = frozenset(fit)
        kept = [node for name, node in zip(ask.names, ask.nodes, strict=True) if name in wanted]
        answer["Nodes"] = {"metadata": {}, "items": kept}
    return _ENCODE.encode(answer)


def has_node_preferences(pod: msgspec.Raw) -> bool:
    """Whether the pod states preferences for nodes that in-tree plugins score; True where that cannot be read."""
    try:
        spec = _WISHING.decode(pod).spec
    except _UNREADABLE:
        return True
    wants = spec.affinity
    if spec.topology_spread_constraints:
        return True
    if wants is None:
        return False
    of_nodes = wants.node_affinity
    liked = of_nodes is not None and of_nodes.preferred_during_scheduling_ignored_during_execution
    return bool(liked or wants.pod_affinity or wants.pod_anti_affinity)


def encode_filter_error(reason: str) -> bytes:
    """A result without nodes: kube-scheduler retries the pod, and the reason is in its Events."""
    return _ENCODE.encode({"FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": clean(reason)})


def encode_host_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Scores from 0 to 10, in the order of the names."""
    rows = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
    return _ENCODE.encode(rows)


def encode_binding_result(error: str = "") -> bytes:
    """Empty where the pod is bound."""
    return _ENCODE.encode({"Error": clean(error)})


def encode_preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """By UID, whichever way the question came: kube-scheduler knows the pods."""
    nodes = {
        node: {"Pods": [{"UID": uid} for uid in found.uids], "NumPDBViolations": found.violations}
        for node, found in victims.items()
    }
    return _ENCODE.encode({"NodeNameToMetaVictims": nodes})


def clean(text: str) -> str:
    """One line of bounded length, fit for an Event."""
    return printable(text, _LONGEST_REASON, " ")


def _broken(exc: Exception) -> InvalidArgs:
    return InvalidArgs(clean(f"cannot decode extender request: {exc}"))
