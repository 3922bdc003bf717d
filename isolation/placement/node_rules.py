# SPDX-License-Identifier: Apache-2.0
"""
Which nodes a pod may use at all, whatever is free: selectors, taints, readiness, sharing mode.

Kubernetes' own semantics for selectors, taints and readiness, plus the modes of the sharing
dialect. Pure; answers are sentences for people, `None` means nothing stands in the way.

Source: Kubernetes documentation, "Assigning Pods to Nodes" and "Taints and Tolerations".
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.contract.model import (
    FULL_CORE,
    MANY_INSTANCES,
    NAME_FIELD,
    SHARES_OF_INSTANCE,
    CardRules,
    ComputePolicy,
    Mode,
    Placement,
    Rules,
    Slice,
    Taint,
    Why,
)
from isolation.contract.names import ACK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from isolation.contract.model import Card, Node, Request, Requirement, Toleration, Trust


class RequestKind(IntEnum):
    """What a pod requests of cards; decides the node modes that can serve it."""

    NOTHING = 0
    MEMORY = 1
    COMPUTE = 2
    WHOLE = 3
    OFFLINE = 4
    """Memory, and whatever compute online pods leave."""


MODES: Final = MappingProxyType(
    {
        RequestKind.MEMORY: frozenset({Mode.SHARE, Mode.CGPU}),
        # ACK: jobs with and without a compute share may not meet on a node, unless its policy holds them apart
        RequestKind.COMPUTE: frozenset({Mode.CORE_MEM}),
        RequestKind.WHOLE: frozenset({Mode.EXCLUSIVE}),
        RequestKind.OFFLINE: frozenset({Mode.CGPU, Mode.CORE_MEM}),
    }
)
"""Modes that serve each kind, whatever the node's compute policy; mode mps serves those that select it, besides."""
MIXING: Final = frozenset({ComputePolicy.WEIGHT, ComputePolicy.PRIORITY})
"""Policies that limit pods without a guarantee too, so that these may be beside pods that have one."""
UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable")
_LIMITED: Final = frozenset({RequestKind.COMPUTE, RequestKind.OFFLINE})
"""Kinds that need somebody who limits compute."""
ONE_CARD: Final = "a process has one MPS server, which has one card: request one card"
NO_USER: Final = (
    "containers with shares must set securityContext.runAsUser, all of them the same: an MPS server serves one user"
)
_WANTS: Final = MappingProxyType(
    {
        RequestKind.MEMORY: "memory shares",
        RequestKind.COMPUTE: "memory and compute shares",
        RequestKind.WHOLE: "whole cards",
        RequestKind.OFFLINE: "offline pods",
    }
)


def kind_of(request: Request) -> RequestKind:
    """What the request asks of cards."""
    if request.cards == 0:
        return RequestKind.NOTHING
    if request.whole:
        return RequestKind.WHOLE
    if not request.compute.online:
        return RequestKind.OFFLINE
    return RequestKind.COMPUTE if request.card_core else RequestKind.MEMORY


class Needs(NamedTuple):
    """What a request asks of nodes, whatever is free: requests that need the same share one answer."""

    kind: RequestKind
    rules: Rules
    several: bool = False
    """More cards than one, parts of cards."""
    trust: Trust | None = None
    """Beside whom it may be under MPS; None: it does not select such nodes, or does not say its user."""

    @property
    def undivided(self) -> str:
        """Why it cannot use MIG instances; empty: it can."""
        if self.several:
            return MANY_INSTANCES
        return SHARES_OF_INSTANCE if self.kind in _LIMITED else ""

    @property
    def choosy(self) -> bool:
        """Whether it may be kept from some cards of a node that has others for it."""
        return bool(self.rules.cards) or self.several or self.kind in _LIMITED or self.kind is RequestKind.WHOLE

    def without_card_rules(self) -> Needs:
        """The same with any card, whoever asks."""
        return self._replace(rules=self.rules._replace(cards=CardRules()), trust=None)

    def allow(self, card: Card) -> bool:
        """Whether it may use this card."""
        if self.rules.cards and not self.rules.cards.allow(card):
            return False
        if self.kind is RequestKind.WHOLE:
            return self.rules.cards.profile == (card.instance.profile if card.instance is not None else "")
        return card.instance is None or not (self.several or self.kind in _LIMITED)


def needs_of(request: Request) -> Needs:
    """What the request asks of nodes."""
    trust = request.trust if request.rules.mps else None
    return Needs(kind_of(request), request.rules, request.cards > 1 and not request.whole, trust)


def serves(kind: RequestKind, mode: Mode, policy: ComputePolicy) -> bool:
    """Whether a node of this mode and policy takes such pods."""
    if mode is Mode.MPS:
        return kind in {RequestKind.MEMORY, RequestKind.COMPUTE}
    if kind is RequestKind.MEMORY and mode is Mode.CORE_MEM:
        return policy in MIXING
    return mode in MODES[kind] and (kind is not RequestKind.OFFLINE or policy is ComputePolicy.PRIORITY)


