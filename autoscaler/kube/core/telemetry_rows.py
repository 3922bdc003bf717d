# SPDX-License-Identifier: Apache-2.0
"""
One cycle's observation as gauges: pools, pending pods and moves.

Pure. What is unknown is absent, never 0; a kind that is closed (reasons, conditions, states) shows its zeros,
because that nobody has such a one is known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.lifecycle import MachineState
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler as catalogue
from isolation.contract.model import Why

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.apis.metrics.core.readings import MetricsSnapshot
    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.metrics import MetricSpec
    from isolation.contract.model import Refusal

    Labels = tuple[str, ...]
    Rows = dict[MetricSpec, Mapping[Labels, float]]

_STATES: Final = tuple(state for state in MachineState if state is not MachineState.GONE)
SCHEDULING: Final = "scheduling"
"""Of a pod for which there is room: the scheduler has not looked at it yet."""
UNMODELLED: Final = "unsupported"
"""Of a pod with constraints that are not understood."""
_NONE: Final = ()


@dataclass(frozen=True, slots=True)
class TelemetryReading:
    """What is shown of one turn."""

    seen: Observation
    memory: AutoscalerState
    limits: ScalingLimits
    picture: MetricsSnapshot
    targets: Mapping[str, int] = field(default_factory=dict)
    """Machines requested from each pool's provider, where known."""
    unknown: frozenset[str] = frozenset()
    """Pools of which nobody knows what a fresh node is like."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """By UID: why nothing is bought for a waiting pod whatever it asks."""
    left: int | None = None
    """Moves that the hour still has."""


def rows_of(reading: TelemetryReading) -> Rows:
    """Every gauge that a whole reading has."""
    return {**_pools(reading), **_pending(reading), **_moves(reading)}


def _pools(reading: TelemetryReading) -> Rows:
    seen, rests = reading.seen, reading.memory.backoffs
    states = Counter((machine.pool, machine.state) for machine in seen.machines.values() if machine.pool)
    names = sorted(seen.pools)
    known = {**dict.fromkeys(names, 1.0), **dict.fromkeys(reading.unknown, 0.0)}
    rooms = reading.picture.pools
    return {
        metrics.POOL_NODES: {(pool, state.value): float(states[pool, state]) for pool in names for state in _STATES},
        metrics.POOL_MIN_NODES: {(name,): float(seen.pools[name].min_nodes) for name in names},
        metrics.POOL_MAX_NODES: {(name,): float(seen.pools[name].max_nodes) for name in names},
        catalogue.POOL_TARGET_NODES: {(name,): float(target) for name, target in reading.targets.items()},
        catalogue.POOL_BACKOFF: {
            (name,): max(0.0, rests[name].until - seen.at) if name in rests else 0.0 for name in names
        },
        catalogue.POOL_NODE_PRICE: {(name,): seen.pools[name].price for name in names},
        catalogue.POOL_NODE_TEMPLATE_KNOWN: {(name,): known[name] for name in sorted(known)},
        catalogue.POOL_LARGEST_FREE: {(room.pool,): float(room.largest_free_bytes) for room in rooms},
        catalogue.POOL_IDLE_CARDS: {(room.pool,): room.idle_cards for room in rooms},
        catalogue.POOL_STRANDED_CARDS: {(room.pool,): room.lost_cards for room in rooms},
    }


def why_of(reading: TelemetryReading, uid: str) -> tuple[str, str]:
    """Why a pod waits: the code for programs, and the sentence for people."""
    if uid in reading.unanswered:
        return UNMODELLED, reading.unanswered[uid]
    want = reading.memory.demand
    refusal: Refusal | None = None
    if want is not None:
        refusal = want.unplaceable.get(uid) or want.capped.get(uid) or want.refusals.get(uid)
    if refusal is None:
        return SCHEDULING, "a node has room; waiting for the scheduler"
    return refusal.why.value, refusal.reason


def answer_of(reading: TelemetryReading, uid: str) -> str:
    """The decision on a pending pod, as the label `answer` has it."""
    want = reading.memory.demand
    if uid in reading.unanswered:
        return "unsupported"
    if want is None or uid in want.fits:
        return "fits"
    if uid in want.unplaceable:
        return "unsatisfiable"
    if uid in want.capped:
        return "pool_limited"
    return "drain_cancelled" if any(uid == pod.uid for pods in want.keep.values() for pod in pods) else "nominated"


def _pending(reading: TelemetryReading) -> Rows:
    seen = reading.seen
    reasons = Counter(dict.fromkeys((*(why.value for why in Why), SCHEDULING, UNMODELLED), 0))
    reasons.update(why_of(reading, pod.uid)[0] for pod in seen.pending)
    answers = Counter(
        dict.fromkeys(("fits", "nominated", "drain_cancelled", "pool_limited", "unsatisfiable", "unsupported"), 0)
    )
    answers.update(answer_of(reading, pod.uid) for pod in seen.pending)
    longest = max((seen.at - pod.created for pod in seen.pending), default=0.0)
    return {
        metrics.PENDING_PODS: {(reason,): float(number) for reason, number in reasons.items()},
        metrics.PENDING_MAX_AGE: {_NONE: max(0.0, longest)},
        metrics.PENDING_FRAGMENTED_PODS: {_NONE: float(len(find_fragmented(seen, seen.pending)))},
        catalogue.PENDING_PODS: {(answer,): float(number) for answer, number in answers.items()},
        catalogue.PENDING_MEMORY: {(one.namespace, one.pool): float(one.bytes) for one in reading.picture.waiting},
    }


def _moves(reading: TelemetryReading) -> Rows:
    seen, memory = reading.seen, reading.memory
    idle = sum(room.idle_cards for room in reading.picture.pools)
    lost = sum(room.lost_cards for room in reading.picture.pools)
    rows: Rows = {
        catalogue.RESERVATIONS: {_NONE: float(len(seen.reserved))},
        catalogue.MOVES_LAST_HOUR: {_NONE: float(sum(1 for at in memory.moves if 0 <= seen.at - at < 3600))},  # noqa: PLR2004 (an hour)
        catalogue.DEFRAGMENTING: {_NONE: float(memory.defragmenting)},
        catalogue.HOT_CARDS: {_NONE: float(len(memory.hot))},
        catalogue.RIGHT_SIZING_TRIALS: {_NONE: float(len(memory.trials.trials))},
        catalogue.RIGHT_SIZING_RESERVED: {_NONE: float(sum(one.freed_bytes for one in memory.trials.trials.values()))},
    }
    if reading.left is not None:
        rows[catalogue.MOVE_BUDGET_REMAINING] = {_NONE: float(reading.left)}
    if idle > 0:
        rows[catalogue.FRAGMENTATION] = {_NONE: min(1.0, lost / idle)}
    return rows
