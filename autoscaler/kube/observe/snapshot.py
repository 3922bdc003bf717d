# SPDX-License-Identifier: Apache-2.0
"""
One consistent copy of everything that was read, so that a thread may reason about it while the watches go on writing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autoscaler.core.rightsizing.recommend import EvidencePolicy
from isolation.contract.codec.recommendations import Recommended
from isolation.contract.names import SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey
    from autoscaler.kube.annotations import NodeNote, PodNote
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.watches import PodBudget, StoredReservation
    from autoscaler.providers.base import PoolState, ProviderError
    from isolation.kube.store import StoreView


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Everything of one moment, copied from what goes on changing."""

    at: float
    view: StoreView
    node_notes: Mapping[str, NodeNote]
    """By name."""
    pod_notes: Mapping[str, PodNote]
    """By UID."""
    reservations: Mapping[str, StoredReservation]
    budgets: Sequence[PodBudget]
    states: Mapping[str, PoolState]
    failed: Mapping[str, ProviderError]
    measured: Measured
    dry: Mapping[str, str] = field(default_factory=dict)
    """Pools whose provider would not sell when it was last asked, and what it said."""
    irremovable: Mapping[str, str] = field(default_factory=dict)
    """Drained nodes that were not removed, and what the API server said against it."""
    held_still: str = ""
    """Why nothing may be moved now; empty: it may."""
    schedulers: frozenset[str] = frozenset({SCHEDULER})
    """Those that honour reservations."""
    histories: Mapping[ProgramKey, ProgramHistory] = field(default_factory=dict)
    """What programs have used, for right-sizing."""
    policy: EvidencePolicy = field(default_factory=EvidencePolicy)
    recommended: Recommended = field(default_factory=Recommended)
    """What admission applies to new pods."""
