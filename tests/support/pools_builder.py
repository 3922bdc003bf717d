# SPDX-License-Identifier: Apache-2.0
"""Small fleets for tests of the autoscaler; what a test does not name does not matter to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from support.builders import node

from autoscaler.core.observation import observe_cluster
from autoscaler.core.pools import Pool
from autoscaler.demo.embedded.node_pools import PoolSupply, SimulatedFleet
from autoscaler.demo.embedded.workload import PodArrival
from isolation.contract.model import Ask, Cluster, Phase, Placement, Pod, Request, Slice
from isolation.contract.quantity import gib

if TYPE_CHECKING:
    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.core.observation import Observation
    from isolation.contract.model import Node

_serial = count()


def pool(
    name: str = "p",
    cards: int = 1,
    size: int = 15,
    *,
    min_nodes: int = 0,
    max_nodes: int = 100,
    price: float = 1,
    **rest: Any,
) -> Pool:
    """A pool of nodes with `cards` cards of `size` GiB."""
    return Pool(name, node(name, cards, size, **rest), min_nodes, max_nodes, price)


def pod(request: Request, name: str = "", *, on: Placement | None = None, **rest: Any) -> Pod:
    """A pod: waiting, or running where `on` says."""
    serial = next(_serial)
    phase = Phase.PENDING if on is None else Phase.RUNNING
    return Pod(f"uid-{serial:04}", name or f"pod-{serial}", request=request, placement=on, phase=phase, **rest)


def on_card(where: Node, index: int, size: int, core: int = 0) -> Placement:
    """A place on one card of a node."""
    card = where.cards[index]
    return Placement(where.name, (Slice(card.uuid, card.index, gib(size), core),))


def seen(
    pools: list[Pool],
    pods: list[Pod],
    nodes: list[Node] | None = None,
    *,
    machines: list[PoolMachine] | None = None,
    at: float = 0,
) -> Observation:
    """What the autoscaler would observe."""
    return observe_cluster(Cluster(tuple(nodes or ()), tuple(pods)), pools, machines, at)


def arrival(at: float, name: str, request: Request, lifetime: float | None = None, **rest: Any) -> PodArrival:
    """A pod of a controller that uses what it holds with one container."""
    count_of = max(1, request.cards)
    main = Ask("main", request.card_bytes * count_of, request.card_core * count_of, request.cards * request.whole)
    owner = request.owner or f"ReplicaSet/default/{name}"
    complete = replace(request, owner=owner, asks=(main,) if request.cards else ())
    return PodArrival(at, name, complete, lifetime, **rest)


def fleet(*pools: Pool, standing: int = 0, boot: float = 30, stock: int | None = None) -> SimulatedFleet:
    """Pools that boot at the same speed; `standing` nodes of each at the start."""
    supplies = tuple(
        PoolSupply(each, boot_seconds=boot, max_device_registration_seconds=2, return_seconds=5, stock=stock)
        for each in pools
    )
    nodes = tuple(each.node(f"{each.name}-{n + 1}") for each in pools for n in range(standing))
    return SimulatedFleet(supplies, nodes)


def nodes_by_hand(sizes: list[tuple[int, int]], cards: int, size: int) -> int:
    """
    Nodes that first-fit-decreasing over single cards needs for pods of (GiB per card, cards).

    Written without a line of the code that it checks.
    """
    opened: list[list[int]] = []
    for each, wanted in sorted(sizes, key=lambda shape: (-shape[0], -shape[1])):
        for free in opened:
            fitting = [at for at, room in enumerate(free) if room >= each]
            if len(fitting) >= wanted:
                break
        else:
            free = [size] * cards
            opened.append(free)
            fitting = list(range(cards))
        for at in fitting[:wanted]:
            free[at] -= each
    return len(opened)
