# SPDX-License-Identifier: Apache-2.0
"""
Alerts about the autoscaler: one that does nothing and does not say so, and what keeps it from acting.

Pure. Standing still on bad knowledge is right for a while; for long it is an alert.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules.phrases import COUNT, DAY, TARGET, WHILE
from dashboards.rules.rule import (
    AUTOSCALER_JOB,
    Alert,
    RuleGroup,
    Severity,
    absent,
    grew,
    of,
    one,
    seen,
    task_unhealthy,
)
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler, scheduler

_NOW: Final = "max by (job)"
_EACH: Final = "sum by (job, instance)"
_POOL: Final = "max by (pool)"
_TURNS: Final = of(autoscaler.CYCLES)
_FAILED: Final = of(autoscaler.CYCLES, one("outcome", "failed"))
_LEFT: Final = f"({of(autoscaler.CERTIFICATE_EXPIRY)} - time())"
_WASTE_GIB: Final = 16
"""The memory of a small card."""
_CAPPED: Final = of(autoscaler.PENDING_PODS, one("status", "pool_limited"))

GROUP: Final = RuleGroup(
    "gpushare.autoscaler",
    "The autoscaler, its pools and their providers.",
    (
        Alert(
            "GpushareAutoscalerAbsent",
            absent(AUTOSCALER_JOB, seen(AUTOSCALER_JOB)),
            Severity.WARNING,
            "No gpushare autoscaler is up",
            f"No target of job {AUTOSCALER_JOB} is up, but some were within the last day. Pools are not scaled and "
            "cards are not defragmented.",
            patience="5m",
        ),
        Alert(
            "GpushareAutoscalerNoLeader",
            f"{_NOW} ({of(autoscaler.LEADER)}) == 0",
            Severity.WARNING,
            "The gpushare autoscaler has no leader",
            "There has been no leader for five minutes. Pools are not scaled and no pod is moved.",
            patience="5m",
        ),
        Alert(
            "GpushareAutoscalerStuck",
            # Those that only stand by take turns too, and would hide that the one that leads takes none.
            f"(time() - {_NOW} "
            f"({of(autoscaler.LAST_CYCLE)} and on (job, instance) {of(autoscaler.LEADER)} == 1)) > 300",
            Severity.WARNING,
            "The gpushare autoscaler is stuck",
            f"The leader completed its last cycle {WHILE} ago. A cycle takes a few seconds.",
            patience="1m",
        ),
        Alert(
            "GpushareAutoscalerFailing",
            # Of each replica by itself: turns of those that stand by say nothing about the one that leads.
            f"{_EACH} (increase({_FAILED}[10m]))\n/\n{_EACH} (increase({_TURNS}[10m]))\n> 0.5",
            Severity.WARNING,
            f"Most cycles of the autoscaler at {TARGET} fail",
            "{{ $value | humanizePercentage }} of its cycles within 10 minutes failed. Its log has the errors.",
            patience="5m",
        ),
        task_unhealthy("GpushareAutoscalerTaskUnhealthy", autoscaler.TASK_HEALTHY, "autoscaler"),
        Alert(
            "GpushareAutoscalerInhibited",
            f"max by (reason) ({of(autoscaler.INHIBITED)}) > 0",
            Severity.WARNING,
            "The gpushare autoscaler is inhibited ({{ $labels.reason }})",
            f"Conditions with reason {{{{ $labels.reason }}}} (now {COUNT}) have prevented some or all actions for 15 "
            "minutes.",
            patience="15m",
        ),
        Alert(
            "GpushareAutoscalerDisabled",
            f"{_NOW} ({of(autoscaler.ENABLED)}) == 0",
            Severity.INFO,
            "The gpushare autoscaler is switched off",
            "The switch of the autoscaler has been off or unreadable for an hour. The autoscaler takes no action.",
            patience="1h",
        ),
        Alert(
            "GpushareAutoscalerHandoverStuck",
            # What the scheduler knows of the pools stays when the autoscaler and its own metrics are gone.
            f"max({of(scheduler.HANDED_OVER_POOLS)}) > 0\nunless on ()\n"
            f"(time() - max({of(autoscaler.LAST_CYCLE)} and on (job, instance) "
            f"{of(autoscaler.LEADER)} == 1 and on (job, instance) {of(autoscaler.ENABLED)} == 1)) < 600",
            Severity.CRITICAL,
            "Node pools are handed over to the gpushare autoscaler, which does nothing",
            f"Pools that are handed over to it: {COUNT}. No leader of the gpushare autoscaler has "
            "completed a cycle for over 15 minutes, so nothing adds nodes for their pending pods or drains their "
            "nodes. Bring the autoscaler back, or run `gpushare autoscaler hand-back`.",
            patience="15m",
        ),
        Alert(
            "GpushareAutoscalerWatchStale",
            f"{of(autoscaler.WATCH_STALENESS)} > 120",
            Severity.WARNING,
            f"The autoscaler at {TARGET} receives nothing about {{{{ $labels.resource }}}}",
            f"{TARGET} has received nothing from the API server about {{{{ $labels.resource }}}} for {WHILE}. A "
            "healthy watch is below 90 s.",
            patience="1m",
        ),
        Alert(
            "GpushareAutoscalerConfigReloadFailed",
            f"{of(autoscaler.CONFIG_RELOAD_SUCCESSFUL)} == 0",
            Severity.WARNING,
            f"The configuration of the autoscaler at {TARGET} is invalid",
            "The autoscaler uses the previous configuration until it restarts. Then it has none: it does nothing, and "
            "the metrics APIs answer 503. The log lists the errors.",
            patience="2m",
        ),
        Alert(
            "GpushareAutoscalerCertificateExpiring",
            f"{_LEFT} < {14 * DAY} >= {2 * DAY}",
            Severity.WARNING,
            f"A certificate of the autoscaler at {TARGET} expires soon ({{{{ $labels.listener }}}})",
            f"The certificate of the {{{{ $labels.listener }}}} port expires in {WHILE} "
            "and has not been renewed. After it expires, clients refuse to connect: no metrics for "
            "HorizontalPodAutoscalers (metrics_api), no metrics for KEDA and no nodes for cluster-autoscaler (grpc).",
            patience="1h",
        ),
        Alert(
            "GpushareAutoscalerCertificateExpiresInTwoDays",
            f"{_LEFT} < {2 * DAY}",
            Severity.CRITICAL,
            f"A certificate of the autoscaler at {TARGET} expires within two days ({{{{ $labels.listener }}}})",
            f"The certificate of the {{{{ $labels.listener }}}} port is valid for another {WHILE} (negative: expired). "
            "After it expires, clients refuse to connect.",
            patience="5m",
        ),
        Alert(
            "GpushareAutoscalerFlapping",
            grew(of(autoscaler.FLAPS), "1h"),
            Severity.WARNING,
            "The autoscaler reverses its own actions in pool {{ $labels.pool }}",
            f"Actions in pool {{{{ $labels.pool }}}} that the autoscaler reversed within an hour: {COUNT}. Either this "
            "is a bug or something else changes the pool.",
        ),
        Alert(
            "GpushareAutoscalerProviderFailing",
            f"max by (pool, provider) ({of(autoscaler.PROVIDER_UP)}) == 0",
            Severity.WARNING,
            "The provider of pool {{ $labels.pool }} does not answer",
            "The {{ $labels.provider }} provider of pool {{ $labels.pool }} has not answered for five minutes. The "
            "pool is not scaled.",
            patience="5m",
        ),
        Alert(
            "GpusharePoolOutOfStock",
            # Between two rests it is 0 for a moment.
            f"{_POOL} (max_over_time({of(autoscaler.POOL_BACKOFF)}[5m])) > 0",
            Severity.WARNING,
            "Pool {{ $labels.pool }} is out of stock",
            "The autoscaler has requested no nodes from pool {{ $labels.pool }} for 10 minutes because the pool could "
            "not deliver. The longest backoff within five minutes was {{ $value | humanizeDuration }}.",
            patience="10m",
        ),
        Alert(
            "GpusharePoolMaxSizeBlocksScaleUp",
            f"{_POOL} ({of(autoscaler.POOL_TARGET_NODES)}) >= {_POOL} ({of(metrics.POOL_MAX_NODES)})\n"
            f"and on ()\nmax({_CAPPED}) > 0",
            Severity.WARNING,
            "Pool {{ $labels.pool }} has reached its maximum size",
            f"Pool {{{{ $labels.pool }}}} has {COUNT} nodes, its maximum. Pods are pending that a pool could host if "
            "its maximum were larger.",
            patience="10m",
        ),
        Alert(
            "GpushareWorkloadMemoryWasted",
            f"sum by (namespace, owner) (max by (namespace, owner, container, model) "
            f"({of(autoscaler.RECOMMENDED_FREED)})) > {_WASTE_GIB} * 1024^3",
            Severity.INFO,
            "{{ $labels.owner }} of {{ $labels.namespace }} is promised far more GPU memory than it needs",
            "{{ $value | humanize1024 }}B of promised GPU memory would come back if the running containers of "
            "{{ $labels.owner }} in {{ $labels.namespace }} had the recommended memory. It has been so for a day.",
            patience="1d",
        ),
        Alert(
            "GpusharePoolNodeTemplateUnknown",
            f"{_POOL} ({of(autoscaler.POOL_NODE_TEMPLATE_KNOWN)}) == 0",
            Severity.INFO,
            "The node profile of pool {{ $labels.pool }} is unknown",
            "Pool {{ $labels.pool }} cannot be scaled up: none of its nodes has been observed and no profile is "
            "configured.",
            patience="15m",
        ),
    ),
)
