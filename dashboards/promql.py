# SPDX-License-Identifier: Apache-2.0
"""
PromQL from the catalogue: which series exist, with which labels, and how a query over one is written.

Pure. A name of a metric enters a query only by its `MetricSpec`, so that a metric that is renamed or
loses a label breaks the build of a dashboard or a rule and not its panel. Nothing here knows panels,
rules or a server; queries are text, and reading them back is the tests' business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract import metrics
from isolation.contract.metrics import CARD_LABELS, Group, Kind, MetricSpec, Unit, autoscaler, card, node, scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

TARGET_LABELS: Final = ("job", "instance", "cluster")
"""Labels that scraping adds; `cluster` only where several clusters' series meet in one place."""
UP: Final = MetricSpec("up", Kind.GAUGE, (), Unit.NONE, "Whether the last scrape succeeded.", Group.NODE)
SCRAPE_SECONDS: Final = MetricSpec(
    "scrape_duration_seconds", Kind.GAUGE, (), Unit.SECONDS, "Duration of the scrape.", Group.NODE
)
SCRAPED: Final = MetricSpec(
    "scrape_samples_scraped", Kind.GAUGE, (), Unit.NONE, "Number of samples in the scrape.", Group.NODE
)
PROCESS_CPU: Final = MetricSpec(
    "process_cpu_seconds_total", Kind.COUNTER, (), Unit.SECONDS, "CPU time of the process.", Group.NODE
)
PROCESS_MEMORY: Final = MetricSpec(
    "process_resident_memory_bytes", Kind.GAUGE, (), Unit.BYTES, "Resident memory of the process.", Group.NODE
)
PROCESS_START: Final = MetricSpec(
    "process_start_time_seconds", Kind.GAUGE, (), Unit.SECONDS, "Unix time at which the process started.", Group.NODE
)
DAEMONSET_WANTED: Final = MetricSpec(
    "kube_daemonset_status_desired_number_scheduled",
    Kind.GAUGE,
    ("namespace", "daemonset"),
    Unit.NONE,
    "Nodes that should run the DaemonSet (kube-state-metrics).",
    Group.NODE,
)
ALERTS: Final = MetricSpec(
    "ALERTS",
    Kind.GAUGE,
    ("alertname", "alertstate", "severity", "node", "namespace"),
    Unit.NONE,
    "Alerts that are pending or firing.",
    Group.NODE,
)
GENERAL: Final = (
    UP,
    SCRAPE_SECONDS,
    SCRAPED,
    PROCESS_CPU,
    PROCESS_MEMORY,
    PROCESS_START,
    DAEMONSET_WANTED,
    ALERTS,
)
"""Not ours: Prometheus' series of a target, its client libraries' of a process, and one of kube-state-metrics."""


def _of_namespace(name: str, text: str) -> MetricSpec:
    return MetricSpec(f"namespace:gpushare_{name}:sum", Kind.GAUGE, ("namespace",), Unit.NONE, text, Group.POOL)


NAMESPACE_ALLOCATED: Final = _of_namespace(
    "container_memory_allocated_bytes", "Memory promised to the containers of the namespace."
)
NAMESPACE_USED: Final = _of_namespace("container_memory_used_bytes", "Memory used by the containers of the namespace.")
NAMESPACE_WASTED: Final = _of_namespace(
    "container_memory_unused_bytes", "Memory promised to the containers of the namespace and not used."
)
RECORDED: Final = (NAMESPACE_ALLOCATED, NAMESPACE_USED, NAMESPACE_WASTED)
"""Series of our recording rules that dashboards ask for over long ranges."""
CATALOGUE: Final = MappingProxyType(
    {
        spec.name: spec
        for spec in chain(
            *(part.CATALOGUE.values() for part in (metrics, card, node, scheduler, autoscaler)),
            GENERAL,
            RECORDED,
        )
    }
)
"""Every metric that a query may name; a histogram stands under its family name."""
SERIES_OF_A_HISTOGRAM: Final = MappingProxyType({"_bucket": ("le",), "_sum": (), "_count": ()})
RATE: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Series:
    """What can be selected by a name: its kind and every label it may carry."""

    name: str
    kind: Kind
    labels: frozenset[str]


def series(specs: Iterable[MetricSpec] = CATALOGUE.values()) -> dict[str, Series]:
    """Every series by name as a server stores it: a histogram is three counters."""
    made: dict[str, Series] = {}
    for spec in specs:
        labels = frozenset((*spec.labels, *TARGET_LABELS))
        if spec.kind is Kind.HISTOGRAM:
            for suffix, more in SERIES_OF_A_HISTOGRAM.items():
                name = f"{spec.name}{suffix}"
                made[name] = Series(name, Kind.COUNTER, labels | frozenset(more))
        else:
            made[spec.name] = Series(spec.name, spec.kind, labels)
    return made


@dataclass(frozen=True, slots=True)
class Scope:
    """Which variables of a dashboard narrow a metric: those among its labels, and those of every target."""

    variables: tuple[str, ...]

    def __call__(self, spec: MetricSpec, *more: str, suffix: str = "", without: tuple[str, ...] = ()) -> str:
        """A selector of the metric; `more` are matchers as text, of labels that it has."""
        for matcher in more:
            if re.split("[=!]", matcher, maxsplit=1)[0] not in (*spec.labels, *TARGET_LABELS):
                raise ValueError(f"{spec.name} has no label for matcher {matcher}; its labels are {spec.labels}")
        known = (*spec.labels, *TARGET_LABELS)
        picks = [f'{name}=~"${name}"' for name in self.variables if name in known and name not in without]
        return f"{spec.name}{suffix}{{{','.join((*picks, *more))}}}"


def rate(selector: str, window: str = RATE) -> str:
    """Per second, over a window that fits the graph's resolution."""
    return f"rate({selector}[{window}])"


def increase(selector: str, window: str = RATE) -> str:
    """How much it grew."""
    return f"increase({selector}[{window}])"


def begun(selector: str, window: str = "$__range") -> str:
    """
    How much it grew within the window, from 0 where the series is younger.

    `increase` takes a series' first value for what it always was, and would miss the very breach with which a
    container enters the stage.
    """
    return f"(({selector} unless {selector} offset {window}) or {increase(selector, window)})"


def total(expr: str, *by: str) -> str:
    """The sum, by these labels."""
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def quantile(part: float, selector: str, *by: str) -> str:
    """A quantile of a histogram's observations; the selector names its `_bucket` series."""
    return f"histogram_quantile({part}, {total(rate(selector), *by, 'le')})"


def with_card(expr: str, info: str, *labels: str) -> str:
    """The same figures by card, with more labels of the card's info series, and only cards that it selects."""
    return f"({expr}) * on ({', '.join(CARD_LABELS)}) group_left ({', '.join(labels)}) {info}"


def or_zero(expr: str, alive: str, label: str = "", value: str = "") -> str:
    """The figures, or one 0 where there are none and `alive` tells that this is known; else still nothing."""
    zero = f"0 * max({alive})"
    if label:
        zero = f'label_replace({zero}, "{label}", "{value}", "", "")'
    return f"{expr} or on () {zero}"
