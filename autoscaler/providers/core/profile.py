# SPDX-License-Identifier: Apache-2.0
"""
What one fresh node of a pool looks like, so that a pool can grow from zero.

Learnt from the nodes that stand, remembered as JSON in the autoscaler's state. Pure: who stores it, and
when it is asked, is not known here. What differs between nodes of one pool is not promised of a fresh one:
the least of their amounts, and only the labels and taints that all of them have.

    {"version": 1, "pools": {"gpu-a": {<as `isolation.contract.codec.template` has it>}}}
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import CodecError, decoded, show
from isolation.contract.codec.template import NodeTemplate, template_at, template_shown
from isolation.contract.model import Mode
from isolation.contract.names import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.model import Node

VERSION: Final = 1
MAX_TEXT: Final = 512 << 10
"""Bytes of remembered profiles: a ConfigMap holds 1 MiB, and others write there too."""
MAX_POOLS: Final = 1000
_OWN: Final = frozenset({"kubernetes.io/hostname", "beta.kubernetes.io/hostname"})
"""Labels that no two nodes share."""
_PLACES: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Labels that a pool over several zones does not promise, though its last node has one."""
_PASSING: Final = (
    f"{GROUP}/",
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
)
"""How taints begin that tell a node's moment, not its kind."""


def make_template(node: Node) -> NodeTemplate:
    """What this node says about its kind: nothing of its name, its health or its moment."""
    boards = {board: f"card/{at}" for at, board in enumerate(dict.fromkeys(card.board for card in node.cards))}
    cards = tuple(
        replace(
            card,
            uuid=f"card/{card.index}",
            healthy=True,
            instance=card.instance and replace(card.instance, parent=boards[card.board]),
        )
        for card in node.cards
    )
    return NodeTemplate(
        mode=node.mode,
        choice=node.choice,
        cards=cards,
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        pods=node.pods,
        labels={key: value for key, value in node.labels.items() if key not in _OWN},
        taints=tuple(taint for taint in node.taints if not taint.key.startswith(_PASSING)),
    )


def learn(remembered: Mapping[str, NodeTemplate], nodes: Iterable[Node]) -> dict[str, NodeTemplate]:
    """What is known of each pool now: the nodes that stand say it, else what was remembered."""
    standing: dict[str, list[NodeTemplate]] = {}
    for node in nodes:
        if node.pool and is_complete(node):
            standing.setdefault(node.pool, []).append(make_template(node))
    return learn_kinds(remembered, standing)


def learn_kinds(
    remembered: Mapping[str, NodeTemplate], standing: Mapping[str, Sequence[NodeTemplate]]
) -> dict[str, NodeTemplate]:
    """The same from what standing nodes show, by pool; nodes that show the same need be given once only."""
    return {**remembered, **{pool: _least(kinds, remembered.get(pool)) for pool, kinds in standing.items()}}


def is_complete(node: Node) -> bool:
    """Whether a node shows its kind: up, taking pods, its cards registered and well."""
    missing = node.mode is not Mode.NONE and not node.cards
    unhealthy = any(not card.healthy for card in node.cards)
    return node.ready and node.serving and not node.cordoned and not missing and not unhealthy


def _least(kinds: Sequence[NodeTemplate], before: NodeTemplate | None) -> NodeTemplate:
    """The smallest of them, with what all of them agree on."""
    least = min(kinds, key=_size)
    agreed = set(least.labels.items()).intersection(*(kind.labels.items() for kind in kinds))
    if before is not None:
        agreed -= {(place, least.labels.get(place, "")) for place in _PLACES if place not in before.labels}
    taints = {taint for kind in kinds for taint in kind.taints}
    return replace(
        least,
        cpu_milli=min(kind.cpu_milli for kind in kinds),
        memory_bytes=min(kind.memory_bytes for kind in kinds),
        pods=min(kind.pods for kind in kinds),
        labels=dict(sorted(agreed)),
        taints=tuple(sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect))),
    )


def _size(kind: NodeTemplate) -> tuple[object, ...]:
    """Smallest first; ties are broken by what the cards are called, never by the order of nodes."""
    offered = sum(card.allocatable_bytes for card in kind.cards)
    models = tuple(card.model for card in kind.cards)
    return offered, len(kind.cards), kind.cpu_milli, kind.memory_bytes, kind.mode.value, models


def encode(profiles: Mapping[str, NodeTemplate]) -> str:
    """Profiles as JSON, pools in order; what would not fit `MAX_TEXT` is left out, last pools first."""
    pools: dict[str, object] = {}
    size = len(json.dumps({"version": VERSION, "pools": {}}))
    for name in sorted(profiles)[:MAX_POOLS]:
        shown = template_shown(profiles[name])
        size += len(json.dumps({name: shown}, separators=(",", ":")))
        if size > MAX_TEXT:
            break
        pools[name] = shown
    return json.dumps({"version": VERSION, "pools": pools}, separators=(",", ":"))


def decode(text: str) -> tuple[dict[str, NodeTemplate], tuple[str, ...]]:
    """The profiles that can be read, and why others cannot; raises CodecError where nothing can."""
    if len(text) > MAX_TEXT:
        raise CodecError(
            (), f"profiles have {len(text)} characters: the maximum is {MAX_TEXT}; delete them to learn them again"
        )
    at = decoded(text)
    if at["version"].integer(0) != VERSION:
        raise at["version"].wrong(
            f"unsupported version {show(at['version'].value)}; this program reads version {VERSION}"
        )
    if len(at["pools"].mapping()) > MAX_POOLS:
        raise at["pools"].wrong(f"{len(at['pools'].mapping())} pools: the maximum is {MAX_POOLS}")
    found, problems = {}, []
    for name, entry in at["pools"].fields():
        try:
            found[name] = template_at(entry)
        except CodecError as exc:
            problems.append(str(exc))
    return found, tuple(problems)
