# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler tells the scheduler and admission of its pools: one text, in ConfigMap `names.POOLS`.

    {"version": 1, "complete": true, "pools": [{"name": "gpu-a", "min_nodes": 0, "max_nodes": 20,
     "scale_up": "gpushare", "scale_down": "cluster-autoscaler", <a fresh node, as `codec.template` has it>}]}

`scale_up` and `scale_down` say who buys and who drains at this moment: cluster-autoscaler unless the autoscaler acts.
Pure. A pool of which nobody knows what its nodes are like is not in it, and then it is not `complete`: nodes may come
that it does not tell of.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.cluster_autoscaler_annotations import Ours, Scaler
from isolation.contract.codec.cursor import CodecError, decoded, show
from isolation.contract.codec.template import NodeTemplate, template_at, template_shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.codec.cursor import At
    from isolation.contract.model import Node

KEY: Final = "pools.json"
"""Of the ConfigMap's data."""
VERSION: Final = 1
MAX_POOLS: Final = 200
MAX_TEXT: Final = 900_000
"""Bytes: a ConfigMap holds 1 MiB."""
_LARGEST: Final = 100_000


@dataclass(frozen=True, slots=True)
class PublishedPool:
    """One pool."""

    name: str
    fresh: Node
    """A node of it as it is when it has just registered."""
    min_nodes: int = 0
    max_nodes: int = 0
    ours: Ours = Ours()  # noqa: RUF009 (a value)
    """What gpushare does there now."""


@dataclass(frozen=True, slots=True)
class PublishedPools:
    """All that is published."""

    pools: tuple[PublishedPool, ...] = ()
    complete: bool = False
    """Whether no other pool may bring nodes: there are pools, and none is left out."""


def encode_pools(pools: Iterable[PublishedPool], *, complete: bool = False) -> str:
    """The text; pools beyond what it holds are left out. `complete`: these are all that are configured."""
    pools = tuple(pools)
    shown: list[dict[str, Any]] = []
    size = 0
    for pool in pools[:MAX_POOLS]:
        one = _shown(pool)
        size += len(json.dumps(one)) + 2
        if size > MAX_TEXT - 100:
            break
        shown.append(one)
    return json.dumps({"version": VERSION, "complete": complete and len(shown) == len(pools), "pools": shown})


def decode_pools(text: str) -> PublishedPools:
    """All of them; CodecError where any cannot be read: half of the pools would be taken for all."""
    if len(text) > MAX_TEXT:
        raise CodecError((), f"{len(text)} characters: the maximum is {MAX_TEXT}")
    at = decoded(text)
    if at["version"].integer(0) != VERSION:
        raise at["version"].wrong(f"unsupported version {show(at['version'].value)}; expected {VERSION}")
    items = at["pools"].items()
    if len(items) > MAX_POOLS:
        raise at["pools"].wrong(f"{len(items)} pools: the maximum is {MAX_POOLS}")
    return PublishedPools(tuple(map(_pool, items)), at["complete"].value is True and bool(items))


def _shown(pool: PublishedPool) -> dict[str, Any]:
    fresh = pool.fresh
    template = NodeTemplate(
        mode=fresh.mode,
        choice=fresh.choice,
        cards=fresh.cards,
        cpu_milli=fresh.cpu_milli,
        memory_bytes=fresh.memory_bytes,
        pods=fresh.pods,
        labels=fresh.labels,
        taints=fresh.taints,
    )
    return {
        "name": pool.name,
        "min_nodes": pool.min_nodes,
        "max_nodes": pool.max_nodes,
        "scale_up": _scaler(ours=pool.ours.buys),
        "scale_down": _scaler(ours=pool.ours.drains),
        **template_shown(template),
    }


def _scaler(*, ours: bool) -> str:
    return (Scaler.GPUSHARE if ours else Scaler.CLUSTER_AUTOSCALER).value


def _pool(at: At) -> PublishedPool:
    name = at["name"].label_name()
    return PublishedPool(
        name,
        template_at(at).node(name),
        at["min_nodes"].integer(0, 0, _LARGEST),
        at["max_nodes"].integer(0, 0, _LARGEST),
        Ours(_is_ours(at["scale_up"]), _is_ours(at["scale_down"])),
    )


def _is_ours(at: At) -> bool:
    word = at.text()
    if word not in tuple(Scaler):
        raise at.wrong(f"{show(word)} is not one of {', '.join(Scaler)}")
    return word == Scaler.GPUSHARE
