"""
Alerts about the scheduler: nobody who leads, two who do, a view that is old, promises that went wrong.

Pure. A scheduler of ours is needed where our agents offer shares; elsewhere its absence is no alert.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules.rule import SCHEDULER_JOB, Alert, Group, Severity, gone, grew, of
from dashboards.rules.words import COUNT, DAY, TARGET, WHILE
from isolation.contract import metrics_scheduler

_LEFT: Final = f"({of(metrics_scheduler.CERTIFICATE_ENDS)} - time())"
_THEN: Final = "Once it has ended, the API server refuses every pod that asks for shares."

GROUP: Final = Group(
    "gpushare.scheduler",
    "The scheduler: admission, placing, binding.",
    (
        Alert(
            "GpushareSchedulerAbsent",
            gone(SCHEDULER_JOB),
            Severity.CRITICAL,
            "No gpushare scheduler is reached",
            f"Prometheus reaches no target of job {SCHEDULER_JOB}, of which there were some within the last day: no "
            "pod that asks for shares is admitted or placed.",
            patience="2m",
        ),
        Alert(
            "GpushareSchedulerLeaderless",
            f"max by (job) ({of(metrics_scheduler.LEADS)}) == 0",
            Severity.CRITICAL,
            "No replica of the gpushare scheduler leads",
            "For a minute no replica has had the right to bind: pods that ask for shares wait.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerTwoLeaders",
            f"sum by (job) ({of(metrics_scheduler.LEADS)}) > 1",
            Severity.CRITICAL,
            "More than one replica of the gpushare scheduler leads",
            f"{COUNT} replicas think that they may bind: a card can be given out twice.",
            patience="30s",
        ),
        Alert(
            "GpushareSchedulerViewOld",
            f"{of(metrics_scheduler.VIEW_AGE)} > 120",
            Severity.WARNING,
            f"The scheduler at {TARGET} does not hear of {{{{ $labels.watch }}}}",
            f"For {WHILE} the API server has told {TARGET} nothing about {{{{ $labels.watch }}}}; a healthy watch is "
            "below 90 s. It decides on what it knew then.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerUnsynced",
            f"{of(metrics_scheduler.SYNCED)} == 0",
            Severity.WARNING,
            f"The scheduler at {TARGET} has not read the cluster",
            f"For five minutes {TARGET} has not had the cluster as a whole; it cannot lead.",
            patience="5m",
        ),
        Alert(
            "GpushareSchedulerFailing",
            grew(of(metrics_scheduler.REQUESTS, 'outcome="failed"'), "10m"),
            Severity.WARNING,
            f"The scheduler at {TARGET} fails to answer {{{{ $labels.verb }}}}",
            f"Questions ({{{{ $labels.verb }}}}) that ended in a defect of ours within 10 minutes: {COUNT}. The log "
            "has the trace.",
        ),
        Alert(
            "GpushareSchedulerOvercommitted",
            f"max by (job) ({of(metrics_scheduler.OVERCOMMITTED)}) > 0",
            Severity.CRITICAL,
            "The scheduler knows of cards of which too much is promised",
            f"Cards of which more is promised than they offer: {COUNT}. A defect, or somebody else binds pods to them; "
            "they take nobody more.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerUnreadable",
            f"max by (job) ({of(metrics_scheduler.UNREADABLE)}) > 0",
            Severity.INFO,
            "The scheduler cannot read some nodes or pods",
            f"Objects that have said something unreadable for 15 minutes, and count with what they said before: "
            f"{COUNT}.",
            patience="15m",
        ),
        Alert(
            "GpushareSchedulerCertificateEnding",
            f"{_LEFT} < {14 * DAY} >= {2 * DAY}",
            Severity.WARNING,
            f"The certificate of the scheduler at {TARGET} ends soon",
            f"The certificate in use ends in {WHILE} and has not been renewed. {_THEN}",
            patience="1h",
        ),
        Alert(
            "GpushareSchedulerCertificateEnds",
            f"{_LEFT} < {2 * DAY}",
            Severity.CRITICAL,
            f"The certificate of the scheduler at {TARGET} ends within two days, or has ended",
            f"The certificate in use is valid for another {WHILE} (below 0: it has ended). {_THEN}",
            patience="5m",
        ),
    ),
)
