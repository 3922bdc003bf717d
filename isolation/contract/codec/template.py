# SPDX-License-Identifier: Apache-2.0
"""
A fresh node of a pool, as its operator writes it, as it is remembered, and as it is published: one form of JSON.

    {"mode": "cgpu", "choice": "binpack", "cpu": 16000, "memory": 68719476736, "pods": 110, "labels": {...},
     "taints": [{"key": ..., "value": ..., "effect": ...}], "cards": {<as the node annotation gpushare.dev/cards>}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.cursor import LARGEST, At, CodecError, show
from isolation.contract.codec.node import decode_cards, encode_cards, policy_of
from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.model import Card, CardChoice, ComputePolicy, Mode, Node, Taint
from isolation.contract.names import POOL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_LABELS: Final = 256
_MAX_TAINTS: Final = 64
_LONGEST_KEY: Final = 317  # a DNS prefix of 253, a slash, a name of 63
_LONGEST_VALUE: Final = 63
_MAX_PODS: Final = 1 << 20
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A node as it will be when it has just registered."""

    mode: Mode = Mode.NONE
    choice: CardChoice = CardChoice.POLICY
    cards: tuple[Card, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    taints: tuple[Taint, ...] = ()

    def node(self, pool: str) -> Node:
        """The node of a pool that carries the pool's name as its own."""
        cards = tuple(replace(card, uuid=f"{pool}/{card.index}") for card in self.cards)
        return Node(
            name=pool,
            cards=cards,
            mode=self.mode,
            choice=self.choice,
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            pods=self.pods,
            labels={**self.labels, POOL: pool},
            taints=self.taints,
            pool=pool,
            policy=policy_of(self.labels) or ComputePolicy.FIXED,
        )


def template_at(at: At) -> NodeTemplate:
    """One template; raises CodecError."""
    return NodeTemplate(
        mode=Mode(_one_of(at["mode"], [mode.value for mode in Mode], Mode.NONE.value)),
        choice=CardChoice(_one_of(at["choice"], [choice.value for choice in CardChoice], CardChoice.POLICY.value)),
        cards=_cards(at["cards"]),
        cpu_milli=at["cpu"].integer(0, 0, LARGEST - 1),
        memory_bytes=at["memory"].integer(0, 0, LARGEST - 1),
        pods=at["pods"].integer(110, 0, _MAX_PODS),
        labels=_labels(at["labels"]),
        taints=_taints(at["taints"]),
    )


def template_shown(kind: NodeTemplate) -> dict[str, Any]:
    """What `template_at` reads."""
    return {
        "mode": kind.mode.value,
        "choice": kind.choice.value,
        "cpu": kind.cpu_milli,
        "memory": kind.memory_bytes,
        "pods": kind.pods,
        "labels": dict(kind.labels),
        "taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in kind.taints],
        "cards": json.loads(encode_cards(kind.cards)),
    }


def _cards(at: At) -> tuple[Card, ...]:
    if not at:
        return ()
    if len(at["cards"].items()) > MAX_CARDS:
        raise at["cards"].wrong(f"too many cards: the maximum is {MAX_CARDS}")
    try:
        return decode_cards(json.dumps(at.mapping()))
    except CodecError as exc:
        raise exc.under(at.path) from None


def _labels(at: At) -> dict[str, str]:
    labels = at.texts()
    if len(labels) > _MAX_LABELS:
        raise at.wrong(f"{len(labels)} labels: the maximum is {_MAX_LABELS}")
    for key, value in labels.items():
        if not key or len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            raise at.wrong(f"{show(key)}: {show(value)} is not a valid label")
    return labels


def _taints(at: At) -> tuple[Taint, ...]:
    items = at.items()
    if len(items) > _MAX_TAINTS:
        raise at.wrong(f"{len(items)} taints: the maximum is {_MAX_TAINTS}")
    return tuple(
        Taint(item["key"].text()[:_LONGEST_KEY], item["value"].text()[:_LONGEST_VALUE], _effect(item["effect"]))
        for item in items
    )


def _effect(at: At) -> str:
    return _one_of(at, _EFFECTS, _EFFECTS[0])


def _one_of(at: At, allowed: Sequence[str], default: str) -> str:
    value = at.text(default)
    if value not in allowed:
        raise at.wrong(f"{show(value)} is not one of {', '.join(allowed)}")
    return value
