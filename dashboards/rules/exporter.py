# SPDX-License-Identifier: Apache-2.0
"""
Alerts about those who measure: an exporter that is away, blind or old makes every other alert silent.

Pure. No exporter at all is critical where somebody knows of nodes with cards, and no alert where somebody knows that
there are none (a pool scaled to zero). Where nobody knows either way, it is a warning.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import DAEMONSET_WANTED, UP
from dashboards.rules.phrases import NODE, TARGET, WHILE
from dashboards.rules.rule import EXPORTER_JOB, Alert, RuleGroup, Severity, absent, mostly_down, of, one, targets
from isolation.contract import metrics
from isolation.contract.metrics import node, scheduler

_UP: Final = f'{UP.name}{{job="{EXPORTER_JOB}"}}'
_NODES: Final = (
    of(scheduler.NODES),
    of(metrics.POOL_NODES, one("state", "ready")),
    of(DAEMONSET_WANTED, one("daemonset", EXPORTER_JOB)),
)
"""How many nodes with cards there are, as scheduler, autoscaler and kube-state-metrics know it; each may be absent."""
_OTHER_JOB: Final = of(metrics.BUILD_INFO, f'job!="{EXPORTER_JOB}"')

GROUP: Final = RuleGroup(
    "gpushare.exporter",
    "The exporters, which measure the cards.",
    (
        Alert(
            "GpushareExportersAbsent",
            absent(EXPORTER_JOB, targets(EXPORTER_JOB), *(f"max({nodes}) > 0" for nodes in _NODES)),
            Severity.CRITICAL,
            "No gpushare exporter is up",
            f"No target of job {EXPORTER_JOB} is up, although there are nodes with cards. The cards are not monitored, "
            "and every alert on cards and containers is silent.",
            # The last node of a pool that is scaled to zero is down before its objects are gone.
            patience="5m",
        ),
        Alert(
            "GpushareExportersNotScraped",
            f"absent({_UP})\nunless on ()\n(\n  "
            + "\n  or\n  ".join(f"max({known}) >= 0" for known in (*_NODES, _OTHER_JOB))
            + "\n)",
            Severity.WARNING,
            "Prometheus scrapes no gpushare exporter",
            f"Prometheus has no target of job {EXPORTER_JOB}, and no component reports whether there are nodes with "
            "cards. Every alert on cards and containers is silent.",
            patience="30m",
        ),
        Alert(
            "GpushareScrapeJobMisnamed",
            f"count by (job) ({_OTHER_JOB}) > 0\nunless on ()\n{_UP}",
            Severity.WARNING,
            f"gpushare exporters are scraped by job {{{{ $labels.job }}}} instead of {EXPORTER_JOB}",
            f"The alerts expect the exporters in a scrape job named {EXPORTER_JOB}. Rename job {{{{ $labels.job }}}}: "
            "until then, alerts on exporters that are down or missing are silent.",
            patience="5m",
        ),
        Alert(
            "GpushareExporterDown",
            mostly_down(_UP),
            Severity.WARNING,
            f"The gpushare exporter at {TARGET} is down",
            f"{TARGET} has not answered for more than 3 of 10 minutes, or its latest reading was too old to serve.",
            patience="3m",
        ),
        Alert(
            "GpushareExporterMissing",
            f"(group by (node) ({of(node.INFO)}) unless on (node) {of(metrics.HOST_PIDS)}"
            f" unless on (node) {of(metrics.CARD_INFO)}) > 0",
            Severity.WARNING,
            f"{NODE} has shared cards but no exporter",
            f"Prometheus scrapes the gpushare node agent of {NODE} but no exporter. Its cards are not monitored.",
            patience="15m",
        ),
        Alert(
            "GpushareExporterStale",
            f"abs(time() - {of(metrics.SAMPLE_TIMESTAMP)}) > 60",
            Severity.WARNING,
            f"Metrics of the exporter at {TARGET} are stale",
            f"The timestamp of the metrics at {TARGET} is {WHILE} away from the current time. Either the metrics are "
            "old or a clock is wrong.",
            patience="1m",
        ),
        Alert(
            "GpushareCollectorFailed",
            mostly_down(of(metrics.COLLECTOR_SUCCESS)),
            Severity.WARNING,
            f"Collector {{{{ $labels.collector }}}} fails at {TARGET}",
            f"Collector {{{{ $labels.collector }}}} of the exporter at {TARGET} could not read its source for more "
            "than 3 of 10 minutes. Meanwhile its series are absent, and the alerts on them are silent.",
            patience="3m",
        ),
        Alert(
            "GpushareExporterCannotAttribute",
            f"{of(metrics.HOST_PIDS)} == 0",
            Severity.WARNING,
            f"The exporter on {NODE} cannot see host processes",
            f"The exporter cannot see the processes of {NODE} (hostPID is off). It cannot measure the use of "
            "containers or detect breaches there.",
            patience="15m",
        ),
    ),
)
