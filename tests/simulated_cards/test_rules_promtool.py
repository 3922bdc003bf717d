# SPDX-License-Identifier: Apache-2.0
"""
promtool's judgement of the rules, and unit tests for each alert: tests/golden/rules/*.test.yaml.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest
import yaml
from support.prometheus_harness import program
from support.waiting import PATIENCE_SECONDS

from dashboards import promql
from dashboards.rules.catalogue import ALERTS, RECORDS
from dashboards.rules.render import PLAIN
from dashboards.rules_cli import COMMITTED

CASES = Path(__file__).parents[1] / "golden/rules"
FILES = sorted(CASES.glob("*.test.yaml"))
WITHOUT_ANY_SERIES = {"GpushareExportersNotScraped"}
"""Alerts about what is not there, whatever else is."""


@functools.cache
def read(path):
    """A file of unit tests."""
    return yaml.safe_load(path.read_text())


@functools.cache
def committed():
    """Every group of rules."""
    return yaml.safe_load((COMMITTED / PLAIN).read_text())["groups"]


def name_of(rule):
    """Of an alert or a record."""
    return rule.get("record") or rule["alert"]


@functools.cache
def needed(names):
    """These alerts, and every record that they are made of."""
    rules = {name_of(rule): rule["expr"] for group in committed() for rule in group["rules"]}
    records = {rule["record"] for group in committed() for rule in group["rules"] if "record" in rule}
    more = {record for record in records if any(record in rules[name] for name in names)} - names
    return needed(names | more) if more else names


def spoken_of(rules, wanted):
    """Those of a group that the tests of some alerts need, in their order."""
    names = needed(frozenset(wanted))
    return [rule for rule in rules if name_of(rule) in names]


def trials():
    """(file, test) of all."""
    return [(path.name, test) for path in FILES for test in read(path)["tests"]]


def asked():
    """(alert, what the test's alerts are) of every question."""
    return [
        (one["alertname"], one["exp_alerts"], test["input_series"])
        for _, test in trials()
        for one in test.get("alert_rule_test", ())
    ]


def test_promtool_accepts_the_rules():
    """Syntax, templates, durations, no duplicate."""
    words = [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", COMMITTED / PLAIN]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert f"{len(ALERTS) + len(RECORDS)} rules found" in done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".test.yaml"))
def test_alerts_fire_when_they_should(path, tmp_path):
    """
    As said in the file, for the rules as they are committed; only those that it speaks of, to save time.
    """
    cases = read(path)
    wanted = {one["alertname"] for test in cases["tests"] for one in test.get("alert_rule_test", ())}
    queries = " ".join(one["expr"] for test in cases["tests"] for one in test.get("promql_expr_test", ()))
    wanted |= {name for group in committed() for rule in group["rules"] if (name := name_of(rule)) in queries}
    groups = [group | {"rules": kept} for group in committed() if (kept := spoken_of(group["rules"], wanted))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(cases | {"rule_files": ["rules.yaml"]}))
    words = [program("promtool"), "test", "rules", "test.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)

    assert "SUCCESS" in done.stdout, done.stdout + done.stderr
    assert 0 == done.returncode


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_is_tried_in_three_ways(alert):
    """It fires; it is silent although its series are there; and it is tried where there are none at all."""
    mine = [(expected, series) for name, expected, series in asked() if name == alert.name]

    assert [expected for expected, series in mine if expected and (series or alert.name in WITHOUT_ANY_SERIES)]
    assert [expected for expected, series in mine if not expected and series]
    if alert.name not in WITHOUT_ANY_SERIES:
        tried = {
            name
            for _, test in trials()
            if not test["input_series"]
            for name in [one["alertname"] for one in test.get("alert_rule_test", ())]
        }
        assert alert.name in tried


def test_the_unit_tests_speak_of_real_series():
    """Every series of the tests is in the catalogue with these labels: none fires on a name that nobody exposes."""
    known = promql.series()
    for name, test in trials():
        for line in test["input_series"]:
            metric, _, rest = line["series"].partition("{")
            labels = {part.split("=")[0].strip() for part in rest.removesuffix("}").split(", ") if part}
            assert metric in known, (name, test["name"], metric)
            assert labels <= known[metric].labels, (name, test["name"], metric)


def test_no_unit_test_asks_for_an_alert_that_is_not_there():
    """A renamed alert would be silent for ever."""
    assert set() == {name for name, _, _ in asked()} - {alert.name for alert in ALERTS}
