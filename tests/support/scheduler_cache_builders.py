# SPDX-License-Identifier: Apache-2.0
"""A scheduler cache that knows some nodes, and what is read in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.scheduler.core.cache import AssumedPlacement, SchedulerCache

if TYPE_CHECKING:
    from isolation.contract.model import Node, Refusal


def build_cache(*nodes: Node) -> SchedulerCache:
    """A scheduler cache that knows these nodes."""
    made = SchedulerCache()
    for one in nodes:
        made.set_node(one)
    return made


def indices(found: AssumedPlacement | Refusal) -> tuple[int, ...]:
    """Card indices of what was assumed."""
    assert isinstance(found, AssumedPlacement), found
    return tuple(part.index for part in found.placement.slices)


def used(made: SchedulerCache, name: str = "n") -> list[int]:
    """GiB promised of each card of a node."""
    (found,) = made.inspect(name)
    return [one.used for one in found.cards]
