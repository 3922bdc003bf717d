# SPDX-License-Identifier: Apache-2.0
"""
The pods that arrive at the embedded cluster: the demonstration's, or the rows of a trace.

Pure, but for the demonstration's random numbers, which follow from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from autoscaler.core.rightsizing.live import PodWish
from autoscaler.demo.embedded.usage import UsageProfile
from isolation.contract.model import Ask, Request, Requirement, Rules, Toleration
from isolation.contract.names import ACK, POOL
from isolation.contract.quantity import MIB, gib
from isolation.contract.right_size import RightSize, RightSizeWish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


WAVE_SECONDS: Final = 400.0
"""The demonstration's load rises and falls once in this time."""
RISING_SECONDS: Final = 150.0
RUSH_GAP_SECONDS: Final = 4.0
"""Mean time between pods while the load rises."""
LULL_GAP_SECONDS: Final = 40.0
NAMESPACE: Final = "demo"
SEARCH_POOL: Final = "search"
SEARCH_GIB: Final = 12
WAITING_GIB: Final = 8
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PodArrival:
    """One pod of the workload: when it comes, what it asks, how it behaves."""

    at: float
    """Seconds of the fleet's clock."""
    name: str
    request: Request = field(default_factory=Request)
    lifetime: float | None = None
    """Seconds it runs once it is placed; None: until the end."""
    namespace: str = "default"
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS, hash=False)
    evictable: bool = True
    """Whether it may be moved; a pod without an owner never may: no controller would recreate it."""
    profile: UsageProfile | None = None
    """How its containers use what they asked for; None: drawn by the seed."""
    wish: PodWish | None = None
    """None: it is not resized while it runs."""
    excess: float | None = None
    """Share of its promise that it takes on top after a while; None: it keeps its promise."""


def request_share(gibibytes: int, *, cards: int = 1, core: int = 0, owner: str = "", cpu_milli: int = 500) -> Request:
    """Shares of `cards` cards: so much memory, and so many percent of compute, of each."""
    return Request(
        cards=cards,
        card_bytes=gib(gibibytes),
        card_core=core,
        cpu_milli=cpu_milli,
        memory_bytes=gib(1),
        owner=owner,
        asks=(Ask("main", gib(gibibytes) * cards, core * cards),),
    )


def request_whole_cards(cards: int = 1, *, owner: str = "") -> Request:
    """Whole cards, on nodes that are kept for those who ask for them."""
    return Request(
        cards=cards,
        whole=True,
        cpu_milli=4000,
        memory_bytes=gib(16),
        rules=Rules(tolerations=frozenset({Toleration(ACK.whole, exists=True)})),
        owner=owner,
        asks=(Ask("train", whole=cards),),
    )


def demo_workload(seed: int) -> Iterator[PodArrival]:
    """
    Waves of inference services, batch jobs and whole-card training, without end.

    Some take more than they were promised, and one asks for more than any card has.
    """
    draw = Random(f"demo/{seed}")  # noqa: S311 (a workload, no secret)
    huge = request_share(40, owner="Job/demo/too-large")
    yield PodArrival(0.0, "welcome-0", request_share(2, owner="StatefulSet/demo/welcome"), namespace=NAMESPACE)
    yield PodArrival(0.0, "welcome-1", request_share(3, owner="StatefulSet/demo/welcome"), namespace=NAMESPACE)
    yield from _wasteful_service()
    yield PodArrival(5.0, "too-large", huge, namespace=NAMESPACE)
    at, number = 5.0, 0
    while True:
        rising = at % WAVE_SECONDS < RISING_SECONDS
        at += draw.expovariate(1 / (RUSH_GAP_SECONDS if rising else LULL_GAP_SECONDS))
        number += 1
        yield _draw_demo_pod(draw, at, number)


def _wasteful_service() -> Iterator[PodArrival]:
    """Two replicas that fill the cards of their own node with promises, and a pod that waits there for room."""
    there = ((Requirement(POOL, "In", (SEARCH_POOL,)),),)
    here = Rules(there, frozenset({Toleration(SEARCH_POOL, exists=True)}))
    wasteful = replace(request_share(SEARCH_GIB, owner=f"ReplicaSet/{NAMESPACE}/search"), rules=here)
    waits = replace(request_share(WAITING_GIB, owner=f"Job/{NAMESPACE}/reindex"), rules=here)
    uses = UsageProfile(level=0.25, ramp_seconds=20, wobble=0.12, period_seconds=170, busy=0.6, duty=0.7)
    for number in range(2):
        wish = PodWish(RightSizeWish(RightSize.LIVE))
        yield PodArrival(1.0, f"search-{number}", wasteful, namespace=NAMESPACE, profile=uses, wish=wish)
    yield PodArrival(2.0, "reindex", waits, namespace=NAMESPACE)


def _draw_demo_pod(draw: Random, at: float, number: int) -> PodArrival:
    kind = draw.random()
    lifetime, excess = draw.lognormvariate(5.0, 0.6), None
    if kind < 0.55:  # noqa: PLR2004 (shares of the mix, next to what they stand for)
        name = f"chat-{number}"
        request = request_share(draw.choice((1, 2, 2, 3, 4, 4, 6, 8)), owner=f"ReplicaSet/{NAMESPACE}/{name}")
        excess = draw.uniform(0.1, 0.4) if draw.random() < 0.12 else None  # noqa: PLR2004 (likewise)
    elif kind < 0.80:  # noqa: PLR2004 (likewise)
        name = f"embed-{number}"
        core = draw.choice((10, 20, 25, 30, 40, 50))
        request = request_share(draw.choice((2, 3, 5, 8, 10)), core=core, owner=f"ReplicaSet/{NAMESPACE}/{name}")
    elif kind < 0.88:  # noqa: PLR2004 (likewise)
        name, lifetime = f"train-{number}", lifetime * 1.5
        request = request_whole_cards(draw.choice((1, 1, 2)))
    elif kind < 0.95:  # noqa: PLR2004 (likewise)
        name = f"split-{number}"
        request = request_share(draw.choice((2, 3, 5)), cards=2, owner=f"StatefulSet/{NAMESPACE}/{name}")
    else:
        name = f"web-{number}"
        request = Request(cpu_milli=500, memory_bytes=512 * MIB, owner=f"ReplicaSet/{NAMESPACE}/{name}")
    return PodArrival(at, name, request, lifetime, NAMESPACE, excess=excess)


def trace_arrivals(rows: Iterable[tuple[float, float | None, Request, str]]) -> Iterator[PodArrival]:
    """
    Rows of a trace (arrival, lifetime, request, name), by time; the clock starts at the first row.

    A trace names no controllers: each pod gets one of its own, so that it may be moved.
    """
    first: float | None = None
    for at, lifetime, request, name in rows:
        first = at if first is None else first
        owned = request if request.owner else replace(request, owner=f"Job/default/{name}")
        yield PodArrival(at - first, name, owned, lifetime)