def find_barrier(needs: Needs, node: Node) -> tuple[Why, str] | None:
    """Why the node is excluded for such a pod, or None."""
    kind, rules = needs.kind, needs.rules
    if kind is not RequestKind.NOTHING and (barrier := _find_mode_barrier(needs, node)) is not None:
        return barrier
    if not node.ready:
        return Why.NOT_READY, "the node or its node agent is not ready"
    if node.cordoned and not _tolerated(UNSCHEDULABLE, rules.tolerations):
        return Why.NOT_READY, "cordoned"
    if kind is not RequestKind.NOTHING and (barrier := _find_card_barrier(needs, node)) is not None:
        return barrier
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not _tolerated(taint, rules.tolerations):
            return Why.RULES, f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    if rules.terms and not any(all(meets_requirement(need, node) for need in term) for term in rules.terms):
        return Why.RULES, "labels do not match the pod's node selector or affinity"
    return None


def _find_mode_barrier(needs: Needs, node: Node) -> tuple[Why, str] | None:
    """Why the node's mode does not serve the pod."""
    kind = needs.kind
    if needs.rules.mps and node.mode is not Mode.MPS:
        return Why.MODE, f"mode is {node.mode.value}, but the pod selects nodes in mode mps"
    if not serves(kind, node.mode, node.policy):
        if node.mode in MODES[kind]:
            needed = ComputePolicy.PRIORITY.value
            return Why.MODE, f"compute policy is {node.policy.value}, but {_WANTS[kind]} need {needed}"
        modes = " or ".join(sorted(mode.value for mode in MODES[kind]))
        return Why.MODE, f"mode is {node.mode.value}, but {_WANTS[kind]} need {modes}"
    return _find_mps_barrier(needs) if node.mode is Mode.MPS else None


def _find_mps_barrier(needs: Needs) -> tuple[Why, str] | None:
    if not needs.rules.mps:
        return Why.MODE, f"mode is mps, for pods that select {ACK.mode_label}=mps"
    if needs.several:
        return Why.MODE, f"mode is mps: {ONE_CARD}"
    if needs.trust is None:
        return Why.TRUST, NO_USER
    return None


def _find_card_barrier(needs: Needs, node: Node) -> tuple[Why, str] | None:
    """Why the pod may use none of the node's cards."""
    rules = needs.rules
    if rules.models and not {card.model for card in node.cards} <= rules.models:
        models = ", ".join(sorted({card.model or "unknown" for card in node.cards}))
        return Why.RULES, f"card model {models} is not one of {', '.join(sorted(rules.models))}"
    if rules.cards and not any(map(rules.cards.allow, node.cards)):
        if rules.cards.profile:
            return Why.INSTANCES, f"no card is a MIG instance of profile {rules.cards.profile}"
        return Why.RULES, "no card is one of those that the pod's annotations allow"
    if needs.undivided and node.cards and all(card.instance is not None for card in node.cards):
        return Why.INSTANCES, f"all its cards are MIG instances: {needs.undivided}"
    return None


def could_host(request: Request, fresh: Node) -> bool:
    """Whether an empty node has the cards for a pod that the pod's rules let it go to; CPU and memory are not asked."""
    needs = needs_of(request)
    cards = [card for card in fresh.cards if needs.allow(card)] if needs.choosy else fresh.cards
    large = sum(request.whole or card.allocatable_bytes >= request.card_bytes for card in cards)
    return large >= request.cards and find_barrier(needs, fresh) is None


def whole_cards(request: Request, node: Node, taken: Collection[str]) -> Placement:
    """
    The first cards of the node that a pod with whole cards, or whole MIG instances, may have beside those `taken`.

    Which ones it has only its kubelet knows; counted like this, the node has as many left as it has.
    """
    needs = needs_of(request)
    free = [card for card in node.cards if card.uuid not in taken and needs.allow(card)][: request.cards]
    return Placement(node.name, tuple(Slice(card.uuid, card.index, card.allocatable_bytes, FULL_CORE) for card in free))


def ours_of(request: Request, pools: Iterable[tuple[Node, Ours]]) -> Ours:
    """What gpushare does for a pod that waits: all that it does for any pool whose fresh node could host it."""
    hosts = [ours for fresh, ours in pools if could_host(request, fresh)]
    return Ours(any(each.buys for each in hosts), any(each.drains for each in hosts))


def _tolerated(taint: Taint, tolerations: frozenset[Toleration]) -> bool:
    return any(
        (not t.effect or t.effect == taint.effect)
        and (t.key == taint.key or (t.exists and not t.key))
        and (t.exists or t.value == taint.value)
        for t in tolerations
    )


def meets_requirement(need: Requirement, node: Node) -> bool:
    """Whether the node meets one requirement; an operator Kubernetes does not know is never met."""
    value = node.name if need.key == NAME_FIELD else node.labels.get(need.key)
    match need.op:
        case "In":
            return value is not None and value in need.values
        case "NotIn":
            return value is None or value not in need.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            have, bound = _integer(value), _integer(need.values[0] if len(need.values) == 1 else None)
            if have is None or bound is None:
                return False
            return have > bound if need.op == "Gt" else have < bound
    return False


def _integer(text: str | None) -> int | None:
    digits = text.removeprefix("-") if text is not None else ""
    # int() takes "1_0" and non-ASCII digits; Kubernetes' strconv.ParseInt does not
    return int(text) if text is not None and digits.isascii() and digits.isdigit() and len(digits) < 20 else None  # noqa: PLR2004 (64-bit integers have at most 19 digits)
