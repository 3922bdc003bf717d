# SPDX-License-Identifier: Apache-2.0
"""
Pools as a market: which of them opens the next node, by the price of the demand that it would serve.

First-fit-decreasing over cards fills each node (`bins`). Pure; buys nothing itself.
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
    """Pools, and which of them may not be asked now."""

    pools: Mapping[str, Pool]
    closed: frozenset[str]
    templates: Templates

    def open_nodes(self, free: dict[str, int], groups: list[PodGroup]) -> Iterator[tuple[str, list[Slot]]]:
        """
        Node after node, each of the pool with the lowest price for what that node would serve.

        Pools of a higher priority come first; price decides among those of the same.

        `free` says how many each pool may still open; pods leave the groups as they are served.
        """
        while True:
            best = min(self._options(free, groups), key=lambda offer: offer[:2], default=None)
            if best is None:
                return
            _, name, served = best
            take_pods(groups, served)
            free[name] -= 1
            yield name, served

    def _options(
        self, free: Mapping[str, int], groups: list[PodGroup]
    ) -> Iterable[tuple[tuple[int, float], str, list[Slot]]]:
        """For each pool that has one free: rank and price for demand served by its node, name, who would be served."""
        for name in sorted(free):
            served = (
                fill_node(Bin(self.templates.blank(name)), groups, partial(self.templates.hosts, name))
                if free[name] > 0
                else []
            )
            if served:
                pool = self.pools[name]
                price = pool.price / sum(self.weigh(each.pod.request) for each in served)
                yield (-pool.priority, price), name, served

    def weigh(self, request: Request) -> float:
        """Demand as a share of the largest that any pool's node has: the largest of its three shares."""
        largest = self.templates.largest
        part = 1.0 if request.whole else max(request.card_bytes / largest.card_bytes, request.card_core / FULL_CORE)
        # a pod that asks for nothing still counts for something, or its price would be infinite
        return max(
            request.cards * part / largest.cards,
            request.cpu_milli / largest.cpu_milli,
            request.memory_bytes / largest.memory_bytes,
            1e-6,
        )
