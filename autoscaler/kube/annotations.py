# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler reads of nodes and pods besides the model: identities, addresses, marks, constraints in full.

Decides nothing of what it means. A field of the wrong shape is as if it were absent, except where that would make a
pod look freer than it is: then the pod counts as one whose constraints cannot be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from autoscaler.core.drain_rules import DrainHints
from autoscaler.core.rightsizing.live import PodWish
from autoscaler.kube.node_pods import gone_at
from isolation.contract.cluster_autoscaler_annotations import HANDOVER
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import safe_to_evict, seconds_of
from isolation.contract.names import DELETION_COST, DRAIN, EVICT, RIGHT_SIZED, SAFE_TO_EVICT_LOCAL_VOLUMES
from isolation.contract.right_size import RightSize, read_wish
from isolation.kube.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.contract.model import Taint

_LEAVING_TAINTS: Final = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"})
_NO_HANDOVER: Final = MappingProxyType[str, str]({})
_MAX_COST: Final = (1 << 31) - 1
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """Our own mark on a node."""

    since: float
    why: str = ""
    removing: float = 0.0
    """When its removal was about to be ordered: no pod may be sent there any more, whoever waits; 0: it was not."""

    def text(self) -> str:
        """As the annotation has it."""
        removing = {"removing": round(self.removing, 3)} if self.removing else {}
        return json.dumps({"since": round(self.since, 3), "why": self.why[:500], **removing})


def read_drain(text: str) -> DrainRecord | None:
    """The mark; None where there is none. One that cannot be read counts since the beginning of time: it is overdue."""
    if not text:
        return None
    try:
        found = json.loads(text)
        since, removing = (_moment(float(found.get(key, 0.0))) for key in ("since", "removing"))
        return DrainRecord(since, str(found.get("why", "")), removing)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return DrainRecord(0.0)


def _moment(seconds: float) -> float:
    """No NaN, no end of time."""
    return seconds if abs(seconds) < 1e12 else 0.0  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class NodeNote:
    """One node."""

    uid: str = ""
    created: float = 0.0
    provider_id: str = ""
    address: str = ""
    drain: DrainRecord | None = None
    leaving: str = ""
    """Who else takes it out of service: the taint that says so; empty: nobody."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One hard topology spread constraint, as far as it is understood."""

    key: str
    skew: int
    labels: tuple[tuple[str, str], ...]
    """Of the pods that are counted."""


@dataclass(frozen=True, slots=True)
class PodNote:
    """One pod."""

    scheduler: str = ""
    deletion_cost: int = 0
    said: DrainHints = field(default_factory=DrainHints)
    """What its owner says about moving it."""
    spreads: tuple[Spread, ...] = ()
    beyond: tuple[str, ...] = ()
    """Hard constraints that nothing here understands."""
    version: str = ""
    """resourceVersion."""
    handover: Mapping[str, str] = field(default_factory=lambda: _NO_HANDOVER)
    """Its annotations about cluster-autoscaler (`isolation.contract.cluster_autoscaler_annotations.HANDOVER`)."""
    right_sized: str = ""
    """What admission gave it instead of what it asked for (`names.RIGHT_SIZED`)."""
    wish: PodWish | None = None
    """None: no recommendation is applied to it."""
    gone_at: float = 0.0
    """From when a terminating pod counts as gone, in seconds since the epoch (`node_pods`); 0: it does not end."""


