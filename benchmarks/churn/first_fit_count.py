# SPDX-License-Identifier: Apache-2.0
"""
Nodes that waiting pods need, counted card by card a second time.

It shares no packing with the autoscaler that it judges. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from autoscaler.core.observation import Observation
    from autoscaler.core.pools import Pool
    from isolation.contract.model import Node, Pod


def needed_nodes(seen: Observation, pool: Pool) -> int:
    """
    Fresh nodes that first-fit-decreasing over single cards opens for whoever waits.

    Those who have room on what stands, or on what is coming, need none. A second count: it shares no
    packing with the autoscaler's own.
    """
    rest = _without_room(seen)
    coming = [_Cards(pool.template) for _ in seen.coming()]
    opened: list[_Cards] = []
    for pod in sorted(rest, key=_decreasing):
        if any(room.take(pod) for room in coming) or any(room.take(pod) for room in opened):
            continue
        room = _Cards(pool.template)
        if room.take(pod):
            opened.append(room)
    return len(opened)


def served_by_coming(seen: Observation, pool: Pool) -> set[str]:
    """Waiting pods for which there is room on machines that are on their way."""
    coming = [_Cards(pool.template) for _ in seen.coming()]
    return {pod.uid for pod in sorted(seen.pending, key=_decreasing) if any(room.take(pod) for room in coming)}


def _without_room(seen: Observation) -> list[Pod]:
    """Who has no room on what stands; successors on their way to a home kept for them have theirs."""
    trial = seen.engine.fork()
    for uid, pod in seen.pods.items():
        if pod.deleting and uid in seen.reserved:
            trial.release(uid)
    kept = [home for home in seen.reserved.values() if home.pod not in seen.pods or seen.pods[home.pod].deleting]
    rest: list[Pod] = []
    for pod in seen.pending:
        home = next((home for home in kept if home.matches(pod)), None)
        if home is not None:
            kept.remove(home)
            continue
        place = trial.place(pod.request)
        if isinstance(place, Refusal):
            rest.append(pod)
        else:
            trial.hold(pod.uid, pod.request, place)
    return rest


def _decreasing(pod: Pod) -> tuple[int, ...]:
    request = pod.request
    return (-request.card_bytes, -request.card_core, -request.cards, -request.cpu_milli, -request.memory_bytes)


class _Cards:
    """One fresh node, card by card."""

    def __init__(self, node: Node) -> None:
        self._cards = [card.allocatable_bytes for card in node.cards]
        self._cpu, self._memory = node.cpu_milli, node.memory_bytes

    def take(self, pod: Pod) -> bool:
        """Take the pod on the first cards that have room, if there are enough."""
        request = pod.request
        fitting = [at for at, free in enumerate(self._cards) if free >= request.card_bytes][: request.cards]
        if len(fitting) < request.cards or request.cpu_milli > self._cpu or request.memory_bytes > self._memory:
            return False
        for at in fitting:
            self._cards[at] -= request.card_bytes
        self._cpu -= request.cpu_milli
        self._memory -= request.memory_bytes
        return True
