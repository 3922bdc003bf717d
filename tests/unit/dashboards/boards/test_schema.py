# SPDX-License-Identifier: Apache-2.0
"""
The dashboards as Grafana reads them: no key that its typed schema does not know, no overlap, nothing unnamed.
"""

from __future__ import annotations

import json
import re
import warnings

import pytest

from dashboards.boards import files, queries
from dashboards.boards.grafana_json import SCHEMA, encode_dashboard
from dashboards.boards.layout import COLUMNS, even, wide
from dashboards.boards.panel import stat

DASHBOARDS = {board.uid: json.loads(files.text(board)) for board in files.BOARDS}
BY_UID = pytest.mark.parametrize("uid", DASHBOARDS)
UNITS = {
    *("short", "bytes", "percentunit", "s", "watt", "watth", "celsius", "hertz", "reqps", "Bps"),
    *("suffix: GiB h", "suffix: card h"),
}
"""Units in use, each one that Grafana knows (`suffix:` is free text behind a number)."""
PLUGINS = {"stat", "gauge", "bargauge", "timeseries", "table", "state-timeline"}


def lost(ours, theirs, path=""):
    """Keys and values of ours that are not in theirs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key not in theirs:
                yield f"{path}/{key}"
            else:
                yield from lost(value, theirs[key], f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{path}: {len(ours)} != {len(theirs)}"
        for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from lost(one, other, f"{path}/{place}")
    elif ours != theirs:
        yield f"{path}: {ours!r} != {theirs!r}"


@pytest.fixture(scope="module")
def grafana():
    """Encodes and decodes by Grafana's typed schema."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # v1 is the widest choice, and deprecated since June 2026
        from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415 (a warning comes with it)
        from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: PLC0415
        from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

        register_default_plugins()
        return lambda ours: json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))


@BY_UID
def test_no_key_is_dropped_in_a_round_trip(grafana, uid):
    """Every key and value survives Grafana's own types."""
    assert [] == list(lost(DASHBOARDS[uid], grafana(DASHBOARDS[uid])))


def test_the_round_trip_sees_an_unknown_key(grafana):
    """What the check above rests on."""
    ours = json.loads(json.dumps(DASHBOARDS["gpushare-overview"]))
    ours["panels"][1]["fieldConfig"]["defaults"]["calcs"] = ["last"]
    ours["panels"][1]["span"] = 6
    assert ["/panels/1/fieldConfig/defaults/calcs", "/panels/1/span"] == sorted(lost(ours, grafana(ours)))


@BY_UID
def test_schema_and_switches(uid):
    """Schema 42, a fixed address, not editable, no null but the first step of thresholds."""
    ours = DASHBOARDS[uid]
    assert (SCHEMA, uid, False) == (ours["schemaVersion"], ours["uid"], ours["editable"])
    assert 8 <= len(uid) <= 40
    nulls = {path for path in _nulls(ours) if not re.search(r"/steps/0/value$", path)}
    assert set() == nulls


def _nulls(value, path=""):
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _nulls(one, f"{path}/{key}")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from _nulls(one, f"{path}/{place}")


@BY_UID
def test_layout(uid):
    """24 columns, no cell twice, ids unique, no hole between the panels of a page."""
    cells = []
    ids = [panel["id"] for panel in DASHBOARDS[uid]["panels"]]
    for panel in DASHBOARDS[uid]["panels"]:
        at = panel["gridPos"]
        cells += [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(ids) == len(set(ids))
    assert len(cells) == len(set(cells))
    tall = max(y for _, y in cells) + 1
    assert {(x, y) for x in range(COLUMNS) for y in range(tall)} == set(cells)


@BY_UID
def test_every_panel_says_what_it_is(uid):
    """Title, description, data source, a unit that Grafana knows, a plugin that is not deprecated, queries."""
    for panel in queries.panels(DASHBOARDS[uid]):
        assert panel["type"] in PLUGINS
        assert panel["title"]
        assert panel["description"].endswith((".", ":")), panel["title"]
        assert {"type": "prometheus", "uid": "${datasource}"} == panel["datasource"]
        assert panel["targets"]
        units = {panel["fieldConfig"]["defaults"]["unit"]}
        for override in panel["fieldConfig"]["overrides"]:
            units |= {part["value"] for part in override["properties"] if part["id"] == "unit"}
        assert units <= UNITS, panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters))


