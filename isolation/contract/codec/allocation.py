# SPDX-License-Identifier: Apache-2.0
"""
The record of an allocation on a pod: ours, and the vendor's.

Decides how a placement is written down and what of a written record can be believed; whether
the pod may hold it is decided elsewhere. A record is untrusted until read here.

`gpushare.dev/allocation`, version 1. `cards` is what is taken off each card for the pod as a
whole; `containers` is what each container may use of which card; bytes, and percent of a card:
    {"version": 1, "promise": "<pod uid>",
     "cards": [{"uuid": "GPU-...", "index": 0, "bytes": 2147483648, "core": 0}],
     "containers": [{"name": "main", "cards": [{"uuid": "GPU-...", "bytes": 2147483648, "core": 0}]}],
     "compute": {"policy": "burst", "online": true, "weight": 0, "ceiling": 80},
     "trust": {"group": "ml", "uid": 1000}}
Without `compute` the policy is fixed; readers that do not know it go by that. `trust`, where the pod's is known: beside
whom it may be under MPS.

A pod that was resized has besides, per card: what its spec requests (and the kubelet counts), and what it is to have:
    "resize": {"generation": 3, "requested": {"bytes": ..., "core": ...}, "target": {"bytes": ..., "core": ...}}
`cards` stays what is booked: never less than `target`, and more until the node says that the smaller limits are in
force. `containers` is what is to be in force; together less than `target` where room is reserved for the pod. A reader
that does not know `resize` goes by the same amounts.

ACK's record: {"<index in spec.containers>": {"<card index>": <units>}}.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from isolation.contract.codec.cursor import LARGEST, At, CodecError, decoded, is_label_name, show
from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.model import (
    FULL_CORE,
    MAX_UID,
    MAX_WEIGHT,
    Compute,
    ComputePolicy,
    Part,
    Resize,
    Slice,
    Trust,
    parts_of,
)
from isolation.contract.names import CLASSIC_CARD, CLASSIC_UNITS
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.model import Placement, Request

ALLOCATION_VERSION: Final = 1
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,3}")
_UNITS: Final = re.compile(r"[1-9][0-9]{0,12}")
_COMPUTE: Final = Compute()
_LONGEST_GROUP: Final = 253


@dataclass(frozen=True, slots=True)
class Allocation:
    """A record as read: the pod's slices, and each container's parts of them."""

    promise: str
    slices: tuple[Slice, ...]
    parts: tuple[Part, ...]
    compute: Compute = _COMPUTE
    resize: Resize | None = None
    requested: tuple[int, int] = (0, 0)
    """Of a resized pod, bytes and percent of each card by its spec."""
    trust: Trust | None = None


def encode_allocation(
    promise: str,
    request: Request,
    placement: Placement,
    policy: ComputePolicy = ComputePolicy.FIXED,
    *,
    resize: Resize | None = None,
) -> str:
    """
    Our record of where a pod was placed, and how its compute is shared there (`policy` is the node's).

    Of a resized pod `request` is its spec's and `placement` what is booked; `resize` has what is to be in force.
    """
    containers = [
        {
            "name": part.container,
            "cards": [{"uuid": s.uuid, "bytes": s.bytes, "core": s.core} for s in part.slices],
        }
        for part in (parts_of(request, placement) if resize is None else resize.parts)
    ]
    cards = [{"uuid": s.uuid, "index": s.index, "bytes": s.bytes, "core": s.core} for s in placement.slices]
    record = {"version": ALLOCATION_VERSION, "promise": promise, "cards": cards, "containers": containers}
    compute = replace(request.compute, policy=policy)
    if compute != _COMPUTE:
        record["compute"] = asdict(compute)
    if request.trust is not None:
        record["trust"] = asdict(request.trust)
    if resize is not None:
        record["resize"] = {
            "generation": resize.generation,
            "requested": {"bytes": request.card_bytes, "core": request.card_core},
            "target": {"bytes": resize.card_bytes, "core": resize.card_core},
        }
    return json.dumps(record, separators=(",", ":"))


_BYTES = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
_CORE = Annotated[int, msgspec.Meta(ge=0, le=FULL_CORE)]
_TEXT = Annotated[str, msgspec.Meta(min_length=1)]


class _SliceShape(msgspec.Struct):
    uuid: _TEXT
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)]
    bytes: _BYTES
    core: _CORE


class _PartShape(msgspec.Struct):
    uuid: str
    bytes: _BYTES
    core: _CORE


class _ContainerShape(msgspec.Struct):
    name: str
    cards: list[_PartShape]


class _ComputeShape(msgspec.Struct):
    policy: ComputePolicy
    online: bool
    weight: Annotated[int, msgspec.Meta(ge=0, le=MAX_WEIGHT)]
    ceiling: _CORE


class _AmountShape(msgspec.Struct):
    bytes: _BYTES
    core: _CORE


class _ResizeShape(msgspec.Struct):
    generation: Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]
    requested: _AmountShape
    target: _AmountShape


class _TrustShape(msgspec.Struct):
    group: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_GROUP)]
    uid: Annotated[int, msgspec.Meta(ge=0, le=MAX_UID)]


class _AllocationShape(msgspec.Struct):
    version: int
    promise: _TEXT
    cards: Annotated[list[_SliceShape], msgspec.Meta(min_length=1, max_length=MAX_CARDS)]
    containers: list[_ContainerShape]
    compute: _ComputeShape | None = None
    resize: _ResizeShape | None = None
    trust: _TrustShape | None = None


_ALLOCATION_DECODER: Final = msgspec.json.Decoder(_AllocationShape)


def decode_allocation(text: str) -> Allocation:
    """Our record; raises CodecError for text that is not one."""
    # Every pod of a cluster has one, nearly all written by encode_allocation: those are decoded in one step.
    try:
        shape = _ALLOCATION_DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _allocation_at(decoded(text))
    slices = {card.uuid: Slice(card.uuid, card.index, card.bytes, card.core) for card in shape.cards}
    unique = len(slices) == len({card.index for card in shape.cards}) == len(shape.cards)
    if shape.version != ALLOCATION_VERSION or not unique:
        return _allocation_at(decoded(text))
    parts = []
    for container in shape.containers:
        for part in container.cards:
            whole = slices.get(part.uuid)
            if whole is None or part.bytes > whole.bytes or part.core > whole.core:
                return _allocation_at(decoded(text))
        if not is_label_name(container.name):
            return _allocation_at(decoded(text))
        cards = [Slice(part.uuid, slices[part.uuid].index, part.bytes, part.core) for part in container.cards]
        parts.append(Part(container.name, tuple(cards)))
    how = shape.compute
    compute = _COMPUTE if how is None else Compute(how.policy, how.online, how.weight, how.ceiling)
    trust = None if shape.trust is None else Trust(shape.trust.group, shape.trust.uid)
    if shape.resize is None:
        return Allocation(shape.promise, tuple(slices.values()), tuple(parts), compute, trust=trust)
    said = shape.resize
    if any(card.bytes < said.target.bytes or card.core < said.target.core for card in shape.cards):
        return _allocation_at(decoded(text))
    change = Resize(said.generation, said.target.bytes, said.target.core, tuple(parts))
    requested = (said.requested.bytes, said.requested.core)
    return Allocation(shape.promise, tuple(slices.values()), change.parts, compute, change, requested, trust)


def _allocation_at(at: At) -> Allocation:
    """The same, field by field: defaults for what is absent, and an error that names the field."""
    if at["version"].integer(0) != ALLOCATION_VERSION:
        raise at["version"].wrong(
            f"{show(at['version'].value)} is not a supported version; expected {ALLOCATION_VERSION}"
        )
    promise = at.text_at("promise")
    if not promise:
        raise at["promise"].wrong("the pod UID is missing")
    slices = slices_of(at["cards"])
    whole = {part.uuid: part for part in slices}
    parts = tuple(
        Part(item["name"].label_name(), tuple(_part(card, whole) for card in item["cards"].items()))
        for item in at["containers"].items()
    )
    found = Allocation(promise, slices, parts, _compute(at["compute"]), trust=_trust(at["trust"]))
    return found if not at["resize"] else _resized(found, at["resize"])


def _resized(found: Allocation, at: At) -> Allocation:
    """The record with its resize; CodecError where more is promised than is booked."""
    target, requested = (
        (at[name]["bytes"].integer(-1, 0, LARGEST - 1), at[name]["core"].integer(-1, 0, FULL_CORE))
        for name in ("target", "requested")
    )
    generation = at["generation"].integer(0, 1, LARGEST - 1)
    if not generation or min(*target, *requested) < 0:
        raise at.wrong("a resize needs generation, requested and target")
    if any(card.bytes < target[0] or card.core < target[1] for card in found.slices):
        raise at["target"].wrong("the target is more than is booked")
    return replace(found, resize=Resize(generation, *target, found.parts), requested=requested)


def _compute(at: At) -> Compute:
    if not at:
        return _COMPUTE
    policy = at.text_at("policy", ComputePolicy.FIXED.value)
    if policy not in frozenset(ComputePolicy):
        raise at["policy"].wrong(f"{show(policy)} is not one of {', '.join(ComputePolicy)}")
    online = at["online"]
    return Compute(
        ComputePolicy(policy),
        online.flag() if online else True,
        at["weight"].integer(0, 0, MAX_WEIGHT),
        at["ceiling"].integer(0, 0, FULL_CORE),
    )


def _trust(at: At) -> Trust | None:
    if not at:
        return None
    group, uid = at.text_at("group"), at["uid"].integer(-1, 0, MAX_UID)
    if not group or len(group) > _LONGEST_GROUP or uid < 0:
        raise at.wrong("expected a group and a user")
    return Trust(group, uid)


def slices_of(cards: At, *, named: bool = True) -> tuple[Slice, ...]:
    """Cards of a record, each once; raises CodecError. `named`: by UUID, else by position only."""
    slices = tuple(_slice(item, named=named) for item in cards.items())
    if not 1 <= len(slices) <= MAX_CARDS:
        raise cards.wrong(f"expected 1 to {MAX_CARDS} cards, not {len(slices)}")
    if (named and len({s.uuid for s in slices}) != len(slices)) or len({s.index for s in slices}) != len(slices):
        raise cards.wrong("a card is listed twice")
    return slices


def encode_vendor(request: Request, placement: Placement, containers: Sequence[str], *, unit_bytes: int = GIB) -> str:
    """ACK's record; `containers` are the names in `spec.containers`, init containers have no place in it."""
    asks = {ask.container: ask for ask in request.asks if not ask.whole}
    count = max(1, len(placement.slices))
    record = {
        str(i): {str(s.index): asks[name].bytes // count // unit_bytes for s in placement.slices}
        for i, name in enumerate(containers)
        if name in asks
    }
    return json.dumps(record, separators=(",", ":"))


def decode_vendor(text: str, uuids: Mapping[int, str], node: str, *, unit_bytes: int = GIB) -> tuple[Slice, ...]:
    """Slices by ACK's record; a card that `uuids` does not name gets the node's name and its index."""
    taken: dict[int, int] = {}
    for container, cards in decoded(text).fields():
        if not _INDEX.fullmatch(container):
            raise cards.wrong(f"{show(container)} is not a container index")
        for card, units in cards.fields():
            if not _INDEX.fullmatch(card) or int(card) >= MAX_CARDS:
                raise units.wrong(f"{show(card)} is not a card index")
            taken[int(card)] = taken.get(int(card), 0) + units.integer(0, 0, (LARGEST - 1) // unit_bytes)
    if not taken:
        raise CodecError((), "the allocation record lists no card")
    if max(taken.values()) * unit_bytes >= LARGEST:
        raise CodecError((), "the allocation record has more memory on one card than any card has")
    return tuple(
        Slice(uuids.get(index) or f"{node}/{index}", index, taken[index] * unit_bytes) for index in sorted(taken)
    )


def decode_classic(
    annotations: Mapping[str, str], uuids: Mapping[int, str], node: str, *, unit_bytes: int = GIB
) -> tuple[Slice, ...]:
    """
    The one slice by the annotations of the classic gpushare-scheduler-extender; CodecError where they make no sense.

    Source: AliyunContainerService/gpushare-scheduler-extender, pkg/utils/const.go and pkg/utils/pod.go.
    """
    card, units = annotations.get(CLASSIC_CARD, ""), annotations.get(CLASSIC_UNITS, "")
    if not _INDEX.fullmatch(card) or int(card) >= MAX_CARDS:
        raise CodecError((), f"{CLASSIC_CARD} is {show(card)}, which is not a card index")
    if not _UNITS.fullmatch(units) or int(units) * unit_bytes >= LARGEST:
        raise CodecError((), f"{CLASSIC_UNITS} is {show(units)}, which is not a number of units")
    return (Slice(uuids.get(int(card)) or f"{node}/{card}", int(card), int(units) * unit_bytes),)


def _part(item: At, whole: Mapping[str, Slice]) -> Slice:
    """A container's part of a card that the record names, no more than the pod has of it."""
    card = whole.get(item.text_at("uuid"))
    if card is None:
        raise item["uuid"].wrong(f"{show(item['uuid'].value)} is not a card of the allocation record")
    return Slice(card.uuid, card.index, item["bytes"].integer(0, 0, card.bytes), item["core"].integer(0, 0, card.core))


def _slice(item: At, *, named: bool) -> Slice:
    uuid, index = item.text_at("uuid") if named else "", item["index"]
    if (named and not uuid) or not index:
        raise item.wrong("a card needs uuid and index" if named else "a card needs an index")
    return Slice(
        uuid=uuid,
        index=index.integer(0, 0, MAX_CARDS - 1),
        bytes=item["bytes"].integer(0, 0, LARGEST - 1),
        core=item["core"].integer(0, 0, FULL_CORE),
    )
