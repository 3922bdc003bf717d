# SPDX-License-Identifier: Apache-2.0
"""
Pools, waiting pods and what was done, as metric families.

Pure. The same families for a real cluster's autoscaler and for the embedded one; how they are
rendered and served is not known here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from isolation.contract import metrics
from isolation.contract.model import Why

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.metrics import Family
    from isolation.contract.reading import Frame

_KNOWN: Final = (*(why.value for why in Why), "scheduling")
"""Reasons of a refusal, and of a pod that the scheduler has not looked at yet."""
_OTHER: Final = "other"
"""For a reason outside the closed set, so that the label cannot grow without bound."""


def pool_families(frame: Frame) -> Iterator[Family]:
    """Sizes of pools, by the state of their nodes, and their limits."""
    states = Counter((node.pool, node.state) for node in frame.nodes)
    for pool in frame.pools:
        states.setdefault((pool.name, "ready"), 0)
        states[pool.name, "booting"] = pool.booting
    yield metrics.family(metrics.POOL_NODES, states.items())
    yield metrics.family(metrics.POOL_MIN_NODES, (((pool.name,), pool.min_nodes) for pool in frame.pools))
    yield metrics.family(metrics.POOL_MAX_NODES, (((pool.name,), pool.max_nodes) for pool in frame.pools))


def pending_families(frame: Frame) -> Iterator[Family]:
    """Pods that wait, by reason: 0 for the reasons that no pod has, because that is known."""
    reasons = Counter(dict.fromkeys(_KNOWN, 0))
    reasons.update(pod.why if pod.why in _KNOWN else _OTHER for pod in frame.waiting)
    yield metrics.family(metrics.PENDING_PODS, (((reason,), number) for reason, number in reasons.items()))
    longest = max((pod.seconds for pod in frame.waiting), default=0.0)
    yield metrics.family(metrics.PENDING_MAX_AGE, [((), longest)])
    yield metrics.family(metrics.PENDING_FRAGMENTED_PODS, [((), frame.fragmented)])


def event_families(frame: Frame) -> Iterator[Family]:
    """What has happened since the start, and the clock that it happened on."""
    yield metrics.family(
        metrics.AUTOSCALER_EVENTS,
        (((kind.replace(" ", "_").replace("-", "_"),), number) for kind, number in frame.counts),
    )
    yield metrics.family(metrics.SIMULATED_CLOCK, [((), frame.at)])


COLLECTORS: Final = {"pools": pool_families, "pending": pending_families, "events": event_families}