@BY_UID
def test_titles_are_unique_within_their_section(uid):
    """A panel can be named in words."""
    for board in (board for board in files.BOARDS if board.uid == uid):
        for section in board.sections:
            titles = [panel.title for band in section.bands for _, panel in band.panels]
            assert len(titles) == len(set(titles))


@BY_UID
def test_variables(uid):
    """
    A data source first; the rest asked again when the time changes, several at once, with an All that matches. `job`
    is on every page; `instance` on the one about processes: cards and containers say their node themselves.
    """
    first, *rest = DASHBOARDS[uid]["templating"]["list"]
    assert ("datasource", "datasource", "prometheus") == (first["type"], first["name"], first["query"])
    for variable in rest:
        if variable["type"] == "custom":
            assert variable["current"]["value"] in variable["query"].split(",")
            continue
        assert (2, True, True) == (variable["refresh"], variable["multi"], variable["includeAll"])
        assert variable["allValue"] in (".*", ".+")
        assert variable["definition"] == variable["query"]["query"]
    assert {"cluster", "job"} <= {variable["name"] for variable in rest}


@BY_UID
def test_every_selector_is_narrowed_by_cluster_and_job(uid):
    """Two installations in one Prometheus never meet in a figure."""
    for one in queries.asked(DASHBOARDS[uid]):
        for picks in re.findall(r"\{([^}]*)\}", re.sub(r"\$\{\w+\}", "", one.expr)):
            wanted = (
                {'cluster=~"$cluster"'} if 'alertstate="firing"' in picks else {'cluster=~"$cluster"', 'job=~"$job"'}
            )
            assert wanted <= set(picks.split(",")), (one.panel, one.expr)


def test_every_dashboard_is_reachable_with_time_and_choices():
    """By the tag from everywhere; links in tables lead to addresses that exist, and carry data source and time."""
    for ours in DASHBOARDS.values():
        (link,) = ours["links"]
        assert (True, True) == (link["includeVars"], link["keepTime"])
        assert set(link["tags"]) <= set(ours["tags"])
        urls = re.findall(r'"(/d/[^"]+)"', json.dumps(ours))
        for url in urls:
            address, _, fields = url.partition("?")
            target = DASHBOARDS[address.removeprefix("/d/")]
            assert "${__url_time_range}" in fields
            assert "${datasource:queryparam}" in fields
            known = {variable["name"] for variable in target["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", fields)) <= known
            assert set(re.findall(r"\$\{(\w+):queryparam\}", fields)) <= {v["name"] for v in ours["templating"]["list"]}


@BY_UID
def test_links_in_tables_read_columns_that_exist(uid):
    """`${__data.fields.Pod}` is a column of the same table."""
    for panel in queries.panels(DASHBOARDS[uid]):
        if panel["type"] == "table":
            organize = panel["transformations"][-1]["options"]
            columns = set(organize["renameByName"].values())
            assert set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel))) <= columns
            assert {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]} <= columns


def test_committed_files_are_what_the_code_writes():
    """`gpushare dashboards check`, as continuous integration asks."""
    assert [] == list(files.stale(files.FOLDER))


def test_uids_differ():
    """Two dashboards with one uid would overwrite each other."""
    assert len(files.BOARDS) == len(DASHBOARDS) == 7


def test_a_band_that_does_not_fill_the_page_is_refused():
    """Widths add up to 24, or it is said."""
    panel = stat("A", "B.", "1")
    with pytest.raises(ValueError, match="24 columns, not 23"):
        wide(4, (12, panel), (11, panel))
    with pytest.raises(ValueError, match="evenly"):
        even(4, *[panel] * 5)


def test_building_twice_gives_the_same():
    """No order or clock in the files."""
    assert [json.dumps(encode_dashboard(board)) for board in files.BOARDS] == [
        json.dumps(encode_dashboard(board)) for board in files.BOARDS
    ]
