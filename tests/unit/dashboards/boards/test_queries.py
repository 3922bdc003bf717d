# SPDX-License-Identifier: Apache-2.0
"""
Every query of every dashboard, by the catalogue: names, labels, rates, joins, legends, and columns that fit together.
"""

from __future__ import annotations

import json
import re

import pytest
from support.promql_reading import read

from dashboards import promql
from dashboards.boards import files, queries
from dashboards.boards.grafana_json import encode_dashboard

KNOWN = promql.series()
DASHBOARDS = {board.uid: json.loads(json.dumps(encode_dashboard(board))) for board in files.BOARDS}
QUERIES = [(uid, one) for uid, dashboard in DASHBOARDS.items() for one in queries.asked(dashboard)]
LEGEND = re.compile(r"\{\{(\w+)\}\}")
BY_UID = pytest.mark.parametrize("uid", DASHBOARDS)


def labels_of(uid, expr):
    """As a server would be asked."""
    values = queries.defaults(DASHBOARDS[uid]) | queries.windows("5m", "6h")
    return read(queries.filled(expr, values), KNOWN)


@pytest.mark.parametrize(("uid", "one"), QUERIES, ids=[f"{uid}-{q.panel}-{q.letter}" for uid, q in QUERIES])
def test_query_is_sound(uid, one):
    """Names and labels exist, counters are under a rate, sides of a join can match, nothing is divided by 0."""
    assert () == labels_of(uid, one.expr).problems


@BY_UID
def test_legends_name_labels_of_the_result(uid):
    """A legend with a label that the result does not have is an empty word."""
    wrong = [
        (one.panel, one.legend)
        for one in queries.asked(DASHBOARDS[uid])
        if not set(LEGEND.findall(one.legend)) <= set(labels_of(uid, one.expr).labels or ())
    ]
    assert [] == wrong


@BY_UID
def test_many_series_have_a_legend_each(uid):
    """Every label of a result by which series differ stands in the legend, unless scraping put it there."""
    wrong = []
    for panel in queries.panels(DASHBOARDS[uid]):
        if panel["type"] not in ("timeseries", "state-timeline", "bargauge"):
            continue
        for target in panel["targets"]:
            labels = (
                set(labels_of(uid, target["expr"]).labels or ())
                - set(promql.TARGET_LABELS)
                - {"uuid", "mode", "source"}
            )
            if "instance" in (found := labels_of(uid, target["expr"]).labels or ()) and not labels:
                labels = {"instance"} & set(found)
            shown = set(LEGEND.findall(target["legendFormat"]))
            if target["legendFormat"] == "__auto" or (labels and not shown):
                wrong.append((panel["title"], sorted(labels)))
    assert [] == wrong


@BY_UID
def test_columns_of_a_table_have_its_keys(uid):
    """Columns are joined by their labels: each has the table's key labels and no others."""
    wrong = []
    for board in (board for board in files.BOARDS if board.uid == uid):
        for section in board.sections:
            for band in section.bands:
                for _, panel in band.panels:
                    keys = {key.label for key in panel.keys}
                    wrong += [
                        (panel.title, column.title, sorted(labels ^ keys))
                        for column in panel.columns
                        if (labels := labels_of(uid, column.expr).labels or set()) != keys
                    ]
    assert [] == wrong


@BY_UID
def test_variables_are_asked_of_metrics_that_have_them(uid):
    """label_values(metric{...}, label) names a metric of the catalogue with these labels."""
    for variable in DASHBOARDS[uid]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
        if "__name__" in selector:
            assert label in promql.TARGET_LABELS
            continue
        found = read(f"count({queries.filled(selector, queries.defaults(DASHBOARDS[uid]))})", KNOWN)
        assert () == found.problems
        assert all(label in KNOWN[name].labels for name in found.names)


def test_rates_use_the_window_of_the_graph():
    """`$__rate_interval` for graphs, `$__range` for sums over the time shown; no window by hand."""
    windows = {window for _, one in QUERIES for window in re.findall(r"\[([^\]]+)\]", one.expr)}
    assert {"$__rate_interval", "$__range", "$__range:1m"} == windows


