# SPDX-License-Identifier: Apache-2.0
"""
What review of rules would look for, looked for by a program: each series, label, template, window and patience.

The failures behind these checks are known from others' rules: matchings that can never match, labels that the query
drops, `rate` over gauges, an alert on one sample.
"""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest
from support.promql_labels import COMPARISONS, OF_COUNTERS, Judge, walk

from dashboards import promql
from dashboards.rules.catalogue import ALERTS, GROUPS, RECORDS
from dashboards.rules.rule import RUNBOOKS, SCRAPE_SECONDS, Alert
from exporter.pipeline.breach_log import BreachKind
from isolation.contract.metrics import CARD_LABELS, Group, Kind, scheduler

SERIES = promql.series()
RULES = [rule for group in GROUPS for rule in group.rules]
LEVELS = {"cluster": (), "card": CARD_LABELS, "namespace": ("cluster", "job", "namespace")}
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FUNCTIONS = {"humanize1024", "humanizePercentage", "humanizeDuration", "printf", "if", "end"}
RUNBOOK_PAGES = Path(__file__).resolve().parents[4] / "docs" / "runbooks"
NEGATED = re.compile(r"^[\w:]+$")


def seconds(text):
    """Of a duration of one part."""
    return int(text[:-1]) * SECONDS[text[-1]]


def named(rule):
    """What to call it in a test's id."""
    return rule.name


def recorded():
    """Labels of every recorded series, in the order in which they are made."""
    judge = Judge(SERIES)
    for rule in RECORDS:
        made = judge.labels(promql_parser.parse(rule.expr))
        judge.recorded = {**judge.recorded, rule.name: made}
    assert [] == judge.faults
    return judge.recorded


RECORDED = recorded()


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_series_and_labels_exist_and_can_match(rule):
    """Names and labels are the catalogue's; what is joined has the labels on both sides, or the same on both."""
    judge = Judge(SERIES, RECORDED)
    judge.labels(promql_parser.parse(rule.expr))

    assert [] == judge.faults


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_runbooks_can_be_typed(rule):
    """`$NODE` is the label `node` of the alert; a page says where any other variable comes from."""
    kept = Judge(SERIES, RECORDED).labels(promql_parser.parse(rule.expr))
    page = (RUNBOOK_PAGES / f"{rule.name}.md").read_text()
    for name in set(re.findall(r"\$([A-Z]+)", page)):
        assert name.lower() in kept or f"`${name}` is " in page, name


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_templates_use_what_the_query_keeps(rule):
    """A label that the query drops would be an empty word at night; a function that is not there, an error."""
    kept = Judge(SERIES, RECORDED).labels(promql_parser.parse(rule.expr))
    for text in (rule.summary, rule.description):
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= kept
        for inside in re.findall(r"{{(.*?)}}", text):
            words = re.findall(r"[a-zA-Z_]\w*", re.sub(r'"[^"]*"|\$labels\.\w+|\$value', "", inside))
            assert set(words) <= FUNCTIONS, inside
    assert "$value" not in rule.summary, "a summary that changes with each value makes a new message each time"


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_rates_are_of_counters_and_counters_are_rated(rule):
    """`rate` of a gauge is nonsense; a counter by itself says how long a process has lived."""
    tree = promql_parser.parse(rule.expr)
    for node in walk(tree):
        if type(node).__name__ == "Call" and node.func.name in OF_COUNTERS:
            (selector,) = (one for one in walk(node) if type(one).__name__ == "VectorSelector")
            assert SERIES[selector.name].kind is Kind.COUNTER
    inside = {
        str(one)
        for node in walk(tree)
        if type(node).__name__ == "Call" and node.func.name in OF_COUNTERS
        for one in walk(node)
        if type(one).__name__ == "VectorSelector"
    }
    for node in walk(tree):
        if type(node).__name__ == "VectorSelector" and node.name in SERIES and SERIES[node.name].kind is Kind.COUNTER:
            # beside its own increase a counter may ask whether it is new
            assert str(node).split(" offset")[0] in inside


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_windows_hold_several_scrapes(rule):
    """Four at least, so that one lost scrape and one late one do not make it empty."""
    for node in walk(promql_parser.parse(rule.expr)):
        if type(node).__name__ == "MatrixSelector":
            assert node.range.total_seconds() >= 4 * SCRAPE_SECONDS


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_no_alert_on_one_sample(rule):
    """It is so for two scrapes at least, or the query itself looks back."""
    windows = [node for node in walk(promql_parser.parse(rule.expr)) if type(node).__name__ == "MatrixSelector"]

    assert seconds(rule.patience) >= 2 * SCRAPE_SECONDS or (rule.patience == "0s" and windows)


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_every_alert_compares(rule):
    """An alert whose query is always there always fires."""
    nodes = list(walk(promql_parser.parse(rule.expr)))
    compares = [node for node in nodes if type(node).__name__ == "BinaryExpr" and str(node.op) in COMPARISONS]

    assert compares


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_matchers_say_no_more_than_they_mean(rule):
    """A pattern without a choice is an equality; an anchor is there anyway."""
    for node in walk(promql_parser.parse(rule.expr)):
        if type(node).__name__ != "VectorSelector":
            continue
        for matcher in node.matchers.matchers:
            if "Re" in str(matcher.op):
                assert not NEGATED.match(matcher.value), matcher
                assert not matcher.value.startswith("^")
                assert not matcher.value.endswith("$")


