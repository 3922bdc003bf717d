# SPDX-License-Identifier: Apache-2.0
"""Small values for tests; what a test does not name does not matter to it."""

from __future__ import annotations

from itertools import count

from isolation.contract.model import Card, CardChoice, Mode, Node, Request, Rules
from isolation.contract.quantity import gib

_serial = count()


def card(index: int = 0, size: int = 15, *, node: str = "n", model: str = "", healthy: bool = True) -> Card:
    """A card of `size` GiB."""
    return Card(f"GPU-{node}-{index}", index, gib(size), model=model, healthy=healthy)


def node(
    name: str = "",
    cards: int = 1,
    size: int = 15,
    *,
    mode: Mode = Mode.CGPU,
    choice: CardChoice = CardChoice.POLICY,
    model: str = "",
    **rest: object,
) -> Node:
    """A node of equal cards with room for any pod beside them."""
    name = name or f"n{next(_serial)}"
    given = {"cpu_milli": 10**6, "memory_bytes": gib(10**4), "pods": 1000} | rest
    many = tuple(card(i, size, node=name, model=model) for i in range(cards))
    return Node(name, many, mode, choice, **given)  # type: ignore[arg-type]


def ask(size: int = 1, cards: int = 1, *, core: int = 0, whole: bool = False, **rest: object) -> Request:
    """A request for `size` GiB on each of `cards` cards."""
    given = {"rules": Rules()} | rest
    return Request(cards=cards, card_bytes=0 if whole else gib(size), card_core=core, whole=whole, **given)  # type: ignore[arg-type]
