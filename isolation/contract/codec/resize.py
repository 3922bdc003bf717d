# SPDX-License-Identifier: Apache-2.0
"""
Live resize in Kubernetes' JSON: what is wanted of a running pod, what became of it, what its node has put in force.

Decides what a wanted amount may be; whether there is room for it is decided elsewhere. Conditions and reasons are those
of Kubernetes' own in-place resize (KEP-1287), which knows CPU and memory only.

`gpushare.dev/resize` on a pod, amounts over all its cards in units of the cluster; containers that are not named stay:
    {"main": {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 30}}
with an entry that no container can have, what stays booked for the pod beyond that:
    {"main": {"aliyun.com/gpu-mem": 4}, "gpushare.dev/reserved": {"aliyun.com/gpu-mem": 8}}
`gpushare.dev/resize-status` on the pod, none where nothing is pending:
    {"type": "PodResizePending", "reason": "Deferred", "message": "...", "wanted": {"main": {...}}}
`gpushare.dev/resized` on a node, by pod UID, of pods that were resized: which change of the record is in force, and why
the latest one is not yet:
    {"<pod uid>": {"generation": 3, "message": ""}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.cursor import LARGEST, CodecError, decoded, show
from isolation.contract.model import FULL_CORE, Applied, Part, Refusal, Slice, Why
from isolation.contract.names import ACK, CORE_STEPS, GROUP
from isolation.contract.quantity import GIB, show_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.model import Ask, Request
    from isolation.contract.names import Dialect

RESERVED: Final = f"{GROUP}/reserved"
"""In place of a container: memory over all cards that stays booked for the pod, whatever its containers have."""
MAX_CHARS: Final = 4096
"""Of the annotation that asks."""
_MAX_MESSAGE: Final = 512
_MAX_PODS: Final = 4096
"""Of one node."""


class ResizeCondition(StrEnum):
    """Kubernetes' conditions of a resize."""

    PENDING = "PodResizePending"
    """The promise is as it was."""
    IN_PROGRESS = "PodResizeInProgress"
    """It is booked, and not in force yet."""


class ResizeReason(StrEnum):
    """Kubernetes' reasons of `ResizeCondition.PENDING`; of the other one, `ERROR` or none."""

    NONE = ""
    DEFERRED = "Deferred"
    """Not now: it is tried again."""
    INFEASIBLE = "Infeasible"
    """Never on this node, or not an amount at all."""
    ERROR = "Error"
    """The node tries again; the message says what is in the way."""


