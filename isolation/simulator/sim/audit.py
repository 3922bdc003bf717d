# SPDX-License-Identifier: Apache-2.0
"""
What is left on every card and node during a replay, kept apart from the engine that placed it.

A second book: it accepts a placement only if cards, memory, CPU and card model allow it, so a
faulty engine cannot report a packing that no fleet could hold. Also says which part of the idle
GPU is fragment. Decides nothing about where pods go.

    AuditError      a placement takes what is not there
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isolation.simulator.traces.openb import MILLI_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.model import Node, Placement, Request


class AuditError(ValueError):
    """A placement takes what is not there."""


class Audit:
    """Free room of a fleet, and the rules that a placement must keep."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._cards: dict[str, list[int]] = {}
        self._cpu: dict[str, int] = {}
        self._memory: dict[str, int] = {}
        self._models: dict[str, set[str]] = {}
        self._instances: dict[str, set[int]] = {}
        for node in nodes:
            self._cards[node.name] = [card.allocatable_bytes for card in node.cards]
            self._cpu[node.name] = node.cpu_milli
            self._memory[node.name] = node.memory_bytes
            self._models[node.name] = {card.model for card in node.cards}
            self._instances[node.name] = {card.index for card in node.cards if card.instance is not None}

    def take(self, request: Request, placement: Placement) -> None:
        """Take a pod's room, or say what the placement breaks."""
        name = placement.node
        if name not in self._cards:
            raise AuditError(f"pod is placed on unknown node {name}")
        if request.rules.models and not self._models[name] <= request.rules.models:
            raise AuditError(f"node {name} has a card model that the pod does not allow")
        indices = [part.index for part in placement.slices]
        if len(set(indices)) != request.cards or len(indices) != request.cards:
            raise AuditError(f"node {name}: placement has {len(set(indices))} cards, pod requests {request.cards}")
        if request.cards > 1 and self._instances[name].intersection(indices):
            raise AuditError(f"node {name}: a pod on {request.cards} cards is placed on a MIG instance")
        cards = self._cards[name]
        for part in placement.slices:
            if part.bytes != request.card_bytes or not 0 <= part.index < len(cards):
                raise AuditError(
                    f"node {name}, card {part.index}: placement has {part.bytes} bytes, "
                    f"pod requests {request.card_bytes}"
                )
            cards[part.index] -= part.bytes
        self._cpu[name] -= request.cpu_milli
        self._memory[name] -= request.memory_bytes
        if min(self._cpu[name], self._memory[name], *cards, 0) < 0:
            raise AuditError(f"node {name} is overcommitted by a pod of {request.cards} x {request.card_bytes} bytes")

    def fragment_ratio(self, mix: Mapping[Request, int]) -> float | None:
        """
        Part of the idle GPU that is fragment, averaged over the pods of `mix` that ask for cards.

        By the published definition: for one pod, all idle GPU of a node that cannot run it, and on
        a node that can, the card remainders smaller than its share. None when nothing is idle.
        """
        names = list(self._cards)
        width = max(map(len, self._cards.values()), default=0)
        idle = np.array([self._cards[n] + [0] * (width - len(self._cards[n])) for n in names]) // MILLI_BYTES
        cpu, memory = (np.array([left[n] for n in names]) for left in (self._cpu, self._memory))
        asking = {request: count for request, count in mix.items() if request.cards}
        total = int(idle.sum())
        if not total or not asking:
            return None
        allowed = {models: self._allowed(names, models) for models in {r.rules.models for r in asking}}
        lost = 0.0
        for request, count in asking.items():
            milli = request.card_bytes // MILLI_BYTES
            runs = (cpu >= request.cpu_milli) & (memory >= request.memory_bytes) & allowed[request.rules.models]
            runs &= (idle >= milli).sum(axis=1) >= request.cards
            lost += count * float(np.where(runs, np.where(idle < milli, idle, 0).sum(axis=1), idle.sum(axis=1)).sum())
        return lost / (total * sum(asking.values()))

    def _allowed(self, names: list[str], models: frozenset[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Per node: whether its card model is among those allowed."""
        return np.array([not models or self._models[n] <= models for n in names])