class _Meta(msgspec.Struct):
    uid: str = ""
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 (Kubernetes' spelling, here and below)
    creationTimestamp: Any = None  # noqa: N815
    annotations: Any = None
    deletionTimestamp: Any = None  # noqa: N815


class _NodeSpec(msgspec.Struct):
    providerID: Any = None  # noqa: N815


class _NodeStatus(msgspec.Struct):
    addresses: Any = None


class _Node(msgspec.Struct):
    metadata: _Meta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _PodSpec(msgspec.Struct):
    schedulerName: Any = None  # noqa: N815
    affinity: Any = None
    topologySpreadConstraints: Any = None  # noqa: N815
    schedulingGates: Any = None  # noqa: N815
    volumes: Any = None
    terminationGracePeriodSeconds: Any = None  # noqa: N815


class _PodStatus(msgspec.Struct):
    containerStatuses: Any = None  # noqa: N815


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_NODE: Final = msgspec.json.Decoder(_Node)
_POD: Final = msgspec.json.Decoder(_Pod)
_UNREAD: Final = PodNote(beyond=("unreadable constraints",))


class Notes(Store):
    """The live store, with these notes beside each object."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.of_node: dict[str, NodeNote] = {}
        self.of_pod: dict[str, PodNote] = {}

    def node_is(self, raw: msgspec.Raw) -> str:
        """As the store; the note too."""
        name = super().node_is(raw)
        try:
            self.of_node[name] = _node_note(_NODE.decode(raw))
        except (*_BROKEN, CodecError):
            self.of_node.setdefault(name, NodeNote())
        return name

    def node_gone(self, name: str) -> None:
        """As the store."""
        super().node_gone(name)
        self.of_node.pop(name, None)

    def pod_is(self, raw: msgspec.Raw) -> str:
        """As the store; the note too."""
        uid = super().pod_is(raw)
        try:
            self.of_pod[uid] = _pod_note(_POD.decode(raw))
        except (*_BROKEN, CodecError):
            self.of_pod[uid] = _UNREAD
        return uid

    def pod_gone(self, uid: str) -> None:
        """As the store."""
        super().pod_gone(uid)
        self.of_pod.pop(uid, None)


def find_removal_taint(taints: Iterable[Taint]) -> str:
    """Which taint says that somebody else removes the node; empty: none does."""
    return next((taint.key for taint in taints if taint.key in _LEAVING_TAINTS), "")


def ours(key: str) -> bool:
    """Whether a taint is our own mark of a drain."""
    return key == DRAIN


def _node_note(node: _Node) -> NodeNote:
    at = At(node.status.addresses)
    addresses = [(item["type"].text(), item["address"].text()) for item in at.items()]
    inside = [address for kind, address in addresses if kind == "InternalIP"]
    return NodeNote(
        uid=node.metadata.uid,
        created=seconds_of(At(node.metadata.creationTimestamp)),
        provider_id=At(node.spec.providerID).text(),
        address=next(iter(inside), ""),
        drain=read_drain(At(node.metadata.annotations).texts().get(DRAIN, "")),
    )


def _pod_note(pod: _Pod) -> PodNote:
    spreads, beyond = [], []
    for item in At(pod.spec.topologySpreadConstraints).items():
        if item["whenUnsatisfiable"].text("DoNotSchedule") == "DoNotSchedule":
            found = _spread(item)
            spreads.append(found) if found is not None else beyond.append("a topology spread constraint")
    affinity = At(pod.spec.affinity)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    beyond += [
        words
        for kind, words in (("podAffinity", "pod affinity"), ("podAntiAffinity", "pod anti-affinity"))
        if affinity[kind][required].items()
    ]
    if At(pod.spec.schedulingGates).items():
        beyond.append("scheduling gates")
    said = At(pod.metadata.annotations).texts()
    return PodNote(
        scheduler=At(pod.spec.schedulerName).text(),
        deletion_cost=_cost(said.get(DELETION_COST, "")),
        said=DrainHints(safe_to_evict(said), said.get(EVICT) == "true", tuple(_local_volumes(pod.spec.volumes, said))),
        spreads=tuple(spreads),
        beyond=tuple(beyond),
        version=pod.metadata.resourceVersion,
        handover={key: said[key] for key in HANDOVER if key in said} or _NO_HANDOVER,
        right_sized=said.get(RIGHT_SIZED, ""),
        wish=_wish(said, pod.status.containerStatuses),
        gone_at=gone_at(pod.metadata.deletionTimestamp, pod.spec.terminationGracePeriodSeconds),
    )


def _wish(annotations: Mapping[str, str], statuses: object) -> PodWish | None:
    wish = read_wish(annotations)
    if wish is None or wish.mode not in (RightSize.INITIAL, RightSize.LIVE):
        return None
    return PodWish(wish, sum(one["restartCount"].integer(0, 0) for one in At(statuses).items()))


def _local_volumes(volumes: object, annotations: Mapping[str, str]) -> Iterator[str]:
    """Names of volumes whose contents go with the node, less those that may; memory is no storage."""
    may_go = annotations.get(SAFE_TO_EVICT_LOCAL_VOLUMES, "").split(",")
    for volume in At(volumes).items():
        fields = dict(volume.fields())
        on_disk = "emptyDir" in fields and volume["emptyDir"]["medium"].text() != "Memory"
        if ("hostPath" in fields or on_disk) and volume["name"].text() not in may_go:
            yield volume["name"].text()


def _spread(item: At) -> Spread | None:
    """None where it says more than is understood."""
    selector = item["labelSelector"]
    more = {key for key, value in item.fields()} - {"maxSkew", "topologyKey", "whenUnsatisfiable", "labelSelector"}
    if more - {"nodeTaintsPolicy", "nodeAffinityPolicy"} or selector["matchExpressions"].items():
        return None
    labels = selector["matchLabels"].texts()
    key, skew = item["topologyKey"].text(), item["maxSkew"].integer(1, 1)
    return Spread(key, skew, tuple(sorted(labels.items()))) if key and labels else None


def _cost(text: str) -> int:
    try:
        return max(-_MAX_COST, min(_MAX_COST, int(text))) if text and len(text) < 12 else 0  # noqa: PLR2004 (digits of 32 bits)
    except ValueError:
        return 0