@dataclass(frozen=True, slots=True)
class ResizeStatus:
    """What became of what is wanted."""

    condition: ResizeCondition
    reason: ResizeReason
    message: str
    wanted: str
    """The annotation that this is about, as it was written."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a pod is to have: of each card as a whole, and by container."""

    card_bytes: int
    """What stays booked of each card: what the containers have together, or what is reserved if that is more."""
    card_core: int
    asks: tuple[Ask, ...]

    def parts(self, slices: Sequence[Slice]) -> tuple[Part, ...]:
        """The containers' parts of these cards."""
        count = max(1, len(slices))
        return tuple(
            Part(a.container, tuple(Slice(s.uuid, s.index, a.bytes // count, a.core // count) for s in slices))
            for a in self.asks
        )


def encode_wanted(amounts: Mapping[str, Mapping[str, int]]) -> str:
    """The annotation that asks for these amounts, by container (or `RESERVED`) and resource."""
    return json.dumps(amounts, separators=(",", ":"))


def encode_wanted_memory(container: str, card_bytes: int, reserved_bytes: int, cards: int, unit_bytes: int) -> str:
    """The annotation for the memory of one container, by card. `reserved_bytes`: for the pod as a whole; 0: nothing."""
    amounts = {container: {ACK.memory: cards * card_bytes // unit_bytes}}
    if reserved_bytes:
        amounts[RESERVED] = {ACK.memory: cards * reserved_bytes // unit_bytes}
    return encode_wanted(amounts)


def reserved_units(wanted: str, *, dialect: Dialect = ACK) -> int:
    """What an annotation keeps booked over all cards, in units of the cluster; 0: nothing, or it cannot be read."""
    try:
        return decoded(wanted)[RESERVED][dialect.memory].integer(0, 0, LARGEST - 1) if wanted else 0
    except CodecError:
        return 0


def target_of(
    wanted: str, request: Request, now: Sequence[Part], *, dialect: Dialect = ACK, unit_bytes: int = GIB
) -> Target | Refusal:
    """
    What the pod is to have; a Refusal says what is wrong with the annotation.

    `request` is that of the pod's spec, `now` what its containers have.
    """
    if len(wanted) > MAX_CHARS:
        return Refusal(Why.INVALID, f"the annotation has more than {MAX_CHARS} characters")
    try:
        said = {name: at.fields() for name, at in decoded(wanted).fields()}
        return _target(said, request, now, dialect, unit_bytes)
    except CodecError as exc:
        return Refusal(Why.INVALID, str(exc))


def _target(
    said: Mapping[str, Any], request: Request, now: Sequence[Part], dialect: Dialect, unit_bytes: int
) -> Target | Refusal:
    have = {part.container: part.slices for part in now}
    known = {ask.container for ask in request.asks if ask.container in have}
    said = dict(said)
    reserved = {resource: at.integer(0, 0, LARGEST - 1) for resource, at in said.pop(RESERVED, ())}
    kept = reserved.pop(dialect.memory, 0) * unit_bytes
    if reserved or kept % (max(1, request.cards) * unit_bytes):
        only = f"only {dialect.memory}, a multiple of {request.cards}"
        return Refusal(Why.INVALID, f"{RESERVED} has {only}")
    if not said:
        return Refusal(Why.INVALID, "the annotation names no container")
    for name in said:
        if name not in known:
            return Refusal(Why.INVALID, f"the pod has no container {show(name)} that requests {dialect.memory}")
    asks = []
    for ask in request.asks:
        slices = have.get(ask.container, ())
        amounts = {resource: at.integer(0, 0, LARGEST - 1) for resource, at in said.get(ask.container, ())}
        memory = amounts.pop(dialect.memory, sum(s.bytes for s in slices) // unit_bytes) * unit_bytes
        core = amounts.pop(dialect.compute, sum(s.core for s in slices))
        if amounts:
            only = f"only {dialect.memory} and {dialect.compute}"
            return Refusal(Why.INVALID, f"{show(min(amounts))} cannot be resized; {only}")
        held = replace(ask, bytes=memory, core=core)
        if why := _problem(held, ask, request.cards, dialect, unit_bytes):
            return Refusal(Why.INVALID, f"container {show(ask.container)}: {why}")
        asks.append(held)
    each, share = (_peak(asks, part) // request.cards for part in ("bytes", "core"))
    each = max(each, kept // request.cards)
    if share > FULL_CORE or each >= LARGEST:
        return Refusal(Why.INVALID, "the containers together would have more than any card has")
    return Target(each, share, tuple(asks))


def _problem(ask: Ask, before: Ask, cards: int, dialect: Dialect, unit_bytes: int) -> str:
    """Why a container cannot have that much; empty: it can."""
    if ask.bytes <= 0 or ask.bytes % (cards * unit_bytes):
        return f"{dialect.memory} must be {cards} or a multiple of it, in units of {show_bytes(unit_bytes)}"
    if bool(ask.core) != bool(before.core):
        return f"{dialect.compute} cannot be added to a running pod, or taken away; recreate the pod"
    fine = before.core % (cards * CORE_STEPS[ACK.name]) != 0
    step = cards * (1 if fine else CORE_STEPS[ACK.name])
    if ask.core % step or ask.core > cards * FULL_CORE:
        return f"{dialect.compute} must be a multiple of {step}, and at most {cards * FULL_CORE}"
    return ""


def _peak(asks: Sequence[Ask], part: str) -> int:
    """Kubernetes' effective request: as `codec.amounts.peak`, of what is kept of each container."""
    sidecars = most = running = 0
    for ask in asks:
        amount: int = getattr(ask, part)
        if ask.init:
            most = max(most, sidecars + amount)
        elif ask.position < 0:  # a sidecar
            sidecars += amount
        else:
            running += amount
    return max(running + sidecars, most)


def encode_status(status: ResizeStatus) -> str:
    """The annotation `gpushare.dev/resize-status`."""
    try:
        wanted = json.loads(status.wanted)
    except ValueError:
        wanted = status.wanted[:_MAX_MESSAGE]
    said = {
        "type": status.condition.value,
        "reason": status.reason.value,
        "message": status.message[:_MAX_MESSAGE],
        "wanted": wanted,
    }
    return json.dumps(said, separators=(",", ":"))


def decode_status(text: str) -> ResizeStatus:
    """The annotation as it was read; CodecError."""
    at = decoded(text)
    condition, reason = at.text_at("type"), at.text_at("reason")
    if condition not in frozenset(ResizeCondition):
        raise at["type"].wrong(f"{show(condition)} is not a condition of a resize")
    if reason not in frozenset(ResizeReason):
        raise at["reason"].wrong(f"{show(reason)} is not a reason of a resize")
    wanted = json.dumps(at["wanted"].value, separators=(",", ":"))
    return ResizeStatus(ResizeCondition(condition), ResizeReason(reason), at.text_at("message"), wanted)


def encode_applied(applied: Mapping[str, Applied]) -> str:
    """The annotation `gpushare.dev/resized` of a node."""
    said = {
        uid: {"generation": one.generation, "message": one.message[:_MAX_MESSAGE]}
        for uid, one in sorted(applied.items())
    }
    return json.dumps(said, separators=(",", ":"))


def decode_applied(text: str) -> dict[str, Applied]:
    """The same as it was read; CodecError."""
    found = {
        uid: Applied(at["generation"].integer(0, 0, LARGEST - 1), at.text_at("message"))
        for uid, at in decoded(text).fields()
    }
    if len(found) > _MAX_PODS:
        raise CodecError((), f"more than {_MAX_PODS} pods")
    return found
