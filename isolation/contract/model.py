# SPDX-License-Identifier: Apache-2.0
"""
The promise and the fleet it is made on, as frozen values.

Memory is bytes, CPU is milli-cores, compute is percent of one card, a card is its UUID.
A node says what it *has*; what is held on it follows from the pods placed there and from
nothing else, so holds and cards cannot disagree. This module knows no Kubernetes spelling
(`codec`) and takes no decision (`isolation.placement`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from isolation.contract.names import DRAIN
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FULL_CORE: Final = 100
"""Percent of compute in one card."""
NAME_FIELD: Final = "metadata.name"
"""The one node field that affinity may select on, treated as a label."""


def _no_labels() -> Mapping[str, str]:
    return MappingProxyType({})


class Mode(StrEnum):
    """What a node serves (values of ACK's label `ack.node.gpu.schedule`)."""

    SHARE = "share"
    """Shares of memory, nothing enforced."""
    CGPU = "cgpu"
    """Shares of memory, enforced."""
    CORE_MEM = "core_mem"
    """Shares of memory and compute, both enforced."""
    MPS = "mps"
    """Shares of memory and compute under NVIDIA MPS: pods of one `Trust` on a card."""
    EXCLUSIVE = "default"
    """Whole cards."""
    NONE = "none"
    """No cards that gpushare serves: a CPU node, or a mode of somebody else's (mig, topology)."""


SHARED_MODES: Final = frozenset({Mode.SHARE, Mode.CGPU, Mode.CORE_MEM, Mode.MPS})
"""Modes of nodes that serve shares."""


class CardChoice(StrEnum):
    """Which card of a node a pod gets first (values of ACK's label `ack.node.gpu.placement`)."""

    BINPACK = "binpack"
    SPREAD = "spread"
    POLICY = "policy"
    """No label: the placement policy decides card by card, as it does node by node."""


class ComputePolicy(StrEnum):
    """How the compute of a card is shared (values of the node label `gpushare.dev/compute-policy`)."""

    FIXED = "fixed"
    """What is guaranteed, and never more."""
    BURST = "burst"
    """What is guaranteed, and an equal part of what neighbours leave idle."""
    WEIGHT = "weight"
    """In proportion to the weights of those that compute, never less than is guaranteed."""
    PRIORITY = "priority"
    """Online pods first, in proportion to their weights; offline pods get what these leave."""
    NONE = "none"
    """Not limited at all."""


@dataclass(frozen=True, slots=True)
class Compute:
    """How one pod's compute is shared with its neighbours, beside the percent that is guaranteed to it."""

    policy: ComputePolicy = ComputePolicy.FIXED
    """The node's when the pod was bound; of a request that has no node yet it means nothing."""
    online: bool = True
    weight: int = 0
    """1 to `MAX_WEIGHT`; 0: none was given, the guaranteed percent counts, or 1 without one."""
    ceiling: int = 0
    """Most percent of each card that it ever gets; 0: no ceiling of its own."""


MAX_WEIGHT: Final = 100
MAX_UID: Final = (1 << 31) - 1
"""Kubernetes takes no larger user."""


class Phase(StrEnum):
    """How far a pod has come, as far as its holds are concerned."""

    PENDING = "Pending"
    RUNNING = "Running"
    DONE = "Done"
    """Succeeded or failed: holds nothing."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Toleration(NamedTuple):
    """A pod's toleration; empty `key` with `exists` tolerates everything, empty `effect` every effect."""

    key: str = ""
    value: str = ""
    effect: str = ""
    exists: bool = False


class Requirement(NamedTuple):
    """One term of a node selector; `op` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    op: str = "In"
    values: tuple[str, ...] = ()


def part_of_model(name: str) -> str:
    """A card model, or a part of its name, in one spelling: the driver says `Tesla T4`, node labels `Tesla-T4`."""
    return name.upper().replace(" ", "-")


class CardRules(NamedTuple):
    """Which cards of a node a pod may use; empty: any. Models are parts of names, as `part_of_model` writes them."""

    models: frozenset[str] = frozenset()
    """One of them is in the name of the card's model."""
    not_models: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    not_uuids: frozenset[str] = frozenset()
    profile: str = ""
    """Only MIG instances of this profile."""

    def __bool__(self) -> bool:
        return bool(self.models or self.not_models or self.uuids or self.not_uuids or self.profile)

    def allow(self, card: Card) -> bool:
        """Whether the pod may use this card."""
        model = f"NVIDIA-{part_of_model(card.model)}"  # HAMi's name of a Tesla T4 is "NVIDIA-Tesla T4"
        return (
            (not self.models or any(part in model for part in self.models))
            and not any(part in model for part in self.not_models)
            and (not self.uuids or card.uuid in self.uuids)
            and card.uuid not in self.not_uuids
            and (not self.profile or (card.instance is not None and card.instance.profile == self.profile))
        )


class Rules(NamedTuple):
    """Which nodes a pod may use, apart from room: hashable, so that pods alike share one answer."""

    # A named tuple, like its parts: it is made and looked up for each pod, which takes a dataclass three times as long.

    terms: tuple[tuple[Requirement, ...], ...] = ()
    """Alternatives; within one, every requirement must hold. Empty: any node."""
    tolerations: frozenset[Toleration] = frozenset()
    models: frozenset[str] = frozenset()
    """Card models allowed; empty: any."""
    cards: CardRules = CardRules()
    mps: bool = False
    """The pod goes to nodes in mode mps and to no others, by its selectors: nobody comes to share faults unasked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container asks of cards, over all the pod's cards together."""

    container: str
    bytes: int = 0
    core: int = 0
    whole: int = 0
    init: bool = False
    """An init container that ends before the app containers start (a sidecar is not one)."""
    position: int = field(default=-1, compare=False)
    """In `spec.containers`, by which the vendor's record counts; -1: none of them, or not known."""


@dataclass(frozen=True, slots=True)
class Trust:
    """
    Who shares a fate on a card: under MPS a fault of one pod, or a restart of the server, hits all of them.

    A server serves one user, so pods of several users do not share one either.
    """

    group: str
    """The namespace, or the group of namespaces that the operator put it into."""
    uid: int
    """User that the containers run as."""

    def __str__(self) -> str:
        return f"{self.group} (user {self.uid})"


@dataclass(frozen=True, slots=True)
class Request:
    """
    What one pod asks for, reduced to what placement needs.

    Every card of the pod's card set gives the same: `card_bytes` and `card_core`, already the
    pod's effective request (Kubernetes' rule: the larger of the running sum and each init
    container with the sidecars before it). `asks` keeps the containers for the record.
    """

    cards: int = 0
    card_bytes: int = 0
    card_core: int = 0
    whole: bool = False
    """Exclusive cards: `cards` of them, nothing else on them."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    rules: Rules = Rules()  # noqa: RUF009 (a value)
    owner: str = ""
    """Controller that made the pod (`Kind/namespace/name`); replicas share it. Empty: a pod without a controller."""
    asks: tuple[Ask, ...] = ()
    compute: Compute = Compute()
    """What the pod says of its compute beside `card_core`; the node decides the policy."""
    unmodelled: tuple[str, ...] = ()
    """Constraints that placement does not weigh (topology spread, pod affinity ...), for people."""
    group: str = ""
    """Of `Trust`; empty: not known."""
    uid: int | None = None
    """User that all containers with shares run as, by the pod's spec; None: it does not say, or they differ."""

    @property
    def shared(self) -> bool:
        """Whether the pod asks for shares of cards."""
        return self.cards > 0 and not self.whole

    @property
    def trust(self) -> Trust | None:
        """Beside whom the pod may be on a card under MPS; None: cannot be told."""
        return Trust(self.group, self.uid) if self.shared and self.group and self.uid is not None else None


MANY_INSTANCES: Final = (
    "CUDA opens only one MIG instance per process: request one card, or cards that MIG does not divide"
)
SHARES_OF_INSTANCE: Final = (
    "a share of compute within a MIG instance is not promised, as NVML does not report the GPU time of its processes: "
    "request memory only, or an instance of a smaller profile"
)
"""Why a pod with a share of compute gets no MIG instance, for people."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What a MIG instance is: where it lies, and how much of its card it has."""

    parent: str
    """UUID of the physical card."""
    profile: str
    """NVIDIA's name of its size, such as 1g.10gb."""
    gpu: int = 0
    """Id of its GPU instance, which has the memory."""
    compute: int = 0
    """Id of its compute instance within that."""
    slices: int = 0
    """Slices of the card's multiprocessors, of seven; 0: not known."""


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU, or one MIG instance."""

    uuid: str
    index: int
    total_bytes: int
    reserved_bytes: int = 0
    """What the driver keeps: nobody can be promised it."""
    unit_bytes: int = GIB
    model: str = ""
    healthy: bool = True
    instance: Instance | None = None
    """None: a physical card, all of it."""

    @property
    def board(self) -> str:
        """UUID of the physical card."""
        return self.uuid if self.instance is None else self.instance.parent

    @property
    def allocatable_bytes(self) -> int:
        """Whole units only, so that tenants who fill the card can all reach their promise at once."""
        return max(0, (self.total_bytes - self.reserved_bytes) // self.unit_bytes) * self.unit_bytes


@dataclass(frozen=True, slots=True)
class Applied:
    """What a node says of the record of one pod that was resized."""

    generation: int
    """The latest change that is in force."""
    message: str = ""
    """Why a later one is not yet, where something is in the way."""


@dataclass(frozen=True, slots=True)
class Node:
    """What one machine has and says of itself."""

    name: str
    cards: tuple[Card, ...] = ()
    mode: Mode = Mode.NONE
    choice: CardChoice = CardChoice.POLICY
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 110
    """Most pods the kubelet admits (Kubernetes' default is 110)."""
    labels: Mapping[str, str] = field(default_factory=_no_labels, hash=False)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    pool: str = ""
    serving: bool = True
    """Whether shares can start there: not while the node agent leaves, or the kubelet has lost its plugin."""
    address: str = ""
    """Its address within the cluster (`InternalIP`)."""
    policy: ComputePolicy = ComputePolicy.FIXED
    """How compute is shared among pods that are bound to it from now on."""
    applied: Mapping[str, Applied] | None = field(default=None, hash=False)
    """By pod UID, what is in force of records that were changed; None: its agent says nothing of that."""
    unheld: str = ""
    """Why nothing there can hold what its mode promises, by its agent; empty: something does."""

    @property
    def draining(self) -> bool:
        """Whether the autoscaler empties it, or has given it up."""
        return any(taint.key == DRAIN for taint in self.taints)


@dataclass(frozen=True, slots=True)
class Slice:
    """A pod's part of one card: the effective amount that is taken off the card's room."""

    uuid: str
    index: int
    bytes: int
    core: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes: one node, one card set (empty for a pod without cards)."""

    node: str
    slices: tuple[Slice, ...] = ()


class Why(StrEnum):
    """Why a pod is refused; the closed set behind metrics labels and `failed` counts."""

    INVALID = "invalid"
    """The request contradicts itself or the vocabulary; no fleet could serve it."""
    NO_NODES = "no_nodes"
    MODE = "mode"
    """No node serves this kind of request (share, share with compute, whole card)."""
    INSTANCES = "instances"
    """Every card is a MIG instance, and the pod asks for what those cannot give."""
    TRUST = "trust"
    """Under MPS: every card is used by pods of another group or user, or the pod does not say its user."""
    RULES = "rules"
    """Selectors, affinity, taints or card models exclude every node of the right mode."""
    NOT_READY = "not_ready"
    CARD_TOO_SMALL = "card_too_small"
    """More per card than any card offers even when empty."""
    TOO_FEW_CARDS = "too_few_cards"
    """More cards than any node has."""
    CARDS = "cards"
    """Cards are large enough but full, also as a sum."""
    FRAGMENTED = "fragmented"
    """Some node has the room as a sum over its cards, but no single card set has it."""
    CPU = "cpu"
    MEMORY = "memory"
    PODS = "pods"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, as a code for programs and as a sentence for people that says what to change."""

    why: Why
    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class CardAllocation:
    """What one container may use of one card: the promise as it is enforced and measured."""

    promise: str
    pod: str
    container: str
    uuid: str
    index: int
    bytes: int
    core: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one container may use of which cards."""

    container: str
    slices: tuple[Slice, ...]


def parts_of(request: Request, placement: Placement) -> tuple[Part, ...]:
    """
    How the containers of a placed pod divide what it got.

    Shares: each asks the same of every card. Whole cards: each has its own, in order, and an
    init container those of whoever comes after it, as the kubelet hands them on; the cards of a
    sidecar, which keeps running, are nobody else's.
    """
    parts: list[Part] = []
    count, first = max(1, len(placement.slices)), 0
    for ask in request.asks:
        if ask.whole:
            parts.append(Part(ask.container, placement.slices[first : first + ask.whole]))
            first += 0 if ask.init else ask.whole
        else:
            each, core = ask.bytes // count, ask.core // count
            parts.append(Part(ask.container, tuple(Slice(s.uuid, s.index, each, core) for s in placement.slices)))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Resize:
    """The latest change of a running pod's promise. What is booked meanwhile is the placement: never less."""

    generation: int
    """Grows with every change of the record."""
    card_bytes: int
    """What is to be booked of each card in the end: what the containers have together, and what is reserved beyond."""
    card_core: int
    parts: tuple[Part, ...] = ()
    """What each container is to have of which cards."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod: who it is, what it asked for, where it is."""

    uid: str
    name: str
    namespace: str = "default"
    request: Request = Request()
    placement: Placement | None = None
    phase: Phase = Phase.PENDING
    created: float = 0.0
    """Seconds, on whatever clock the source uses."""
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_labels, hash=False)
    evictable: bool = True
    """Whether the autoscaler may move it (a controller makes it again, no opt-out)."""
    deleting: bool = False
    """A deletion was asked for; it holds what it holds until its containers have ended."""
    owner_uid: str = ""
    """UID of the controller that made the pod: reservations are made out to it, or to the pod."""
    reservation: str = ""
    """Name of the reservation that it has used up."""
    provisioning_request: str = ""
    """Name of the ProvisioningRequest in its namespace whose reservations are for it."""
    static: bool = False
    """The mirror of a pod that its node runs by itself: nobody else can end it."""
    preempts: bool = True
    """False: it waits rather than end pods of lower priority (`preemptionPolicy: Never`)."""
    resize: Resize | None = None
    """The change of its promise since the binding; None: it has what it requested."""
    wanted_resize: str = ""
    """The annotation that asks for another amount, as it was written."""
    resize_status: str = ""
    """The annotation that says what became of that, as it was written."""

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def holds(self) -> tuple[CardAllocation, ...]:
        """Per container and card; the containers of a pod share one card set."""
        if self.placement is None or self.phase is Phase.DONE:
            return ()
        parts = self.resize.parts if self.resize is not None else parts_of(self.request, self.placement)
        return tuple(
            CardAllocation(self.uid, self.key, part.container, at.uuid, at.index, at.bytes, at.core)
            for part in parts
            for at in part.slices
        )

    def placed(self, placement: Placement) -> Pod:
        """The same pod, bound."""
        return replace(self, placement=placement)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One consistent reading: every node, and every pod that matters to placement."""

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()

    @property
    def pending(self) -> tuple[Pod, ...]:
        """Pods that wait for a place, oldest first, ties by UID."""
        waiting = (p for p in self.pods if p.placement is None and p.phase is Phase.PENDING and not p.deleting)
        return tuple(sorted(waiting, key=lambda p: (-p.priority, p.created, p.uid)))

    def on(self, names: Iterable[str]) -> tuple[Pod, ...]:
        """Pods that hold something on the named nodes."""
        wanted = frozenset(names)
        return tuple(
            p for p in self.pods if p.placement is not None and p.phase is not Phase.DONE and p.placement.node in wanted
        )
