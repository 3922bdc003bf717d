"""
Alerts about pods that wait: for how long, why, and whether anything could ever help them.

Pure. The autoscaler tells reasons; where there is none the scheduler's own count speaks.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import total
from dashboards.rules.rule import Alert, Group, Severity, of, one
from dashboards.rules.words import COUNT, WHILE
from isolation.contract import metrics, metrics_autoscaler, metrics_scheduler

_HOPELESS: Final = of(metrics_autoscaler.ANSWERS, one("answer", "hopeless"))

GROUP: Final = Group(
    "gpushare.demand",
    "Pods that wait for a place on shared cards.",
    (
        Alert(
            "GpusharePodsPending",
            f"max by (reason) ({of(metrics.PENDING)}) > 0",
            Severity.WARNING,
            "Pods wait for shared cards ({{ $labels.reason }})",
            f"Pods without a place for the reason {{{{ $labels.reason }}}}: {COUNT}. There have been some for 15 "
            "minutes.",
            patience="15m",
        ),
        Alert(
            "GpusharePodWaitsLong",
            f"max by (job) ({of(metrics.PENDING_LONGEST)}) > 3600",
            Severity.WARNING,
            "A pod has waited for shared cards for an hour",
            f"The pod that has waited longest has done so for {WHILE}.",
            patience="1m",
        ),
        Alert(
            "GpusharePodsWaiting",
            f"max by (job) ({of(metrics_scheduler.WAITING)}) > 0\nunless on ()\n{of(metrics.PENDING)}",
            Severity.WARNING,
            "Pods wait for shared cards",
            f"Pods that were refused a place: {COUNT}. There have been some for 15 minutes; no autoscaler tells why.",
            patience="15m",
        ),
        Alert(
            "GpusharePhantomPods",
            f"max by (job) ({of(metrics.PHANTOMS)}) > 0",
            Severity.WARNING,
            "Pods wait although sums over cards have room for them",
            f"Pods that fit some node by the sum over its cards and no card set of it: {COUNT}. The room is in pieces.",
            patience="15m",
        ),
        Alert(
            "GpusharePodsHopeless",
            f"max by (job) ({_HOPELESS}) > 0",
            Severity.WARNING,
            "Pods wait that no pool could ever host",
            f"Pods that ask for what no card of any pool has, however many nodes are bought: {COUNT}.",
            patience="5m",
        ),
        Alert(
            "GpushareMemoryWanted",
            f"{total(f'max by (namespace, pool) ({of(metrics_autoscaler.PENDING_BYTES)})', 'namespace')} > 0",
            Severity.INFO,
            "Namespace {{ $labels.namespace }} waits for GPU memory",
            "Pods of {{ $labels.namespace }} have waited for {{ $value | humanize1024 }}B of shared cards for half an "
            "hour.",
            patience="30m",
        ),
    ),
)
