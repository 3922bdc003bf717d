# SPDX-License-Identifier: Apache-2.0
"""
Pods of one snapshot: where each is, which wait for cards, which may be moved, and which must not be.

Decides which scheduling constraints are honoured and how: a spread over zones becomes the one zone that is next, a
spread over hosts excludes the full hosts. What cannot be modelled is named, neither bought for nor moved. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.drain_rules import DrainRules, explain_block, find_blocks
from autoscaler.kube.annotations import PodNote
from autoscaler.kube.usage import spots_of
from isolation.contract.model import NAME_FIELD, Phase, Requirement
from isolation.contract.names import SYSTEM_NAMESPACES
from isolation.placement.node_rules import find_barrier, needs_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from autoscaler.core.drain_rules import DrainBlock
    from autoscaler.core.pools import Pool
    from autoscaler.kube.annotations import Spread
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.watches import PodBudget
    from isolation.contract.model import Node, Pod, Request
    from isolation.placement.node_rules import Needs

HOSTNAME: Final = "kubernetes.io/hostname"
MAX_BUDGETS: Final = 200
"""In one namespace; where there are more nobody is moved: each pod would have to be held against each of them."""
MAX_KINDS: Final = 500
"""Different spreads and sets of rules that are weighed in one turn; a tenant can make each of its pods another kind."""
_BEYOND: Final = ("volume ", "resource claims", "a pod group", "host ports")
"""How phrases of `Request.unmodelled` begin that bind a pod to places that nobody here knows."""
_NO_NOTE: Final = PodNote()


@dataclass(slots=True)
class PodIndex:
    """The pods of one snapshot that have not ended, each as far as it may be moved."""

    pods: dict[str, Pod] = field(default_factory=dict)
    """By UID: bound ones, and waiting ones that ask for cards."""
    by_node: dict[str, dict[str, Pod]] = field(default_factory=dict)
    queue: dict[str, Pod] = field(default_factory=dict)
    """Pods that wait for cards, by UID."""
    deletion_cost: dict[str, int] = field(default_factory=dict)
    """By UID, where its owner set one."""
    gone_at: dict[str, float] = field(default_factory=dict)
    """By UID, from when a terminating pod counts as gone, in seconds since the epoch."""
    blocks: dict[str, tuple[DrainBlock, ...]] = field(default_factory=dict)
    """By UID: rules against moving it, where all of them are in force."""

    def nodes_in_use(self) -> frozenset[str]:
        """Nodes with pods that do not go with the node."""
        return frozenset(
            name for name, here in self.by_node.items() if any(not belongs_to_node(pod) for pod in here.values())
        )

    def leave_out(self, nodes: Collection[str]) -> None:
        """Of pods on any other node than these keep only the ones that ask for cards."""
        for name in [name for name in self.by_node if name not in nodes]:
            here = self.by_node[name]
            for uid in [uid for uid, pod in here.items() if not pod.request.cards]:
                del self.pods[uid], here[uid]
            if not here:
                del self.by_node[name]

    def find_blocked(self, rules: Mapping[str, DrainRules]) -> dict[str, str]:
        """Who may not be moved by the drain rules, and why; `rules`: by node, where they are not the default ones."""
        usual, found = DrainRules(), {}
        for uid, blocks in self.blocks.items():
            placement = self.pods[uid].placement if uid in self.pods else None
            why = explain_block(blocks, rules.get(placement.node, usual)) if placement is not None else ""
            if why:
                found[uid] = why
        return found

    def find_guarded(self, budgets: Sequence[PodBudget], everyone: str) -> dict[str, str]:
        """Who may not be evicted now, and why; `everyone`: why nobody may, empty: they may."""
        bound = [pod for pod in self.pods.values() if pod.placement is not None and pod.evictable]
        return {pod.uid: everyone for pod in bound} if everyone else find_guarded(bound, budgets)

    def find_long_terminating(self, at: float) -> frozenset[str]:
        """Who should have ended long before this moment."""
        return frozenset(uid for uid, gone in self.gone_at.items() if gone < at)

    def measure(self, usage: Measured) -> dict[str, float]:
        """By UID: the most that a pod uses of the compute of one of its cards; absent where unknown."""
        found = {}
        for uid, pod in self.pods.items() if usage.samples else ():
            used = usage.used(pod.placement.node, spots_of(pod)) if pod.placement is not None else None
            if used is not None:
                found[uid] = used
        return found


def index_pods(pods: Iterable[Pod], notes: Mapping[str, PodNote], schedulers: Collection[str]) -> PodIndex:
    """`schedulers`: those that honour reservations; the pods of others are never moved."""
    index = PodIndex()
    for pod in pods:
        if pod.phase is not Phase.DONE:
            _add(index, pod, notes.get(pod.uid, _NO_NOTE), schedulers)
    return index


def _add(index: PodIndex, pod: Pod, note: PodNote, schedulers: Collection[str]) -> None:
    uid, placement = pod.uid, pod.placement
    if note.gone_at:
        index.gone_at[uid] = note.gone_at
    if note.deletion_cost:
        index.deletion_cost[uid] = note.deletion_cost
    if placement is None:
        if pod.request.cards:
            index.pods[uid] = pod
            if pod.phase is Phase.PENDING and not pod.deleting:
                index.queue[uid] = pod
        return
    if pod.evictable:
        if movable(pod, note, schedulers):
            blocks = find_blocks(pod.request.owner, note.said)
            if blocks:
                index.blocks[uid] = blocks
        else:
            pod = replace(pod, evictable=False)
    index.pods[uid] = pod
    index.by_node.setdefault(placement.node, {})[uid] = pod


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits."""

    pods: tuple[Pod, ...]
    unanswered: Mapping[str, str]
    """By UID, those who are left out, and why."""