def test_kinds_of_breaches_are_the_exporters():
    """Every kind that an alert asks for is one that an exporter counts, and each is asked for by one."""
    text = " ".join(rule.expr for rule in ALERTS)
    asked = {kind for found in re.findall(r'breaches_total{kind=~?"([^"]+)"', text) for kind in found.split("|")}
    going = {kind for found in re.findall(r'breaches_open{kind=~?"([^"]+)"', text) for kind in found.split("|")}
    (others,) = re.findall(r'breaches_open{kind!~"([^"]+)"', text)

    assert going == asked
    assert {BreachKind.DENIED, *asked} == set(others.split("|")), "of those one alert or another speaks"
    assert asked <= set(BreachKind)
    assert {BreachKind.OVER_LIMIT, BreachKind.DENIED} == set(BreachKind) - asked, "those two have counters of their own"


TOLD_BY_EACH = {
    spec.name
    for spec in promql.CATALOGUE.values()
    if spec.group in (Group.POOL, Group.SCHEDULER) and spec.kind is Kind.GAUGE
} - {scheduler.LEADER.name}
"""What every replica of scheduler and autoscaler tells of the one cluster; how many lead is meant to be counted."""


def counted_twice(node, added=False):  # noqa: FBT002 (within a sum or not)
    """Names that are added up although more than one replica tells of the same thing."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        return {node.name} & TOLD_BY_EACH if added else set()
    if kind == "AggregateExpr":
        added = str(node.op) not in {"max", "min", "group"} and (added or str(node.op) in {"sum", "count", "avg"})
    below = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    below += getattr(node, "args", None) or ()
    return {name for one in below if one is not None for name in counted_twice(one, added)}


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_replicas_are_not_added_up(rule):
    """Two replicas tell of the same pods and pools: the largest by its labels first, then the sum."""
    assert set() == counted_twice(promql_parser.parse(rule.expr))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("sum(gpushare_pending_pods)", {"gpushare_pending_pods"}),
        ("count(gpushare_pending_pods > 0) > 2", {"gpushare_pending_pods"}),
        ("sum by (namespace) (max by (namespace, pool) (gpushare_pending_memory_bytes))", set()),
        ("max(sum by (instance) (gpushare_pending_pods))", {"gpushare_pending_pods"}),
        ("sum(gpushare_scheduler_leader)", set()),
    ],
)
def test_a_sum_over_replicas_is_found(expr, expected):
    """The check itself."""
    assert expected == counted_twice(promql_parser.parse(expr))


def test_names_are_there_once():
    """Alerts, records and queries."""
    for words in ([rule.name for rule in RULES], [rule.expr for rule in RULES], [group.name for group in GROUPS]):
        assert sorted(set(words)) == sorted(words)


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_alerts_are_worded_alike(rule):
    """A summary is a line without a full stop, a description whole sentences."""
    assert re.fullmatch(r"Gpushare([A-Z][a-z]+)+", rule.name)
    assert not rule.summary.endswith(".")
    assert "\n" not in rule.summary + rule.description
    assert rule.description.endswith(".")
    assert len(rule.summary) <= 160
    assert RUNBOOKS.startswith("https://")
    assert not rule.hold or seconds(rule.hold) >= 60


@pytest.mark.parametrize("rule", RECORDS, ids=named)
def test_records_are_named_by_level_metric_and_operation(rule):
    """level:metric:operation, with the labels that the level says."""
    level, metric, operation = rule.name.split(":")

    assert metric.startswith("gpushare_")
    assert operation
    assert frozenset(LEVELS.get(level, (level,))) == RECORDED[rule.name]
    assert any(rule.name in other.expr for other in RULES if other is not rule) or not isinstance(rule, Alert)


def test_a_matching_that_cannot_match_is_found():
    """The judge itself: what peers shipped would not pass here."""
    wrong = Judge(SERIES)
    wrong.labels(
        promql_parser.parse("100 * (gpushare_container_memory_used_bytes / gpushare_card_memory_total_bytes) > 95")
    )
    wrong.labels(promql_parser.parse("sum by (pod) (gpushare_card_info)"))
    wrong.labels(promql_parser.parse('gpushare_card_info{pod="x"} > no_such_metric'))

    assert 5 == len(wrong.faults), wrong.faults
