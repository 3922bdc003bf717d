# SPDX-License-Identifier: Apache-2.0
"""
What an alert, a recorded series and a group of them are, and how their queries name a metric.

Pure. A metric enters a rule by its `MetricSpec` only (`of`), so that one that is renamed or loses a
label breaks the build of the rules and not an alert at night. Nothing here knows YAML or a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from dashboards.promql import PROCESS_START, UP, Scope

if TYPE_CHECKING:
    from isolation.contract.metrics import MetricSpec

SCRAPE_SECONDS: Final = 15
"""Interval of scrapes and of rules for which windows and patience are made; 30 s is still well."""
RUNBOOKS: Final = "https://github.com/gpushare/gpushare/blob/main/docs/runbooks"
"""The runbooks as files of the repository, unless another place is named: `<there>/<alert>.md`."""
EXPORTER_JOB: Final = "gpushare-exporter"
SCHEDULER_JOB: Final = "gpushare-scheduler"
NODE_JOB: Final = "gpushare-node"
AUTOSCALER_JOB: Final = "gpushare-autoscaler"

JOB: Final = ("job", "instance")
"""Labels of one scraped process."""
_ALTERNATIVE: Final = "|"
_PLAIN: Final = Scope(())


class Severity(StrEnum):
    """How soon somebody has to look."""

    CRITICAL = "critical"
    """Now: tenants are harmed, or nothing keeps them from it."""
    WARNING = "warning"
    """Today."""
    INFO = "info"
    """When there is time; never by a pager."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; its runbook is docs/runbooks/<name>.md."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    patience: str = "0s"
    """`for`: how long it must be so. 0s only where the query itself looks back over several scrapes."""
    hold: str = ""
    """`keep_firing_for`: how long it stays after its end, so that what comes and goes is one alert."""


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """One recorded series, named level:metric:operation, and what it says."""

    name: str
    expr: str
    text: str


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are weighed together, one after the other."""

    name: str
    text: str
    """Which component they speak of, for people."""
    rules: tuple[Alert | RecordingRule, ...]
    interval: str = ""
    """How often they are evaluated, where that is not Prometheus' own interval: less often for long ranges."""


def of(spec: MetricSpec, *matchers: str, suffix: str = "") -> str:
    """A selector of the metric; matchers as text, of labels that it has."""
    return _PLAIN(spec, *matchers, suffix=suffix).removesuffix("{}")


def one(label: str, *values: str) -> str:
    """A matcher: the label has this value, or one of these."""
    return f'{label}="{values[0]}"' if len(values) == 1 else f'{label}=~"{_ALTERNATIVE.join(values)}"'


def grew(selector: str, window: str, source: str = UP.name, on: tuple[str, ...] = JOB) -> str:
    """
    How much a counter that starts at 0 with its process has grown, where there is growth.

    `increase` alone misses two events: the first of a series that did not exist before it, and one that a restart
    hides because the new process has counted as far as the old one had. The first needs proof that there was no such
    series: `source`, whose series exist whenever the counter can be read, was scraped before the window (`on`: labels
    that both have). So old counts are no events after an outage of Prometheus, of the target or of what it reads.
    """
    place = f"on ({', '.join(on)})"
    target = f"on ({', '.join(JOB)})"
    before = f"[1h] offset {window}"
    return (
        f"(increase({selector}[{window}]) > 0)\n"
        f"or\n({selector} > 0 and {target} (time() - {PROCESS_START.name}) < {_seconds(window)})\n"
        f"or\n(({selector} > 0 unless count_over_time({selector}{before}))"
        f" and {place} (max_over_time({source}{before}) >= {_reached(source)}))"
    )


def _reached(source: str) -> int:
    """`up` is also there, as 0, when nothing could be scraped."""
    return 1 if source == UP.name else 0


def _seconds(window: str) -> int:
    return int(window[:-1]) * {"m": 60, "h": 3600}[window[-1]]


def slower(spec: MetricSpec, seconds: float, *by: str, only: tuple[str, ...] = ()) -> str:
    """The 99th percentile of a histogram within 10 minutes, where it is over that many seconds."""
    rate = f"rate({of(spec, *only, suffix='_bucket')}[10m])"
    return f"histogram_quantile(0.99, sum by ({', '.join((*by, 'le'))}) ({rate})) > {seconds}"


def mostly_down(selector: str, window: str = "10m") -> str:
    """
    A yes (1) or no (0) that was no for more than 3 of 10 minutes, in one piece or in many.

    `for` on the sample itself starts again with every yes, and would never tell of one that fails 9 times of 10.
    """
    return f"avg_over_time({selector}[{window}]) < 0.7"


def task_unhealthy(name: str, spec: MetricSpec, process: str) -> Alert:
    """A background task of a process is not healthy; looks back, since the kubelet soon restarts that process."""
    target = "{{ $labels.instance }}"
    return Alert(
        name,
        f"min_over_time({of(spec)}[10m]) == 0",
        Severity.WARNING,
        f"Task {{{{ $labels.task }}}} of the {process} at {target} is unhealthy",
        f"Background task {{{{ $labels.task }}}} has failed, or has completed no cycle, for too long within the last "
        f"10 minutes. The log of {target} has the error; the kubelet restarts the container.",
    )


def up(job: str) -> str:
    """Targets of a component that were reached by the last scrape."""
    return f'{UP.name}{{job="{job}"}} == 1'


def targets(job: str) -> str:
    """How many of a component Prometheus has to scrape, reached or not."""
    return f'count({UP.name}{{job="{job}"}}) > 0'


def seen(job: str) -> str:
    """How many of a component Prometheus had to scrape at any time of the last day."""
    return f'count(count_over_time({UP.name}{{job="{job}"}}[1d])) > 0'


def absent(job: str, *needed: str) -> str:
    """
    Nothing of a component is reached, although one of these says that it is needed.

    Pods of a node go with it: a DaemonSet without targets is no trouble where no node is left.
    """
    return f"absent({up(job)})\nand on ()\n(\n" + "\n  or\n".join(f"  {one}" for one in needed) + "\n)"
