# SPDX-License-Identifier: Apache-2.0
"""
Fragmented pods: pending although the sum of a node's free cards would fit them, because no single cards do.

An autoscaler that counts sums takes such a pod ("phantom") for placeable and never adds a node for it. Pure. What is
done for the pod is decided in `scale_up`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.core.bin_packing import Shape, get_shape
from autoscaler.core.templates import get_templates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autoscaler.core.observation import Observation
    from isolation.contract.model import Pod, Request


def find_fragmented(observation: Observation, pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Which of the pods fit by the sums over some usable node, and by card on none."""
    # whole cards are all taken or all free: their sums tell the truth
    sharing = [(get_shape(pod.request), pod) for pod in pods if pod.request.shared]
    templates = get_templates(tuple(observation.pools.values()))
    asked = {shape: pod.request for shape, pod in sharing}
    by_sum: set[Shape] = set()
    by_card: set[Shape] = set()
    for room in _list_free(observation) if asked else ():
        for shape, request in asked.items():
            if shape not in by_card and room.fits_sum(request) and templates.hosts(room.pool, request):
                if room.fits_cards(request):
                    by_card.add(shape)
                else:
                    by_sum.add(shape)
    return tuple(pod for shape, pod in sharing if shape in by_sum - by_card)


@dataclass(frozen=True, slots=True)
class _FreeNode:
    """What is free on one node."""

    pool: str
    cards: tuple[tuple[int, int], ...]
    card_bytes: int
    card_core: int
    cpu_milli: int
    memory_bytes: int
    pods: int

    def fits_sum(self, request: Request) -> bool:
        """Whether the node has room when its cards are added up."""
        return (
            self.card_bytes >= request.cards * request.card_bytes
            and self.card_core >= request.cards * request.card_core
            and self.cpu_milli >= request.cpu_milli
            and self.memory_bytes >= request.memory_bytes
            and self.pods > 0
        )

    def fits_cards(self, request: Request) -> bool:
        """Whether as many single cards as asked for have room."""
        fitting = sum(free >= request.card_bytes and core >= request.card_core for free, core in self.cards)
        return fitting >= request.cards


def _list_free(observation: Observation) -> Iterator[_FreeNode]:
    """What is free on the nodes that take pods, less reservations."""
    kept: dict[str, list[Request]] = {}
    for home in observation.reserved.values():
        kept.setdefault(home.placement.node, []).append(home.request)
    for name, pods in observation.on.items():
        if observation.is_usable(name) and observation.machines[name].pool in observation.pools:
            node, cards = observation.engine.nodes[name], observation.engine.room(name)
            held = [*(pod.request for pod in pods.values()), *kept.get(name, ())]
            yield _FreeNode(
                observation.machines[name].pool,
                cards,
                sum(max(0, free) for free, _ in cards),
                sum(max(0, core) for _, core in cards),
                node.cpu_milli - sum(each.cpu_milli for each in held),
                node.memory_bytes - sum(each.memory_bytes for each in held),
                node.pods - len(held),
            )
