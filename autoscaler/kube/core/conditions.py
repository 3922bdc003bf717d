# SPDX-License-Identifier: Apache-2.0
"""
Why nothing, or not everything, may be done now: what the autoscaler does not know, or may not touch.

Values only. A condition that blocks stops the whole turn; any other stops what rests on it and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConditionKind(StrEnum):
    """A closed set: it is a metric's label."""

    NOT_READ = "not_synced"
    """The cluster has not been read yet, or its last word is too old."""
    UNREADY = "unready_nodes"
    """More than a third of the nodes are not well: the fault is not theirs."""
    PROVIDER = "provider"
    """A pool's provider cannot tell, or would not do what was asked."""
    FIGURES = "metrics"
    """Exporters that cannot be reached, or whose figures are old: no hot card is relieved there."""
    CLOCK = "clock"
    """The wall clock was set: times written into objects would be wrong, so nothing is moved."""
    CONFLICT = "conflict"
    """Somebody else changed what was to be changed."""
    EVICTION = "eviction"
    """The API server failed at an eviction (such as two budgets on one pod): nothing is evicted for a while."""
    LOST = "lost"
    """Nodes that were usable and are not, or that somebody else takes out of service: left alone."""
    UNMODELLED = "unsupported"
    """Pods with constraints that are not understood: not bought for, not moved."""
    TEMPLATE = "unknown_template"
    """A pool of which nobody knows what a fresh node looks like: it cannot grow."""
    LIMITS = "limits"
    """A fleet-wide limit is reached: no more nodes are bought, or removed, than it allows."""
    UNREADABLE = "unreadable"
    """Objects that cannot be read."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One reason."""

    kind: ConditionKind
    text: str
    """For people: what it is, and what it keeps from being done."""
    blocks: bool = False
    """Whether nothing at all may be done."""
    pool: str = ""
    node: str = ""


class ConditionError(Exception):
    """There is no reading that one may act on; `conditions` says why."""

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        self.conditions = conditions
        super().__init__("; ".join(condition.text for condition in conditions if condition.blocks))
