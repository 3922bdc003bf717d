# SPDX-License-Identifier: Apache-2.0
"""
What a new, empty node of each pool could host: the placement engine decides, as it will for the real node.

So selectors, taints, modes and card models count for a scale-up as they do for a placement. Pure; answers are cached
because they never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from autoscaler.core.bin_packing import Shape, get_shape
from isolation.contract.model import Refusal
from isolation.placement.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.core.pools import Pool
    from isolation.contract.model import Node, Placement, Request

SHAPES_KEPT: Final = 65536
"""Maximum number of distinct requests whose answers are cached."""


class EmptyNode:
    """What one node could host if it were empty; the engine decides, as it will for the real one."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._engine = Engine((node,))
        self._known: dict[Shape, bool] = {}
        self._asked: dict[int, tuple[Request, bool]] = {}
        """By the request's identity, which stays while it is kept here: hashing a shape is slow."""

    def hosts(self, request: Request) -> bool:
        """Whether the pod could go there."""
        asked = self._asked.get(id(request))
        if asked is not None:
            return asked[1]
        if len(self._asked) >= SHAPES_KEPT:
            self._asked.clear()
        answer = self._hosts(request)
        self._asked[id(request)] = (request, answer)
        return answer

    def _hosts(self, request: Request) -> bool:
        key = get_shape(request)
        if key not in self._known:
            if len(self._known) >= SHAPES_KEPT:
                self._known.clear()
            self._known[key] = not isinstance(self._engine.place(request), Refusal)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest amounts of a new node of any pool; at least 1, to divide by."""

    cards: int
    card_bytes: int
    cpu_milli: int
    memory_bytes: int


class Templates:
    """A new node of every pool, for simulations."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._nodes = {pool.name: EmptyNode(pool.node(f"{pool.name}+1")) for pool in pools}
        self._all = Engine(self.new_nodes)
        self._unplaceable: dict[Shape, Refusal | None] = {}
        self.largest = Largest(
            cards=max((len(node.cards) for node in self.new_nodes), default=1) or 1,
            card_bytes=max((card.allocatable_bytes for node in self.new_nodes for card in node.cards), default=1) or 1,
            cpu_milli=max((node.cpu_milli for node in self.new_nodes), default=1) or 1,
            memory_bytes=max((node.memory_bytes for node in self.new_nodes), default=1) or 1,
        )

    @property
    def new_nodes(self) -> tuple[Node, ...]:
        """A new node of each pool."""
        return tuple(empty.node for empty in self._nodes.values())

    def new_node(self, pool: str) -> Node:
        """A new node of the pool."""
        return self._nodes[pool].node

    def hosts(self, pool: str, request: Request) -> bool:
        """Whether an empty node of the pool could take the pod."""
        return self._nodes[pool].hosts(request)

    def explain_unplaceable(self, request: Request) -> Refusal | None:
        """Why no pool could ever host the pod; None where one could."""
        key = get_shape(request)
        if key not in self._unplaceable:
            if len(self._unplaceable) >= SHAPES_KEPT:
                self._unplaceable.clear()
            self._unplaceable[key] = _unplaceable(self._all.place(request))
        return self._unplaceable[key]


def _unplaceable(answer: Placement | Refusal) -> Refusal | None:
    if not isinstance(answer, Refusal):
        return None
    # what to change stands first: a screen may have room for no more
    found, _, advice = answer.reason.partition(". ")
    if not advice:
        return Refusal(answer.why, f"no pool can host it: {found}")
    asked = found.partition(": ")[0]
    text = f"no pool can host it: {advice[0].lower()}{advice[1:].removesuffix('.')} (it requests {asked})"
    return Refusal(answer.why, text)


@lru_cache(maxsize=4)
def get_templates(pools: tuple[Pool, ...]) -> Templates:
    """Cached: the same pools give the same templates, which are expensive to build in every cycle."""
    return Templates(pools)
