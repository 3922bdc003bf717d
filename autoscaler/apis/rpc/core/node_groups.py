# SPDX-License-Identifier: Apache-2.0
"""
Node groups: what cluster-autoscaler may know of the pools and do with them, behind the CloudProvider server.

Values and a protocol. An order to grow is in `commanded`: cluster-autoscaler, run with --enforce-node-group-min-size,
raises a group to its minimum size in every loop, so a raised minimum size is an order.

All errors of NodeGroups:

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
    """Not done; nothing has changed."""


class NoStockError(NodeGroupError):
    """The provider has no such machine now."""


class OutcomeUnknownError(NodeGroupError):
    """The provider did not answer: it may have been done."""


class InstancePhase(Enum):
    """The phase of a machine's life."""

    UNKNOWN = auto()
    RUNNING = auto()
    CREATING = auto()
    DELETING = auto()


@dataclass(frozen=True, slots=True)
class GroupInstance:
    """One machine of a group, whether it is a node yet or not."""

    id: str
    """The node's `spec.providerID`, by which cluster-autoscaler finds it."""
    node: str = ""
    """The node's name; empty until it has registered."""
    standing: InstancePhase = InstancePhase.UNKNOWN
    trouble: str = ""
    """Why it failed, for people; empty: it did not."""
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
    """A new node; None: unknown, no node of this pool has been seen yet."""
    others: Mapping[str, str] = field(default_factory=_nothing, hash=False)
    """Further resources of a fresh node (`ephemeral-storage`, ...), which placement does not weigh."""
    commanded: int = 0
    """The size that our own loop wants it to reach."""

    @property
    def floor(self) -> int:
        """The minimum size that cluster-autoscaler gets."""
        return min(self.max_nodes, max(self.min_nodes, self.commanded))

    def find(self, provider_id: str, name: str) -> GroupInstance | None:
        """The machine of this id, else the one of this node's name."""
        if provider_id:
            found = next((instance for instance in self.instances if instance.id == provider_id), None)
            if found is not None:
                return found
        # a machine that never came is deleted under its ID as its name
        return next((instance for instance in self.instances if name and name in (instance.node, instance.id)), None)


class NodeGroups(Protocol):
    """The groups that the server serves; `groups` reads memory only."""

    def groups(self) -> Sequence[NodeGroup]:
        """Every pool that cluster-autoscaler may scale, as last known."""

    async def refresh(self) -> None:
        """Read the groups again; StateError where that fails, and then what was known stays."""

    async def grow(self, group: str, by: int) -> None:
        """So many machines more; once it returns, the target has grown."""

    async def remove(self, group: str, instances: Sequence[GroupInstance]) -> None:
        """Give these back, all of them in this group; once it returns, the target is lower."""

    async def lower(self, group: str, by: int) -> None:
        """So many machines fewer of those that are ordered and have not come."""
