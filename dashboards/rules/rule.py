"""
What an alert, a recorded series and a group of them are, and how their queries name a metric.

Pure. A metric enters a rule by its `MetricSpec` only (`of`), so that one that is renamed or loses a
label breaks the build of the rules and not an alert at night. Nothing here knows YAML or a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from dashboards.promql import UP, Scope

if TYPE_CHECKING:
    from isolation.contract.metrics import MetricSpec

SCRAPE_SECONDS: Final = 15
"""Interval of scrapes and of rules for which windows and patience are made; 30 s is still well."""
RUNBOOKS: Final = "https://gpushare.dev/runbooks"
"""Where runbooks are published unless another place is named: `<there>/<alert>.md`."""
EXPORTER_JOB: Final = "gpushare-exporter"
SCHEDULER_JOB: Final = "gpushare-scheduler"
NODE_JOB: Final = "gpushare-node"
AUTOSCALER_JOB: Final = "gpushare-autoscaler"

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
class Record:
    """One recorded series, named level:metric:operation, and what it says."""

    name: str
    expr: str
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are weighed together, one after the other."""

    name: str
    text: str
    """Which component they speak of, for people."""
    rules: tuple[Alert | Record, ...]


def of(spec: MetricSpec, *matchers: str, suffix: str = "") -> str:
    """A selector of the metric; matchers as text, of labels that it has."""
    return _PLAIN(spec, *matchers, suffix=suffix).removesuffix("{}")


def one(label: str, *values: str) -> str:
    """A matcher: the label has this value, or one of these."""
    return f'{label}="{values[0]}"' if len(values) == 1 else f'{label}=~"{_ALTERNATIVE.join(values)}"'


def grew(selector: str, window: str) -> str:
    """
    How much a counter has grown, where there is growth; one that is born with its first event counts from 0.

    `increase` alone misses the first event of a series that did not exist before it. An hour is asked for the time
    before, so that a Prometheus that was away for some minutes does not take an old series for a new one.
    """
    before = f"count_over_time({selector}[1h] offset {window})"
    return f"(increase({selector}[{window}]) > 0)\nor\n({selector} > 0 unless {before})"


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


def gone(job: str) -> str:
    """
    Nothing of a component is reached, although somebody meant to scrape it within the last day.

    For parts that a cluster may do without; what must be there is asked with `absent` alone.
    """
    return f'absent({up(job)})\nand on ()\ncount(count_over_time({UP.name}{{job="{job}"}}[1d])) > 0'
