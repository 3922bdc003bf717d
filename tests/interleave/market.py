# SPDX-License-Identifier: Apache-2.0
"""
Two pools in memory, as a provider: machines boot, are out of stock, come late; every purchase is shown to a judge.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from autoscaler.providers.base import ChangedError, InstanceState, PoolState, ProviderInstance

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

    from interleave.loop import VirtualLoop

NO_STOCK: Final = "InsufficientInstanceCapacity: no machine of this type is to be had"


@dataclass(slots=True)
class Shelf:
    """One pool: who is asked for and who stands."""

    target: int = 0
    machines: dict[str, bool] = field(default_factory=dict)
    """By ID, whether its node is up."""
    stock: int | None = None
    """How many may stand; None: any number."""
    made: int = 0


class Market:
    """See the module; `bought(pool, by)` is called at each purchase, `up` and `gone` for nodes."""

    name = "memory"

    def __init__(self, loop: VirtualLoop, draw: random.Random, pools: Collection[str]) -> None:
        self._loop, self._draw = loop, draw
        self.shelves = {name: Shelf() for name in pools}
        self.bought: Callable[[str, int], None] = lambda _pool, _by: None
        self.up: Callable[[str, str], None] = lambda _pool, _name: None
        self.gone: Callable[[str], None] = lambda _name: None

    async def pools(self) -> tuple[PoolState, ...]:
        """As a provider."""
        await asyncio.sleep(self._draw.random() * 0.2)
        return tuple(self._state(name, shelf) for name, shelf in self.shelves.items())

    def _state(self, name: str, shelf: Shelf) -> PoolState:
        found = []
        for ident, is_up in shelf.machines.items():
            state = InstanceState.RUNNING if is_up else InstanceState.COMING
            found.append(ProviderInstance(ident, ident.rpartition("/")[2] if is_up else "", state))
        short = NO_STOCK if shelf.stock is not None and shelf.target > len(shelf.machines) else ""
        return PoolState(name, shelf.target, tuple(found), short)

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """The target rises at once, machines follow."""
        await asyncio.sleep(self._draw.random() * 0.5)
        shelf = self.shelves[pool]
        if seen is not None and seen != shelf.target:
            raise ChangedError(f"{pool}: {shelf.target}, not {seen}")
        shelf.target += by
        self.bought(pool, by)
        self.fill(pool)
        return shelf.target

    def fill(self, pool: str) -> None:
        """Make what is asked for and to be had."""
        shelf = self.shelves[pool]
        most = shelf.target if shelf.stock is None else min(shelf.target, shelf.stock)
        while len(shelf.machines) < most:
            shelf.made += 1
            ident = f"sim://zone/{pool}-{shelf.made}"
            shelf.machines[ident] = False
            self._loop.later(self._draw.uniform(20.0, 120.0), self._boot, pool, ident)

    def _boot(self, pool: str, ident: str) -> None:
        if ident in self.shelves[pool].machines:
            self.shelves[pool].machines[ident] = True
            self.up(pool, ident)

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """At once."""
        await asyncio.sleep(self._draw.random() * 0.5)
        shelf, gone = self.shelves[pool], []
        for ident in list(shelf.machines):
            node = ident.rpartition("/")[2]
            asked = {ident, node} & set(names)
            if asked:
                del shelf.machines[ident]
                shelf.target -= 1
                self.gone(node)
                gone += asked
        return tuple(gone)

    async def cancel(self, pool: str, by: int) -> int:
        """Of those that are missing only."""
        await asyncio.sleep(self._draw.random() * 0.5)
        shelf = self.shelves[pool]
        shelf.target -= min(by, shelf.target - len(shelf.machines))
        return shelf.target

    async def template(self, _pool: str) -> None:
        """Cannot tell."""

    async def close(self) -> None:
        """Nothing is open."""