def beyond(request: Request, note: PodNote) -> str:
    """Which hard constraints are not understood; empty: all are."""
    found = [*note.beyond, *(phrase for phrase in request.unmodelled if phrase.startswith(_BEYOND))]
    return ", ".join(dict.fromkeys(found))


def movable(pod: Pod, note: PodNote, schedulers: Collection[str]) -> bool:
    """
    Whether a home can be reserved for the pod's successor, and there will be one.

    Only our scheduler honours reservations, and only shares of cards can be reserved. Nobody in the system's namespaces
    is evicted, whatever is said there: an admission policy refuses us that, stricter than cluster-autoscaler. What else
    keeps a pod is `autoscaler.core.drain_rules`.
    """
    if not pod.evictable or not pod.owner_uid or pod.static or not pod.request.shared:
        return False
    if pod.namespace in SYSTEM_NAMESPACES:
        return False
    return note.scheduler in schedulers and not note.spreads and not beyond(pod.request, note)


def find_guarded(pods: Iterable[Pod], budgets: Sequence[PodBudget]) -> dict[str, str]:
    """By UID, who may not be evicted now: a budget with nothing left, or more budgets than the API server takes."""
    by_namespace: dict[str, list[PodBudget]] = {}
    for budget in budgets:
        by_namespace.setdefault(budget.namespace, []).append(budget)
    found: dict[str, str] = {}
    for pod in pods if by_namespace else ():
        if len(by_namespace.get(pod.namespace, ())) > MAX_BUDGETS:
            found[pod.uid] = f"namespace {pod.namespace} has more than {MAX_BUDGETS} PodDisruptionBudgets"
            continue
        over = [budget for budget in by_namespace.get(pod.namespace, ()) if budget.covers(pod.labels)]
        if len(over) > 1:
            found[pod.uid] = f"{len(over)} PodDisruptionBudgets select it; the API server allows at most one"
        elif over and over[0].allowed < 1:
            found[pod.uid] = f"PodDisruptionBudget {over[0].name} allows no disruption now"
    return found


def waiting(
    pods: Sequence[Pod],
    everyone: Iterable[Pod],
    notes: Mapping[str, PodNote],
    nodes: Sequence[Node],
    pools: Sequence[Pool],
) -> Waiting:
    """Those of `pods` (in the scheduler's order) that are understood, with their next zone where they spread."""
    known: list[Pod] = []
    left: dict[str, str] = {}
    domains = _Domains(everyone, nodes, pools)
    for pod in pods:
        note = notes.get(pod.uid, _NO_NOTE)
        why = beyond(pod.request, note) or domains.too_many(pod, note.spreads)
        if why:
            left[pod.uid] = f"unsupported scheduling constraints: {why}; no scale-up for this pod"
            continue
        request = pod.request
        for spread in note.spreads:
            request = domains.served(pod, request, spread)
        known.append(pod if request is pod.request else replace(pod, request=request))
    return Waiting(tuple(known), left)


