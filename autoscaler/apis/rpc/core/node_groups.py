# SPDX-License-Identifier: Apache-2.0
"""
What cluster-autoscaler may know and do of our pools: the small world behind the CloudProvider server.

Values and a protocol; who keeps the machines is a provider's business. A command to grow stands in
`commanded`: cluster-autoscaler, run with --enforce-node-group-min-size, raises a group to its smallest size
in every loop, so a raised smallest size is an order.

Errors of a State, all of them:

    StateError           not done, and the message says why
      OutOfStockError    no machines to be had now
      UnreachableError   whether it was done is not known
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.model import Node


class NodeGroupError(Exception):
    """What was asked for is not done; nothing has changed."""


class NoStockError(NodeGroupError):
    """Nobody sells such a machine now."""


class OutcomeUnknownError(NodeGroupError):
    """The provider did not answer: it may have been done."""


class InstancePhase(Enum):
    """How far a machine has come."""

    UNKNOWN = auto()
    RUNNING = auto()
    CREATING = auto()
    DELETING = auto()


@dataclass(frozen=True, slots=True)
class GroupInstance:
    """One machine of a group, be it a node yet or not."""

    id: str
    """The node's `spec.providerID`, by which cluster-autoscaler finds it."""
    node: str = ""
    """The node's name; empty until it has registered."""
    standing: InstancePhase = InstancePhase.UNKNOWN
    trouble: str = ""
    """Why it will not come, for people; empty: nothing is wrong."""
    out_of_stock: bool = False


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """One pool as it is now."""

    name: str
    min_nodes: int = 0
    max_nodes: int = 1000
    target: int = 0
    instances: tuple[GroupInstance, ...] = ()
    template: Node | None = None
    """A fresh node; None: not known, nothing of this pool has been seen yet."""
    others: Mapping[str, str] = field(default_factory=_nothing, hash=False)
    """Further resources of a fresh node (`ephemeral-storage`, ...), which placement does not weigh."""
    commanded: int = 0
    """The size that our own loop wants it to reach."""

    @property
    def floor(self) -> int:
        """The smallest size that cluster-autoscaler is told."""
        return min(self.max_nodes, max(self.min_nodes, self.commanded))

    def find(self, provider_id: str, name: str) -> GroupInstance | None:
        """The machine of this id, else the one of this node's name."""
        if provider_id:
            found = next((one for one in self.instances if one.id == provider_id), None)
            if found is not None:
                return found
        # A machine that never came is handed back under its id as its name.
        return next((one for one in self.instances if name and name in (one.node, one.id)), None)


class NodeGroups(Protocol):
    """The pools as the server sees them. What it says comes from memory: it answers at once."""

    def groups(self) -> Sequence[NodeGroup]:
        """Every pool that cluster-autoscaler may scale, as last known."""

    async def refresh(self) -> None:
        """Look anew; StateError where that is impossible, and then what was known stays."""

    async def grow(self, group: str, by: int) -> None:
        """So many machines more; once it returns, the target has grown."""

    async def remove(self, group: str, instances: Sequence[GroupInstance]) -> None:
        """Give these back, all of them in this group; once it returns, the target is lower."""

    async def lower(self, group: str, by: int) -> None:
        """So many machines fewer of those that are ordered and have not come."""
