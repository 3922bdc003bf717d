# SPDX-License-Identifier: Apache-2.0
"""
What every provider of machines can do, in one small interface, and the ways in which it can fail.

A provider knows machines and how many of them were asked for; it decides nothing. What a machine is worth
to pods, when one is bought and which one goes, is the loop's business. Every call ends: by an answer, by one
of the errors below, or by its deadline.

    ProviderError
      OutOfStockError    the provider said that it has none (or that the quota is used up): nothing was bought
      UnreachableError   no whole answer in time: whether it happened is unknown, read before the next try
      DeniedError        the provider said no: rights, bounds, a pool that is not there, settings that contradict
      ChangedError       somebody else changed the pool, or is still changing it: nothing was done, look again
      MissingError       the provider's SDK is not installed
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from isolation.contract.codec.template import NodeTemplate

READ_SECONDS: Final = 20.0
"""Deadline of one look at all pools of a provider."""
WRITE_SECONDS: Final = 20.0
"""Deadline of one change of one pool."""


class ProviderError(Exception):
    """Anything that keeps a provider from doing what was asked."""


class OutOfStockError(ProviderError):
    """The provider has no such machine now, or will not give more of them."""


class ProviderUnreachableError(ProviderError):
    """No whole answer in time; a change may or may not have happened."""


class DeniedError(ProviderError):
    """The provider said no; nothing happened, and asking again will not help."""


class ChangedError(ProviderError):
    """Another client changes the pool; nothing was done, and the next cycle decides again."""


class MissingError(ProviderError):
    """The provider needs software that is not installed."""


class InstanceState(StrEnum):
    """Where a machine stands by its provider's word."""

    COMING = "coming"
    """Asked for, found, booting."""
    RUNNING = "running"
    """Handed over; whether it is a usable node, only the cluster knows."""
    LEAVING = "leaving"
    """On its way back, or marked for it."""
    FAILED = "failed"
    """Will not become a node: to be removed."""


@dataclass(frozen=True, slots=True)
class ProviderInstance:
    """One machine."""

    id: str
    """`spec.providerID` of its node where the provider has given it one, else the provider's own name for it."""
    node: str = ""
    """Name of its node; empty: it is none yet, or the provider does not know."""
    state: InstanceState = InstanceState.RUNNING
    note: str = ""
    """What the provider says about it, for people."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool as its provider sees it now."""

    name: str
    target: int
    """How many machines are asked for, by anybody."""
    nodes: tuple[ProviderInstance, ...] = ()
    """Those that there are, leaving ones included; fewer than the target: the rest has not been found yet."""
    short: str = ""
    """Why what was asked for does not come (out of stock, quota, failing launches); empty: nothing is known of it."""
    min_nodes: int | None = None
    """The provider's own bounds, which it will not let anybody pass; None: it has none."""
    max_nodes: int | None = None
    ordered: int = 0
    """Of these targeted, so many that nobody has been asked for yet: orders that can be taken back (`Orders`)."""

    @property
    def standing(self) -> tuple[ProviderInstance, ...]:
        """Machines that count towards the target."""
        return tuple(one for one in self.nodes if one.state is not InstanceState.LEAVING)

    @property
    def missing(self) -> int:
        """Machines asked for of which there is no trace yet."""
        return max(0, self.target - len(self.standing))


class Provider(Protocol):
    """Pools of machines behind one kind of interface; each method keeps its own deadline."""

    @property
    def name(self) -> str:
        """The kind, as in the configuration."""

    async def pools(self) -> tuple[PoolState, ...]:
        """Every configured pool as it is now; an error if any of them is unknown."""

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """
        Ask for so many more; the new target.

        ChangedError, and nothing asked, where the target is not `seen` any more: somebody else has bought.
        """

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """
        Give back these machines and lower the target by as many; those that are leaving now.

        Named by node or by ID. One that leaves already is not counted again, so this may be repeated after a
        crash or an unknown outcome; one that the pool does not have is not touched and not in the answer.
        """

    async def cancel(self, pool: str, by: int) -> int:
        """Stop waiting for so many of the `missing` machines; the new target, never below what stands."""

    async def template(self, pool: str) -> NodeTemplate | None:
        """What a fresh node will look like by the provider's word; None where it cannot tell."""

    async def close(self) -> None:
        """Let connections go."""


@runtime_checkable
class Orders(Protocol):
    """A provider that orders of somebody else, who may not have come for the orders yet."""

    async def take_back(self, pool: str, by: int) -> int:
        """Forget so many orders that nobody has begun to carry out (`PoolState.ordered`); how many these were."""


@contextlib.asynccontextmanager
async def deadline(seconds: float, what: str) -> AsyncIterator[None]:
    """The whole of a call; beyond it nobody knows what happened."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ProviderUnreachableError(f"{what}: timed out after {seconds:.0f} s") from None


def raise_target(state: PoolState, by: int, seen: int | None, bound: str = "maximum") -> int:
    """
    The target with so many more.

    ChangedError where it is not `seen` any more; DeniedError beyond the provider's own bound, called `bound` there.
    """
    target = state.target + by
    if seen is not None and state.target != seen:
        raise ChangedError(f"{state.name}: the target size is {state.target}, not {seen}: another client changed it")
    if state.max_nodes is not None and target > state.max_nodes:
        raise DeniedError(f"{state.name}: target size {target} exceeds {bound} {state.max_nodes}; raise it")
    return target