class _Domains:
    """Where pods that spread are, and where the next one of each goes; each question is answered once."""

    def __init__(self, everyone: Iterable[Pod], nodes: Sequence[Node], pools: Sequence[Pool]) -> None:
        self._everyone, self._nodes, self._pools = everyone, nodes, pools
        self._placed: list[Pod] | None = None
        self._blanks: list[tuple[Node, bool]] = []
        self._counts: dict[tuple[str, Spread], Counter[str]] = {}
        self._fitting: dict[Needs, list[tuple[Node, bool]]] = {}

    def too_many(self, pod: Pod, spreads: Sequence[Spread]) -> str:
        """Why this one is not weighed; empty: it is."""
        new = sum((pod.namespace, spread) not in self._counts for spread in spreads)
        full = max(len(self._counts) + new, len(self._fitting) + len(spreads)) > MAX_KINDS
        return f"more than {MAX_KINDS} different topology spread constraints" if new and full else ""

    def served(self, pod: Pod, request: Request, spread: Spread) -> Request:
        """The request as it may be served now; counts the pod where it will be."""
        if self._placed is None:
            # most fleets have nobody who spreads
            self._placed = [one for one in self._everyone if one.placement is not None and one.phase is not Phase.DONE]
            fresh = [(pool.template, True) for pool in self._pools if pool.max_nodes > 0]
            self._blanks = fresh + [(one, False) for one in self._nodes]
        key = (pod.namespace, spread)
        if key not in self._counts:
            self._counts[key] = _count(self._placed, pod.namespace, spread, self._nodes)
        kind = needs_of(request)
        if kind not in self._fitting:
            self._fitting[kind] = [each for each in self._blanks if not find_barrier(kind, each[0])]
        return _spread(request, spread, self._counts[key], self._fitting[kind], counts_itself=_selects(spread, pod))


def _selects(spread: Spread, pod: Pod) -> bool:
    return all(pod.labels.get(key) == value for key, value in spread.labels)


def _count(placed: Iterable[Pod], namespace: str, spread: Spread, nodes: Iterable[Node]) -> Counter[str]:
    """Pods that the constraint counts, by domain."""
    domain = {node.name: node.labels.get(spread.key, "") for node in nodes}
    found: Counter[str] = Counter()
    for pod in placed:
        if pod.placement is not None and pod.namespace == namespace and not pod.deleting and _selects(spread, pod):
            found[domain.get(pod.placement.node, "")] += 1
    return found


def _spread(
    request: Request, spread: Spread, count: Counter[str], fitting: list[tuple[Node, bool]], *, counts_itself: bool
) -> Request:
    if spread.key == HOSTNAME:
        # a node that can still be bought is a host without any such pod
        least = 0 if any(fresh for _, fresh in fitting) else min((count[_host(node)] for node, _ in fitting), default=0)
        full = tuple(
            sorted(node.name for node, fresh in fitting if not fresh and count[_host(node)] + 1 - least > spread.skew)
        )
        return _needing(request, Requirement(NAME_FIELD, "NotIn", full)) if full else request
    domains = sorted({node.labels[spread.key] for node, _ in fitting if spread.key in node.labels})
    if not domains:
        return _needing(request, Requirement(spread.key, "Exists"))
    least = min(count[domain] for domain in domains)
    chosen = next(domain for domain in domains if count[domain] == least)
    count[chosen] += counts_itself
    return _needing(request, Requirement(spread.key, "In", (chosen,)))


def _host(node: Node) -> str:
    return node.labels.get(HOSTNAME, "")


def _needing(request: Request, need: Requirement) -> Request:
    rules = request.rules
    terms = tuple((*term, need) for term in rules.terms) or ((need,),)
    return replace(request, rules=rules._replace(terms=terms))
