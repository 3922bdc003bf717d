# SPDX-License-Identifier: Apache-2.0
"""
What makes a page readable: marked moments, legends that do not outgrow their graph, recorded series, one card alone.
"""

from __future__ import annotations

import json

import pytest
from support.promql_reading import read

from dashboards import promql
from dashboards.boards import files
from dashboards.boards import queries as asked
from dashboards.boards.grafana_json import encode_dashboard

KNOWN = promql.series()
DASHBOARDS = {board.uid: json.loads(json.dumps(encode_dashboard(board))) for board in files.BOARDS}
GRAPHS = [
    (uid, panel)
    for uid, dashboard in DASHBOARDS.items()
    for panel in asked.panels(dashboard)
    if panel["type"] == "timeseries"
]


@pytest.mark.parametrize("uid", ["gpushare-overview", "gpushare-card"])
def test_moves_purchases_releases_and_xids_are_marked(uid):
    """Each mark asks for real series, within the page's choices, and shows labels that its result has."""
    marks = DASHBOARDS[uid]["annotations"]["list"]
    assert ["Moves", "Purchases", "Releases", "XID errors"] == [mark["name"] for mark in marks]
    values = asked.defaults(DASHBOARDS[uid]) | asked.windows("5m", "6h")
    for mark in marks:
        found = read(asked.filled(mark["expr"], values), KNOWN)
        assert () == found.problems
        assert all(f"{{{{{label}}}}}" in mark["textFormat"] for label in found.labels)
        assert 'cluster=~"$cluster"' in mark["expr"]


def test_a_legend_with_a_line_for_each_object_scrolls_beside_its_graph():
    """Below the graph, tens of names would leave no room for it."""
    many = [
        panel
        for _, panel in GRAPHS
        if any("{{" in target["legendFormat"] for target in panel["targets"])
        and not panel["options"]["legend"]["calcs"]
    ]
    assert [] == [panel["title"] for panel in many]
    beside = [panel for _, panel in GRAPHS if panel["options"]["legend"]["placement"] == "right"]
    assert len(beside) > 20
    assert all(panel["options"]["legend"]["width"] <= 250 for panel in beside)


def test_a_line_for_each_of_the_largest_is_never_more_than_ten_lines():
    """The ten at one moment, the end; the ten at each moment were 58 cards in two minutes."""
    (panel,) = (one for one in asked.panels(DASHBOARDS["gpushare-overview"]) if one["title"] == "Fullest cards")
    kept, _, chosen = panel["targets"][0]["expr"].rpartition(" and topk(10, ")

    assert "@" not in kept
    assert chosen.count("}") == chosen.count("@ end()") == 3


def test_the_first_error_of_a_series_is_shown():
    """`increase` alone takes the first value for what it always was."""
    for uid, title in (("gpushare-card", "Errors"),):
        (panel,) = (panel for panel in asked.panels(DASHBOARDS[uid]) if panel["title"] == title)
        assert all(" unless " in target["expr"] and "topk(10" in target["expr"] for target in panel["targets"])


def test_long_ranges_ask_recorded_series():
    """A month of minutes of each container would bring a server down; recorded namespaces do not."""
    queries = [one for one in asked.asked(DASHBOARDS["gpushare-namespace"]) if "[$__range:1m]" in one.expr]
    raw = [one.panel for one in queries if "namespace:gpushare_" not in one.expr]
    assert len(queries) > 5
    assert {"Namespaces"} >= set(raw), "only the promised compute has no recorded series"


def test_firing_alerts_are_on_the_first_page_with_their_runbooks():
    """Also those of which no job is reported."""
    (panel,) = (panel for panel in asked.panels(DASHBOARDS["gpushare-overview"]) if panel["title"] == "Alerts")
    assert "/docs/runbooks/${__value.text}.md" in json.dumps(panel)
    assert "job=~" not in panel["targets"][0]["expr"]


def test_one_card_has_the_page_to_itself():
    """The link of its UUID narrows every query about cards and containers."""
    page = DASHBOARDS["gpushare-card"]
    assert "var-uuid=${__data.fields.UUID}" in json.dumps(page)
    wrong = []
    for one in asked.asked(page):
        names = read(asked.filled(one.expr, asked.defaults(page) | asked.windows("5m", "6h")), KNOWN).names
        if any("uuid" in KNOWN[name].labels for name in names) and 'uuid=~"$uuid"' not in one.expr:
            wrong.append(one.panel)
    assert [] == wrong
