# SPDX-License-Identifier: Apache-2.0
"""
What an embedded cluster is made of: pools with a provider's manners, and pods that will come.

Values only. Nothing here runs; `world` gives them a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.model import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.core.pools import Pool
    from isolation.contract.model import Node

_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class SupplyError(ValueError):
    """A fleet or a workload that cannot exist."""


@dataclass(frozen=True, slots=True)
class Supply:
    """One pool, and how its provider delivers."""

    pool: Pool
    boot_seconds: float = 40.0
    """From the request to a Ready kubelet."""
    max_device_registration_seconds: float = 5.0
    """From there until the cards are registered."""
    return_seconds: float = 10.0
    """From the deletion until the machine is gone."""
    stock: int | None = None
    """Most machines the provider has at one time; None: as many as the pool allows."""

    def __post_init__(self) -> None:
        if min(self.boot_seconds, self.max_device_registration_seconds, self.return_seconds, self.stock or 0) < 0:
            raise SupplyError(f"pool {self.pool.name}: delays and stock must not be negative")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pools, and the nodes that stand there at the start (`Node.pool` names a pool of the fleet)."""

    supplies: tuple[Supply, ...]
    nodes: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        pools = [supply.pool.name for supply in self.supplies]
        names = [node.name for node in self.nodes]
        for what, given in (("pool", pools), ("node", names)):
            double = sorted({name for name in given if given.count(name) > 1} if len(set(given)) < len(given) else ())
            if double:
                raise SupplyError(f"{what} {double[0]} is defined twice; give each {what} its own name")
        for node in self.nodes:
            if node.pool not in pools:
                raise SupplyError(f"node {node.name}: pool {node.pool!r} does not exist")


@dataclass(frozen=True, slots=True)
class Arrival:
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
    """Whether it may be moved; a pod without an owner never is, nobody would make it again."""
    excess: float | None = None
    """Share of its promise that it takes on top after a while; None: it keeps its promise."""
