"""
Alerts about those who measure: an exporter that is away, blind or old makes every other alert silent.

Pure. Exporters are what every installation has, so that none at all is an alert without conditions.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import UP
from dashboards.rules.rule import EXPORTER_JOB, NODE_JOB, Alert, Group, Severity, of, up
from dashboards.rules.words import COUNT, NODE, TARGET, WHILE
from isolation.contract import metrics

GROUP: Final = Group(
    "gpushare.exporter",
    "The exporters, which measure the cards.",
    (
        Alert(
            "GpushareExportersAbsent",
            f"absent({up(EXPORTER_JOB)})",
            Severity.CRITICAL,
            "No gpushare exporter is up",
            f"No target of job {EXPORTER_JOB} is up. The cards are not monitored, and every alert on cards and "
            "containers is silent.",
            patience="2m",
        ),
        Alert(
            "GpushareExporterDown",
            f'{UP.name}{{job="{EXPORTER_JOB}"}} == 0',
            Severity.WARNING,
            f"The gpushare exporter at {TARGET} is down",
            f"{TARGET} has not answered for five minutes, or its latest reading is too old to serve.",
            patience="5m",
        ),
        Alert(
            "GpushareExporterMissing",
            f"count({up(NODE_JOB)})\n-\ncount({up(EXPORTER_JOB)})\n> 0",
            Severity.WARNING,
            "Some nodes with shared cards have no exporter",
            f"Nodes with a gpushare node agent but no exporter: {COUNT}. Their cards are not monitored.",
            patience="15m",
        ),
        Alert(
            "GpushareExporterStale",
            f"abs(time() - {of(metrics.SAMPLE_TIME)}) > 60",
            Severity.WARNING,
            f"Metrics of the exporter at {TARGET} are stale",
            f"The timestamp of the metrics at {TARGET} is {WHILE} away from the current time. Either the metrics are "
            "old or a clock is wrong.",
            patience="1m",
        ),
        Alert(
            "GpushareCollectorFailed",
            f"{of(metrics.COLLECTOR_SUCCESS)} == 0",
            Severity.WARNING,
            f"Collector {{{{ $labels.collector }}}} fails at {TARGET}",
            f"Collector {{{{ $labels.collector }}}} of the exporter at {TARGET} has not been able to read its source "
            "for five minutes. Its series are absent, and the alerts on them are silent.",
            patience="5m",
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
