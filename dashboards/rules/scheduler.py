# SPDX-License-Identifier: Apache-2.0
"""
Alerts about the scheduler: nobody who leads, two who do, a view that is old, promises that went wrong.

Pure. A scheduler of ours is needed where our agents offer shares; elsewhere its absence is no alert.
"""

from __future__ import annotations

from typing import Final

from dashboards.rules.phrases import COUNT, DAY, TARGET, WHILE
from dashboards.rules.rule import (
    JOB,
    NODE_JOB,
    SCHEDULER_JOB,
    Alert,
    RuleGroup,
    Severity,
    absent,
    grew,
    of,
    one,
    seen,
    slower,
    targets,
    task_unhealthy,
)
from isolation.contract.metrics import scheduler

_LEFT: Final = f"({of(scheduler.CERTIFICATE_EXPIRY)} - time())"
_THEN: Final = "After it expires, the API server rejects every pod that requests shared cards."

GROUP: Final = RuleGroup(
    "gpushare.scheduler",
    "The scheduler: admission, placement, binding.",
    (
        Alert(
            "GpushareSchedulerAbsent",
            absent(SCHEDULER_JOB, seen(SCHEDULER_JOB), targets(NODE_JOB)),
            Severity.CRITICAL,
            "No gpushare scheduler is up",
            f"No target of job {SCHEDULER_JOB} is up, but some were within the last day or there are node agents. No "
            "pod that requests shared cards is admitted or placed.",
            patience="2m",
        ),
        Alert(
            "GpushareSchedulerNoLeader",
            f"max by (job) ({of(scheduler.LEADER)}) == 0",
            Severity.CRITICAL,
            "The gpushare scheduler has no leader",
            "There has been no leader for a minute. Pods that request shared cards stay pending.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerMultipleLeaders",
            f"sum by (job) ({of(scheduler.LEADER)}) > 1",
            Severity.CRITICAL,
            "The gpushare scheduler has more than one leader",
            f"{COUNT} replicas act as the leader. The same memory of a card can be promised twice.",
            # What a replica said last stays for two scrape intervals after it is gone; with 30 s each, over a minute.
            patience="2m",
        ),
        Alert(
            "GpushareSchedulerWatchStale",
            f"{of(scheduler.WATCH_STALENESS)} > 120",
            Severity.WARNING,
            f"The scheduler at {TARGET} receives nothing about {{{{ $labels.resource }}}}",
            f"{TARGET} has received nothing from the API server about {{{{ $labels.resource }}}} for {WHILE}. A "
            "healthy watch is below 90 s. The scheduler decides on its last known state.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerNotSynced",
            f"{of(scheduler.SYNCED)} == 0",
            Severity.WARNING,
            f"The scheduler at {TARGET} is not synced with the cluster",
            f"{TARGET} has not completed its first list of the cluster for five minutes. It cannot become the leader.",
            patience="5m",
        ),
        Alert(
            "GpushareSchedulerFailing",
            grew(of(scheduler.REQUESTS, 'outcome="failed"'), "10m"),
            Severity.WARNING,
            f"The scheduler at {TARGET} fails to answer {{{{ $labels.verb }}}} requests",
            f"Requests ({{{{ $labels.verb }}}}) that ended in an internal error within 10 minutes: {COUNT}. The log "
            "has the stack trace.",
        ),
        task_unhealthy("GpushareSchedulerTaskUnhealthy", scheduler.TASK_HEALTHY, "scheduler"),
        Alert(
            "GpushareSchedulerAdmissionRestarted",
            grew(of(scheduler.ADMISSION_RESTARTS), "10m"),
            Severity.WARNING,
            f"The scheduler at {TARGET} restarted its admission process",
            f"Restarts within 10 minutes: {COUNT}. While the process starts, the other replica admits pods that "
            "request shared cards.",
        ),
        Alert(
            "GpushareSchedulerSlow",
            slower(scheduler.REQUEST_DURATION, 0.25, *JOB, "verb", only=(one("verb", "filter", "prioritize"),)),
            Severity.WARNING,
            f"The scheduler at {TARGET} is slow to answer {{{{ $labels.verb }}}} requests",
            f"One of 100 {{{{ $labels.verb }}}} requests takes longer than {WHILE}. Pods are placed late.",
            patience="10m",
        ),
        Alert(
            "GpushareAdmissionSlow",
            slower(scheduler.REQUEST_DURATION, 1, *JOB, "verb", only=(one("verb", "admission"),)),
            Severity.WARNING,
            f"Admission at {TARGET} is slow",
            f"One of 100 admission requests takes longer than {WHILE}. Creating pods is slow.",
            patience="10m",
        ),
        Alert(
            "GpushareSchedulerCertificateUnreadable",
            f"({of(scheduler.CERTIFICATE_LOADED)} unless on (job, instance) {of(scheduler.CERTIFICATE_EXPIRY)}) > 0",
            Severity.WARNING,
            f"The expiry of the certificate of the scheduler at {TARGET} cannot be read",
            "The scheduler loaded a certificate whose expiry it cannot read. No alert will fire before it expires.",
            patience="15m",
        ),
        Alert(
            "GpushareSchedulerOvercommitted",
            f"max by (job) ({of(scheduler.OVERCOMMITTED_CARDS)}) > 0",
            Severity.CRITICAL,
            "The scheduler reports overcommitted cards",
            f"Cards with more memory promised than they offer: {COUNT}. Either this is a bug or something else binds "
            "pods to them. They take no more pods.",
            patience="1m",
        ),
        Alert(
            "GpushareSchedulerUnreadableObjects",
            f"max by (job) ({of(scheduler.UNREADABLE_OBJECTS)}) > 0",
            Severity.INFO,
            "The scheduler cannot read some nodes or pods",
            f"Objects that have been unreadable for 15 minutes: {COUNT}. The scheduler uses their last readable state.",
            patience="15m",
        ),
        Alert(
            "GpushareSchedulerCertificateExpiring",
            f"{_LEFT} < {14 * DAY} >= {2 * DAY}",
            Severity.WARNING,
            f"The certificate of the scheduler at {TARGET} expires soon",
            f"The certificate in use expires in {WHILE} and has not been renewed. {_THEN}",
            patience="1h",
        ),
        Alert(
            "GpushareSchedulerCertificateExpiresInTwoDays",
            f"{_LEFT} < {2 * DAY}",
            Severity.CRITICAL,
            f"The certificate of the scheduler at {TARGET} expires within two days or has expired",
            f"The certificate in use is valid for another {WHILE} (negative: expired). {_THEN}",
            patience="5m",
        ),
    ),
)
