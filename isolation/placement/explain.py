# SPDX-License-Identifier: Apache-2.0
"""
Why a pod is refused: the true reason, counted over every node, with what to change.

The code is that of the nodes that came nearest to taking the pod; the sentence counts them all.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.model import FULL_CORE, ComputePolicy, Mode, Refusal, Why
from isolation.contract.names import ACK, COMPUTE_POLICY, UNHEALTHY_CARDS
from isolation.contract.quantity import show_bytes
from isolation.placement.node_rules import MODES, NO_USER, RequestKind, kind_of, needs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Request

NATIVE_WHYS: Final = (
    None,  # GS_NO_GROUP: Groups knows which
    Why.TOO_FEW_CARDS,
    Why.CARD_TOO_SMALL,
    Why.CARDS,
    Why.FRAGMENTED,
    Why.CPU,
    Why.MEMORY,
    Why.PODS,
)
NEAREST: Final = (
    Why.PODS,
    Why.MEMORY,
    Why.CPU,
    Why.FRAGMENTED,
    Why.CARDS,
    Why.CARD_TOO_SMALL,
    Why.TOO_FEW_CARDS,
    Why.TRUST,
    Why.NOT_READY,
    Why.INSTANCES,
    Why.RULES,
    Why.MODE,
)
BARRED: Final = frozenset({Why.TRUST, Why.NOT_READY, Why.INSTANCES, Why.RULES, Why.MODE})
"""Reasons that a node's own state or labels give; an example says which."""
_COUNTED: Final = MappingProxyType(
    {
        Why.PODS: "at their pod limit",
        Why.MEMORY: "short of host memory",
        Why.CPU: "short of CPU",
        Why.FRAGMENTED: "with enough free in total, but not on single cards",
        Why.CARDS: "without enough free on their cards",
        Why.CARD_TOO_SMALL: "without a healthy card that is large enough",
        Why.TOO_FEW_CARDS: "with too few cards",
        Why.TRUST: "whose MPS servers are another group's or user's",
        Why.NOT_READY: "not ready or cordoned",
        Why.INSTANCES: "whose MIG instances cannot serve this request",
        Why.RULES: "excluded by selector, affinity, taint or card model",
        Why.MODE: "in a mode that does not support this request",
    }
)


_ADVICE: Final = MappingProxyType(
    {
        Why.PODS: "Raise the kubelet's maxPods, or add a node.",
        Why.NOT_READY: "Wait for a node and its node agent to become ready, or uncordon one.",
        Why.RULES: "Change the pod's selector, affinity, tolerations or card models, or label a node to match.",
    }
)


class BestAvailable(Protocol):
    """The best there is among the nodes the pod may use (`struct gs_best`)."""

    card_bytes: int
    """What the largest card offers when empty."""
    free_bytes: int
    """Free on the card with the most room."""
    core: int
    cards: int
    untouched: int
    """Empty cards on one node."""
    cpu: int
    memory: int


def nearest_reason(counts: Mapping[Why, int]) -> Why:
    """The reason of the nodes that came nearest to taking the pod."""
    return next((why for why in NEAREST if why in counts), Why.NO_NODES)


def explain_refusal(request: Request, counts: Mapping[Why, int], best: BestAvailable, example: str = "") -> Refusal:
    """Put the counts into words; `example` is a node, and what stands in the way there."""
    why = nearest_reason(counts)
    if why is Why.NO_NODES:
        return Refusal(why, "there are no nodes")
    total = sum(counts.values())
    listed = ", ".join(f"{counts[w]} {_COUNTED[w]}" for w in NEAREST if w in counts)
    shown = f"; {example}" if example else ""
    return Refusal(
        why, f"{describe_request(request)}: 0 of {total} nodes fit ({listed}{shown}). {_advise(why, request, best)}"
    )


