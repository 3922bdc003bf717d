"""
Alerts about the autoscaler: one that does nothing and does not say so, and what keeps it from acting.

Pure. Standing still on bad knowledge is right for a while; for long it is an alert.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules.rule import AUTOSCALER_JOB, Alert, Group, Severity, gone, grew, of, one
from dashboards.rules.words import COUNT, DAY, TARGET, WHILE
from isolation.contract import metrics, metrics_autoscaler

_NOW: Final = "max by (job)"
_EACH: Final = "sum by (job, instance)"
_POOL: Final = "max by (pool)"
_TURNS: Final = of(metrics_autoscaler.TURNS)
_FAILED: Final = of(metrics_autoscaler.TURNS, one("outcome", "failed"))
_CAPPED: Final = of(metrics_autoscaler.ANSWERS, one("answer", "capped"))

GROUP: Final = Group(
    "gpushare.autoscaler",
    "The autoscaler, its pools and their providers.",
    (
        Alert(
            "GpushareAutoscalerAbsent",
            gone(AUTOSCALER_JOB),
            Severity.WARNING,
            "No gpushare autoscaler is reached",
            f"Prometheus reaches no target of job {AUTOSCALER_JOB}, of which there were some within the last day: "
            "pools neither grow nor shrink, and nothing is defragmented.",
            patience="5m",
        ),
        Alert(
            "GpushareAutoscalerLeaderless",
            f"{_NOW} ({of(metrics_autoscaler.LEADS)}) == 0",
            Severity.WARNING,
            "No replica of the gpushare autoscaler leads",
            "For five minutes no replica has had the right to act.",
            patience="5m",
        ),
        Alert(
            "GpushareAutoscalerStuck",
            # Those that only stand by take turns too, and would hide that the one that leads takes none.
            f"(time() - {_NOW} ({of(metrics_autoscaler.LAST_TURN)} and on (job, instance) "
            f"{of(metrics_autoscaler.LEADS)} == 1)) > 300",
            Severity.WARNING,
            "The gpushare autoscaler is stuck",
            f"The last whole turn of the replica that leads ended {WHILE} ago; a turn takes some seconds.",
            patience="1m",
        ),
        Alert(
            "GpushareAutoscalerFailing",
            # Of each replica by itself: turns of those that stand by say nothing about the one that leads.
            f"{_EACH} (increase({_FAILED}[10m]))\n/\n{_EACH} (increase({_TURNS}[10m]))\n> 0.5",
            Severity.WARNING,
            f"Most turns of the autoscaler at {TARGET} fail",
            "{{ $value | humanizePercentage }} of its turns within 10 minutes failed; its log says why.",
            patience="5m",
        ),
        Alert(
            "GpushareAutoscalerWithholds",
            f"max by (reason) ({of(metrics_autoscaler.DOUBTS)}) > 0",
            Severity.WARNING,
            "The gpushare autoscaler acts on nothing it is not sure of ({{ $labels.reason }})",
            f"For 15 minutes doubts of kind {{{{ $labels.reason }}}} (now {COUNT}) have kept it from some or all of "
            "its steps.",
            patience="15m",
        ),
        Alert(
            "GpushareAutoscalerSwitchedOff",
            f"{_NOW} ({of(metrics_autoscaler.ENABLED)}) == 0",
            Severity.INFO,
            "The gpushare autoscaler is switched off",
            "Its switch has been off, or could not be read, for an hour: it does nothing.",
            patience="1h",
        ),
        Alert(
            "GpushareAutoscalerViewOld",
            f"{of(metrics_autoscaler.VIEW_AGE)} > 120",
            Severity.WARNING,
            f"The autoscaler at {TARGET} does not hear of {{{{ $labels.watch }}}}",
            f"For {WHILE} the API server has told {TARGET} nothing about {{{{ $labels.watch }}}}; a healthy watch is "
            "below 90 s.",
            patience="1m",
        ),
        Alert(
            "GpushareAutoscalerConfigRefused",
            f"{of(metrics_autoscaler.CONFIG_REFUSED)} == 1",
            Severity.WARNING,
            f"The configuration of the autoscaler at {TARGET} cannot be used",
            "The file says something that cannot be used; the one before it stays in force. The log says what is "
            "wrong with it.",
            patience="2m",
        ),
        Alert(
            "GpushareAutoscalerCertificateEnding",
            f"({of(metrics_autoscaler.CERTIFICATE_ENDS)} - time()) < {14 * DAY}",
            Severity.WARNING,
            f"A certificate of the autoscaler at {TARGET} ends soon ({{{{ $labels.door }}}})",
            f"The certificate that its port {{{{ $labels.door }}}} shows is valid for another {WHILE} (below 0: it has "
            "ended) and has not been renewed. Once it has ended nobody believes what is told there: no figures for "
            "HorizontalPodAutoscalers (metrics_api), none for KEDA and no nodes for cluster-autoscaler (grpc).",
            patience="1h",
        ),
        Alert(
            "GpushareAutoscalerFlaps",
            grew(of(metrics_autoscaler.FLAPS), "1h"),
            Severity.WARNING,
            "In pool {{ $labels.pool }} something was done and undone too soon",
            f"How often within an hour the autoscaler undid what it had just done in pool {{{{ $labels.pool }}}}: "
            f"{COUNT}. A defect, or somebody else changes the pool.",
        ),
        Alert(
            "GpushareProviderFailing",
            f"max by (pool, provider) ({of(metrics_autoscaler.PROVIDER_UP)}) == 0",
            Severity.WARNING,
            "The provider of pool {{ $labels.pool }} does not answer",
            "For five minutes the {{ $labels.provider }} provider of pool {{ $labels.pool }} has not answered; the "
            "pool is left alone.",
            patience="5m",
        ),
        Alert(
            "GpusharePoolOutOfStock",
            # Between two rests it is 0 for a moment.
            f"{_POOL} (max_over_time({of(metrics_autoscaler.POOL_REST)}[5m])) > 0",
            Severity.WARNING,
            "Pool {{ $labels.pool }} cannot be delivered",
            "For 10 minutes pool {{ $labels.pool }} has not been asked for nodes because it could not deliver; its "
            "longest rest within five minutes was {{ $value | humanizeDuration }}.",
            patience="10m",
        ),
        Alert(
            "GpusharePoolFull",
            f"{_POOL} ({of(metrics_autoscaler.POOL_TARGET)}) >= {_POOL} ({of(metrics.POOL_LARGEST)})\n"
            f"and on ()\nmax({_CAPPED}) > 0",
            Severity.WARNING,
            "Pool {{ $labels.pool }} has as many nodes as it may",
            f"Pool {{{{ $labels.pool }}}} stands at its {COUNT} nodes while pods wait that a pool could host if it "
            "might grow.",
            patience="10m",
        ),
        Alert(
            "GpusharePoolUnknown",
            f"{_POOL} ({of(metrics_autoscaler.POOL_KNOWN)}) == 0",
            Severity.INFO,
            "Nobody knows what a node of pool {{ $labels.pool }} is like",
            "Pool {{ $labels.pool }} cannot grow: none of its nodes was ever seen, and no profile is configured.",
            patience="15m",
        ),
    ),
)
