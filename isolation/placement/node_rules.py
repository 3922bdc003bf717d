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
from typing import TYPE_CHECKING, Final

from isolation.contract.handover import Ours
from isolation.contract.model import NAME_FIELD, ComputePolicy, Mode, Taint, Why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.model import Node, Request, Requirement, Rules, Toleration


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
"""Modes that serve each kind, whatever the node's compute policy."""
MIXING: Final = frozenset({ComputePolicy.WEIGHT, ComputePolicy.PRIORITY})
"""Policies that limit pods without a guarantee too, so that these may be beside pods that have one."""
UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable")
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


def serves(kind: RequestKind, mode: Mode, policy: ComputePolicy) -> bool:
    """Whether a node of this mode and policy takes such pods."""
    if kind is RequestKind.MEMORY and mode is Mode.CORE_MEM:
        return policy in MIXING
    return mode in MODES[kind] and (kind is not RequestKind.OFFLINE or policy is ComputePolicy.PRIORITY)


def find_barrier(kind: RequestKind, rules: Rules, node: Node) -> tuple[Why, str] | None:
    """Why the node is excluded for such a pod, or None."""
    if kind is not RequestKind.NOTHING and not serves(kind, node.mode, node.policy):
        if node.mode in MODES[kind]:
            needed = ComputePolicy.PRIORITY.value
            return Why.MODE, f"compute policy is {node.policy.value}, but {_WANTS[kind]} need {needed}"
        modes = " or ".join(sorted(mode.value for mode in MODES[kind]))
        return Why.MODE, f"mode is {node.mode.value}, but {_WANTS[kind]} need {modes}"
    if not node.ready:
        return Why.NOT_READY, "not ready"
    if node.cordoned and not _tolerated(UNSCHEDULABLE, rules.tolerations):
        return Why.NOT_READY, "cordoned"
    if kind is not RequestKind.NOTHING and rules.models and not {card.model for card in node.cards} <= rules.models:
        models = ", ".join(sorted({card.model or "unknown" for card in node.cards}))
        return Why.RULES, f"card model {models} is not one of {', '.join(sorted(rules.models))}"
    if kind is not RequestKind.NOTHING and rules.cards and not any(map(rules.cards.allow, node.cards)):
        return Why.RULES, "no card is one of those that the pod's annotations allow"
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not _tolerated(taint, rules.tolerations):
            return Why.RULES, f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    if rules.terms and not any(all(meets_requirement(need, node) for need in term) for term in rules.terms):
        return Why.RULES, "labels do not match the pod's node selector or affinity"
    return None


def could_host(request: Request, fresh: Node) -> bool:
    """Whether an empty node has the cards for a pod that the pod's rules let it go to; CPU and memory are not asked."""
    cards = [card for card in fresh.cards if request.rules.cards.allow(card)] if request.rules.cards else fresh.cards
    large = sum(request.whole or card.allocatable_bytes >= request.card_bytes for card in cards)
    return large >= request.cards and find_barrier(kind_of(request), request.rules, fresh) is None


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
