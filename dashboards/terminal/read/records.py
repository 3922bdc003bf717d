# SPDX-License-Identifier: Apache-2.0
"""
Records of cards and allocations, read quickly where they are plain; the codec decides about all others.

Accepts a strict part of what `contract.codec` accepts and says the same of it, which the tests hold against
it: thousands of records are read for one screen. Pure; raises CodecError where the codec does.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from isolation.contract.codec import decode_allocation, decode_cards
from isolation.contract.codec.allocation import ALLOCATION_VERSION
from isolation.contract.codec.cursor import LARGEST
from isolation.contract.codec.node import CARDS_VERSION
from isolation.contract.codec.request import MOST_CARDS
from isolation.contract.model import FULL_CORE, Card, Slice

_Index = Annotated[int, msgspec.Meta(ge=0, lt=MOST_CARDS)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
_Some = Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]
_Core = Annotated[int, msgspec.Meta(ge=0, le=FULL_CORE)]
_Uuid = Annotated[str, msgspec.Meta(min_length=1)]


class _Card(msgspec.Struct):
    uuid: _Uuid
    index: _Index
    total: _Some
    reserved: _Bytes
    unit: _Some
    healthy: bool
    model: str = ""


class _Cards(msgspec.Struct):
    version: int
    cards: list[_Card]


class _Slice(msgspec.Struct):
    uuid: _Uuid
    index: _Index
    bytes: _Bytes
    core: _Core


class _Part(msgspec.Struct):
    """A container's part; whether it is within the record is the codec's to say, unless it is the whole of one card."""

    uuid: str
    bytes: _Bytes
    core: _Core


class _Container(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    cards: list[_Part]


class _Allocation(msgspec.Struct):
    version: int
    promise: _Uuid
    cards: Annotated[list[_Slice], msgspec.Meta(min_length=1, max_length=MOST_CARDS)]
    containers: list[_Container]


_CARDS: Final = msgspec.json.Decoder(_Cards)
_ALLOCATION: Final = msgspec.json.Decoder(_Allocation)
_NOT_PLAIN: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


def cards_in(text: str) -> tuple[Card, ...]:
    """The cards that a node's annotation names, by index."""
    try:
        found = _CARDS.decode(text)
    except _NOT_PLAIN:
        return decode_cards(text)
    cards = found.cards
    plain = (
        found.version == CARDS_VERSION
        and len(cards) <= MOST_CARDS
        and len({card.uuid for card in cards}) == len({card.index for card in cards}) == len(cards)
        and all(card.reserved <= card.total for card in cards)
    )
    if not plain:
        return decode_cards(text)
    cards.sort(key=lambda card: card.index)
    return tuple(
        Card(card.uuid, card.index, card.total, card.reserved, card.unit, card.model, card.healthy) for card in cards
    )


def slices_in(text: str) -> tuple[Slice, ...]:
    """What a pod's annotation, ours, says is taken off which cards."""
    try:
        found = _ALLOCATION.decode(text)
    except _NOT_PLAIN:
        return decode_allocation(text).slices
    cards = found.cards
    whole = {card.uuid: card for card in cards}
    if found.version != ALLOCATION_VERSION or len(whole) != len(cards):
        return decode_allocation(text).slices
    if len(cards) > 1 and len({card.index for card in cards}) != len(cards):
        return decode_allocation(text).slices
    for container in found.containers:
        for part in container.cards:
            of = whole.get(part.uuid)
            if of is None or part.bytes > of.bytes or part.core > of.core:
                return decode_allocation(text).slices
    return tuple([Slice(card.uuid, card.index, card.bytes, card.core) for card in cards])