def describe_reason(why: Why, request: Request) -> str:
    """What keeps the pod off one node, in a few words; the same for all nodes, so that schedulers can count them."""
    each, cards = show_bytes(request.card_bytes), request.cards
    if request.card_core:
        each += f" and {request.card_core} % compute"
    if request.whole:
        free = "no free card" if cards == 1 else f"fewer than {cards} free cards"
    else:
        free = f"no card with {each} free" if cards == 1 else f"fewer than {cards} cards with {each} free"
    match why:
        case Why.TOO_FEW_CARDS:
            return f"fewer than {cards} cards"
        case Why.CARD_TOO_SMALL:
            few = f"fewer than {cards} healthy cards" if cards > 1 else "no healthy card"
            return f"{few} of {each} or more"
        case Why.CARDS:
            return free
        case Why.FRAGMENTED:
            return f"{free}, though enough in total"
        case Why.NO_NODES:
            return "node is not observed yet"
        case Why.MODE:
            return f"node mode is not {_needed(request)}"
        case Why.INSTANCES | Why.TRUST:
            return _barrier(why, request)
        case _:
            return f"nodes {_COUNTED[why]}"


def describe_request(request: Request) -> str:
    """What the pod asks for, in words."""
    cards = f"{request.cards} card" + ("s" if request.cards > 1 else "")
    if request.whole:
        return f"{request.cards} whole card" + ("s" if request.cards > 1 else "")
    if not request.cards:
        return f"{request.cpu_milli} mCPU and {show_bytes(request.memory_bytes)} of memory"
    each = show_bytes(request.card_bytes) + (f" and {request.card_core} % compute" if request.card_core else "")
    return f"{each} on {cards}" if request.cards == 1 else f"{each} on each of {cards} on one node"


def _advise(why: Why, request: Request, best: BestAvailable) -> str:
    match why:
        case Why.CARD_TOO_SMALL if not best.card_bytes:
            return f"No card of these nodes is healthy: node annotation {UNHEALTHY_CARDS} says why."
        case Why.CARD_TOO_SMALL:
            return (
                f"The largest card offers {show_bytes(best.card_bytes)}: request at most that per card"
                f" (label {ACK.card_count} spreads a pod over several cards), or add larger cards."
            )
        case Why.TOO_FEW_CARDS:
            label = ACK.whole if request.whole else f"label {ACK.card_count}"
            return f"The largest node has {_cards(best.cards)}: lower {label} to at most {best.cards}."
        case Why.CARDS | Why.FRAGMENTED:
            return _advise_on_cards(request, best)
        case Why.CPU:
            return (
                f"The pod requests {request.cpu_milli} mCPU; on nodes where its cards fit, at most {best.cpu} mCPU"
                " are free: request at most that, or add a node."
            )
        case Why.MEMORY:
            return (
                f"The pod requests {show_bytes(request.memory_bytes)} of host memory; on nodes where its cards fit,"
                f" at most {show_bytes(best.memory)} is free: request at most that, or add a node."
            )
        case Why.TRUST if request.uid is not None:
            return f"Cards with pods of {request.trust} alone have no room: delete or move a pod, or add a node."
        case Why.INSTANCES | Why.TRUST:
            text = _barrier(why, request)
            return f"{text[:1].upper()}{text[1:]}."
        case _:
            return (
                _ADVICE.get(why)
                or f"Label a node with cards {ACK.mode_label}={_needed(request)}, or change the request."
            )


def _barrier(why: Why, request: Request) -> str:
    """Why MIG instances, or cards under MPS, cannot serve the request, with what to change."""
    if why is Why.TRUST:
        return NO_USER if request.uid is None else f"nodes {_COUNTED[why]}"
    profile = request.rules.cards.profile
    return f"no card is a MIG instance of profile {profile}" if profile else needs_of(request).undivided


def _needed(request: Request) -> str:
    """The modes that serve the request, and the compute policy where it needs one."""
    kind = kind_of(request)
    if request.rules.mps:
        return Mode.MPS.value
    modes = " or ".join(sorted(mode.value for mode in MODES[kind]))
    return f"{modes} with {COMPUTE_POLICY}={ComputePolicy.PRIORITY}" if kind is RequestKind.OFFLINE else modes


def _advise_on_cards(request: Request, best: BestAvailable) -> str:
    if request.whole:
        return f"No node has more than {_cards(best.untouched)} free: request fewer, or add a node."
    compute = f" and {best.core} % compute" if request.card_core and best.core < FULL_CORE else ""
    room = f"The card with the most free memory has {show_bytes(max(0, best.free_bytes))}{compute} free"
    return f"{room}: request less per card, delete or move a pod, or add a node."


def _cards(number: int) -> str:
    return f"{number} card" + ("" if number == 1 else "s")
