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
    "Those who measure: the exporters.",
    (
        Alert(
            "GpushareExportersAbsent",
            f"absent({up(EXPORTER_JOB)})",
            Severity.CRITICAL,
            "No gpushare exporter is reached",
            f"Prometheus reaches no target of job {EXPORTER_JOB}: nobody sees what the cards do, and every alert that "
            "needs their figures is silent.",
            patience="2m",
        ),
        Alert(
            "GpushareExporterDown",
            f'{UP.name}{{job="{EXPORTER_JOB}"}} == 0',
            Severity.WARNING,
            f"The gpushare exporter at {TARGET} is not reached",
            f"{TARGET} has not answered for five minutes, or has no reading that is new enough to be shown.",
            patience="5m",
        ),
        Alert(
            "GpushareExporterMissing",
            f"count({up(NODE_JOB)})\n-\ncount({up(EXPORTER_JOB)})\n> 0",
            Severity.WARNING,
            "Some nodes with shared cards have no exporter",
            f"Nodes with an agent of ours on which nobody measures the cards: {COUNT}.",
            patience="15m",
        ),
        Alert(
            "GpushareExporterStale",
            f"abs(time() - {of(metrics.SAMPLE_TIME)}) > 60",
            Severity.WARNING,
            f"Figures of the exporter at {TARGET} are old",
            f"What {TARGET} shows is {WHILE} from the present: it was read long ago, or a clock is wrong.",
            patience="1m",
        ),
        Alert(
            "GpushareCollectorFailed",
            f"{of(metrics.COLLECTOR_SUCCESS)} == 0",
            Severity.WARNING,
            f"Collector {{{{ $labels.collector }}}} fails at {TARGET}",
            f"For five minutes {{{{ $labels.collector }}}} of the exporter at {TARGET} could not read its source; its "
            "series are absent and the alerts on them silent.",
            patience="5m",
        ),
        Alert(
            "GpushareExporterBlind",
            f"{of(metrics.HOST_PIDS)} == 0",
            Severity.WARNING,
            f"The exporter of {NODE} cannot tell processes apart",
            f"It does not see the processes of {NODE} (no hostPID), so that nobody's use can be measured there and no "
            "breach is seen.",
            patience="15m",
        ),
    ),
)
