# SPDX-License-Identifier: Apache-2.0
"""
Which pool gets the next node: by priority, then by price for the demand that the node would serve.

First-fit-decreasing over cards fills each node (`bin_packing`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.core.bin_packing import Bin, PodGroup, Slot, fill_node, take_pods
from isolation.contract.model import FULL_CORE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autoscaler.core.pools import Pool
    from autoscaler.core.templates import Templates
    from isolation.contract.model import Request


@dataclass(frozen=True, slots=True)
class PoolExpander:
    """Pools, and those that may not grow now."""

    pools: Mapping[str, Pool]
    in_backoff: frozenset[str]
    templates: Templates

    def open_nodes(self, addable: dict[str, int], groups: list[PodGroup]) -> Iterator[tuple[str, list[Slot]]]:
        """
        Node after node, each of the pool with the lowest price for what that node would serve.

        Pools of a higher priority come first; price decides among those of the same.

        `addable`: nodes that each pool may still add; pods leave the groups as they get slots.
        """
        while True:
            best = min(self._options(addable, groups), key=lambda option: option[:2], default=None)
            if best is None:
                return
            _, name, slots = best
            take_pods(groups, slots)
            addable[name] -= 1
            yield name, slots

    def _options(
        self, addable: Mapping[str, int], groups: list[PodGroup]
    ) -> Iterable[tuple[tuple[int, float], str, list[Slot]]]:
        """For each pool that may add one: rank and price for the demand that its node serves, name, slots."""
        for name in sorted(addable):
            slots = (
                fill_node(Bin(self.templates.new_node(name)), groups, partial(self.templates.hosts, name))
                if addable[name] > 0
                else []
            )
            if slots:
                pool = self.pools[name]
                price = pool.price / sum(self.weigh(slot.pod.request) for slot in slots)
                yield (-pool.priority, price), name, slots

    def weigh(self, request: Request) -> float:
        """A request as a ratio of the largest node of any pool: the largest of its three ratios."""
        largest = self.templates.largest
        part = 1.0 if request.whole else max(request.card_bytes / largest.card_bytes, request.card_core / FULL_CORE)
        # a pod that asks for nothing still counts for something, or its price would be infinite
        return max(
            request.cards * part / largest.cards,
            request.cpu_milli / largest.cpu_milli,
            request.memory_bytes / largest.memory_bytes,
            1e-6,
        )
