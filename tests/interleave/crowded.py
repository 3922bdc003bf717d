# SPDX-License-Identifier: Apache-2.0
"""
Storms in which pods are easily mistaken for one another: where faults of identity are found sooner.

Init containers and sidecars of few sizes, deleted soon and mostly by force, made again under the same names; agents
and kubelets that are struck more often, and watches that are late. `python -m benchmarks.interleave --rule crowded`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from interleave.wire import Weather
from support.device_books import Box

from isolation.contract.names import ACK

if TYPE_CHECKING:
    import random

    from interleave.objects import Plan

WEIGHTS: Final = (4, 3, 2, 3, 20, 8, 8, 10, 3, 4, 8, 4, 40)
"""Of `chaos.STROKES`."""
KINDS: Final = {"one": 18, "many": 5, "init": 32, "sidecar": 28, "pair": 14, "initonly": 3}


def many_strokes(draw: random.Random) -> int:
    """Never none."""
    return draw.choice((4, 12, 30))


def weather(draw: random.Random) -> Weather:
    """Seldom fine, and then with late watches."""
    if draw.random() < 0.2:
        return Weather(lag=0.25)
    badness = draw.choice((0.01, 0.04, 0.12))
    return Weather(
        lost=badness * draw.random(),
        unanswered=badness * draw.random(),
        belated=badness * draw.random(),
        refused=badness * draw.random(),
        slow=badness * draw.random() * 2,
        cut=badness * draw.random() * 0.5,
        lag=draw.choice((0.01, 0.05, 0.25, 0.25)),
    )


def plan(draw: random.Random, drawn: Plan, most_cards: int) -> Plan:
    """The same pod at the same time, in another shape and with a shorter life."""
    kind = draw.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    size = draw.choice((2, 4, 4, 4, 6))
    cards = draw.randint(2, most_cards) if kind == "many" and most_cards > 1 else 1
    inits, apps = _boxes(draw, kind, draw.choice((1, 2, 4)) if cards > 1 else size, cards)
    deleted = drawn.created + draw.expovariate(1 / 5.0) if draw.random() < 0.8 else None
    changed = replace(drawn, cards=cards, inits=inits, apps=apps, deleted=deleted)
    changed.forced, changed.again = draw.random() < 0.6, draw.random() < 0.7
    return changed


def once_more(draw: random.Random, before: Plan, now: float) -> Plan:
    """Another one of its name, and perhaps another after that."""
    return replace(before, created=now, deleted=now + draw.expovariate(1 / 6.0), again=draw.random() < 0.6)


def _boxes(draw: random.Random, kind: str, size: int, cards: int) -> tuple[list[Box], list[Box]]:
    """Init containers and sidecars; and apps."""
    brief = draw.uniform(0.1, 4.0)

    def box(name: str, each: int, *, sidecar: bool = False, seconds: float | None = None) -> Box:
        return Box(name, {ACK.memory: each * cards} if each else {}, sidecar=sidecar, seconds=seconds)

    if kind == "init":
        sizes = (size, size, max(1, size // 2), size + 2)
        return [box("prepare", draw.choice(sizes), seconds=brief)], [box("main", size)]
    if kind == "sidecar":
        warm = box("warm", draw.choice((0, size, size)), seconds=brief)
        helper = box("helper", draw.choice((1, 2, size)), sidecar=True)
        return [one for one in (warm, helper) if one.units or draw.random() < 0.3], [box("main", size)]
    if kind == "initonly":
        return [box("prepare", size, seconds=brief)], [box("main", 0)]
    second = [box("second", draw.choice((1, 2, size)))] if kind == "pair" else []
    return [], [box("main", size), *second]
