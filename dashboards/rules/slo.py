# SPDX-License-Identifier: Apache-2.0
"""
Service level objectives: what we promise over 30 days, and alerts on how fast the error budget is used up.

Pure. Two windows each, as in "Alerting on SLOs" of the Site Reliability Workbook: the long one says that it matters,
the short one that it still goes on. Each indicator is one recorded series from 0 to 1, so that long windows are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dashboards.promql import UP
from dashboards.rules.rule import EXPORTER_JOB, SCHEDULER_JOB, Alert, RecordingRule, RuleGroup, Severity, of, one
from isolation.contract.metrics import autoscaler, scheduler

_WAITING: Final = "cluster:gpushare_pods_waiting_with_room:max"


@dataclass(frozen=True, slots=True)
class Objective:
    """What is promised, and how well it is kept."""

    name: str
    indicator: str
    """Recorded series: the fraction kept at each moment."""
    goal: float
    """Of its average over 30 days."""
    text: str
    fast: Severity
    """How soon somebody has to look where the budget would be gone within days."""


OBJECTIVES: Final = (
    Objective(
        "Freshness",
        "cluster:gpushare_exporter_up:avg",
        0.995,
        "exporters answer scrapes with current metrics",
        Severity.WARNING,
    ),
    Objective("Admission", "cluster:gpushare_admission_up:max", 0.999, "a replica serves admission", Severity.CRITICAL),
    Objective(
        "Placement",
        "cluster:gpushare_placement_prompt:min",
        0.995,
        "no pod that fits on a node stays pending for longer than 30 s",
        Severity.CRITICAL,
    ),
)


def _burns(objective: Objective, rate: float, long: str, short: str) -> str:
    most = round(rate * (1 - objective.goal), 6)
    bad = (f"(1 - avg_over_time({objective.indicator}[{window}])) > {most:g}" for window in (long, short))
    return "({} and {})".format(*bad)


def _alerts(objective: Objective) -> tuple[Alert, Alert]:
    goal = f"{objective.goal:.1%}"
    return (
        Alert(
            f"Gpushare{objective.name}BudgetBurnsFast",
            f"{_burns(objective, 14.4, '1h', '5m')}\nor\n{_burns(objective, 6, '6h', '30m')}",
            objective.fast,
            f"The error budget of objective {objective.name} will be used up within days",
            f"The objective is that {objective.text}, {goal} of the time over 30 days. Within the last hours it was "
            "missed for {{ $value | humanizePercentage }} of the time.",
            patience="2m",
        ),
        Alert(
            f"Gpushare{objective.name}BudgetBurnsSlow",
            _burns(objective, 1, "3d", "6h"),
            Severity.WARNING,
            f"The error budget of objective {objective.name} will be used up before 30 days are over",
            f"The objective is that {objective.text}, {goal} of the time over 30 days. Within the last three days it "
            "was missed for {{ $value | humanizePercentage }} of the time.",
            patience="1h",
        ),
    )


_ADMITS: Final = of(scheduler.ADMISSION_UP)
_FITS: Final = of(autoscaler.PENDING_PODS, one("status", "fits"))

GROUP: Final = RuleGroup(
    "gpushare.objectives",
    "Service level objectives, and alerts on how fast their error budgets are used up.",
    (
        RecordingRule(
            OBJECTIVES[0].indicator, f'avg({UP.name}{{job="{EXPORTER_JOB}"}})', "Fraction of the exporters that answer."
        ),
        RecordingRule(
            OBJECTIVES[1].indicator,
            f'max({_ADMITS})\nor on ()\n0 * count({UP.name}{{job="{SCHEDULER_JOB}"}})',
            "Whether a replica serves admission: 1 yes, 0 no (also if no replica can be scraped).",
        ),
        RecordingRule(_WAITING, f"max({_FITS})", "Pending pods that fit on a node."),
        RecordingRule(
            OBJECTIVES[2].indicator,
            f"(min_over_time({_WAITING}[1m]) == bool 0) and on () {_WAITING} >= 0",
            "1 if no pod that fits on a node was pending for the whole last minute, else 0. Needs the autoscaler.",
        ),
        *(alert for objective in OBJECTIVES for alert in _alerts(objective)),
    ),
)
