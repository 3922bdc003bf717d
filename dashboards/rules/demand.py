# SPDX-License-Identifier: Apache-2.0
"""
Alerts about pods that wait: for how long, why, and whether anything could ever help them.

Pure. The autoscaler tells reasons; where there is none the scheduler's own count speaks.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import total
from dashboards.rules.phrases import COUNT, WHILE
from dashboards.rules.rule import Alert, RuleGroup, Severity, of, one
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler, scheduler

_HOPELESS: Final = of(autoscaler.PENDING_PODS, one("status", "unsatisfiable"))

GROUP: Final = RuleGroup(
    "gpushare.demand",
    "Pending pods that request shared cards.",
    (
        Alert(
            "GpusharePodsPending",
            f"max by (reason) ({of(metrics.PENDING_PODS)}) > 0",
            Severity.WARNING,
            "Pods are pending for shared cards ({{ $labels.reason }})",
            f"Pending pods with reason {{{{ $labels.reason }}}}: {COUNT}. There have been some for 15 minutes.",
            patience="15m",
        ),
        Alert(
            "GpusharePodPendingTooLong",
            f"max by (job) ({of(metrics.PENDING_MAX_AGE)}) > 3600",
            Severity.WARNING,
            "A pod has been pending for shared cards for more than an hour",
            f"The longest-waiting pod has been pending for {WHILE}.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerPodsPending",
            f"max by (job) ({of(scheduler.PENDING_PODS)}) > 0\nunless on ()\n{of(metrics.PENDING_PODS)}",
            Severity.WARNING,
            "Pods are pending for shared cards",
            f"Pods that the scheduler could not place: {COUNT}. There have been some for 15 minutes. No autoscaler "
            "reports the reason.",
            patience="15m",
        ),
        Alert(
            "GpusharePodsPendingFragmented",
            f"max by (job) ({of(metrics.PENDING_FRAGMENTED_PODS)}) > 0",
            Severity.WARNING,
            "Pods are pending although a node has enough GPU memory in total",
            f"Pending pods that fit a node by the sum of its cards but not by single cards: {COUNT}. The free memory "
            "is fragmented.",
            patience="15m",
        ),
        Alert(
            "GpusharePodsUnsatisfiable",
            f"max by (job) ({_HOPELESS}) > 0",
            Severity.WARNING,
            "Pods are pending that no pool can host",
            f"Pending pods that no pool can host, because of their memory, mode, zone or labels: {COUNT}. More nodes "
            "do not help.",
            patience="5m",
        ),
        Alert(
            "GpushareNamespaceMemoryPending",
            f"{total(f'max by (namespace, pool) ({of(autoscaler.PENDING_MEMORY)})', 'namespace')} > 0",
            Severity.INFO,
            "Namespace {{ $labels.namespace }} waits for GPU memory",
            "Pods of {{ $labels.namespace }} that request {{ $value | humanize1024 }}B of shared GPU memory in total "
            "have been pending for half an hour.",
            patience="30m",
        ),
    ),
)