def test_what_looks_at_the_whole_time_is_asked_once():
    """A month of minutes at each of a graph's thousand points would bring a server down; at the end is once."""
    each_point = re.compile(r"\[\$__range(:1m)?\](?! @ end\(\))|(?<!end\(\)) offset \$__range")
    assert [] == [(uid, one.panel) for uid, one in QUERIES if each_point.search(one.expr) and not one.instant]


@BY_UID
def test_lines_are_the_same_few_at_every_moment(uid):
    """The largest of each moment would be others all the time, and a legend of 50: who is shown is chosen once."""
    by_moment = re.compile(r"topk\(\d+, (.*)")
    wrong = [
        one.panel
        for panel in queries.panels(DASHBOARDS[uid])
        if panel["type"] == "timeseries"
        for one in queries.asked({"panels": [panel]})
        for ranked in by_moment.findall(one.expr.split(" or on ()")[0])
        if re.search(r"\}(\[[^\]]+\])?(?! @ end\(\))(?!\[)", ranked)
    ]
    assert [] == wrong


def test_every_metric_of_the_catalogue_is_shown_somewhere():
    """A figure that no dashboard shows helps nobody; the exceptions say why."""
    hidden = {
        "gpushare_simulated_clock_seconds": "the embedded cluster's clock, which no real one has",
        "gpushare_card_exclusive": "shown as the mode of containers",
        "gpushare_card_utilisation_ratio": "one cycle of the exporter; boards show averages, from the busy seconds",
        "gpushare_container_compute_used_ratio": "likewise, from the compute seconds",
        "gpushare_autoscaler_config_last_reload_success_timestamp_seconds": "whether it succeeded is shown",
        "gpushare_autoscaler_grpc_request_duration_seconds": "answers come from memory; the calls are shown",
    }
    shown = set().union(*(labels_of(uid, one.expr).names for uid, one in QUERIES))
    missing = {
        name
        for name in promql.CATALOGUE
        if not {name, f"{name}_bucket"} & shown and promql.CATALOGUE[name] not in promql.GENERAL
    }
    assert set(hidden) == missing


def test_growth_of_a_young_series_begins_at_zero():
    """What was there before the window grows by `increase`; what was not has all of it."""
    assert "((x unless x offset $__range) or increase(x[$__range]))" == promql.begun("x")


@pytest.mark.parametrize(
    ("expr", "word"),
    [
        pytest.param("gpushare_nothing", "no catalogue", id="no-such-metric"),
        pytest.param('gpushare_card_power_watts{pod="a"}', "no label pod", id="no-such-label"),
        pytest.param("sum(gpushare_card_energy_joules_total)", "counter", id="counter-without-rate"),
        pytest.param("rate(gpushare_card_power_watts[5m])", "no counter", id="rate-of-a-gauge"),
        pytest.param("sum by (pod) (gpushare_card_power_watts)", "nothing within", id="by-a-strange-label"),
        pytest.param(
            "gpushare_container_memory_used_bytes / gpushare_card_memory_total_bytes", "never matches", id="peers-bug"
        ),
        pytest.param("gpushare_card_power_watts / gpushare_card_power_limit_watts", "may be 0", id="quotient"),
        pytest.param(
            "gpushare_card_power_watts * on (node, pod) group_left () gpushare_card_info", "matches on", id="join"
        ),
        pytest.param(
            "gpushare_card_power_watts * on (node) group_left (driver) gpushare_card_info", "carries", id="carried"
        ),
        pytest.param(
            "histogram_quantile(0.9, sum(rate(gpushare_scheduler_request_duration_seconds_bucket[5m])))",
            "without le",
            id="quantile",
        ),
    ],
)
def test_the_reader_sees_mistakes(expr, word):
    """What the checks above rest on: each mistake is found, and in words."""
    assert any(word in problem for problem in read(expr, KNOWN).problems)


def test_a_selector_refuses_labels_that_the_metric_does_not_have():
    """A typing error fails when the dashboard is built."""
    with pytest.raises(ValueError, match="has no label"):
        promql.Scope(("job",))(promql.UP, 'pod="a"')


def test_an_unknown_variable_is_a_mistake():
    """Nothing is sent to a server with a variable in it."""
    with pytest.raises(ValueError, match=r"\$nobody is not a variable"):
        queries.filled("up{a=~'$nobody'}", {})
