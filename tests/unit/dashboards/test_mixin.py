# SPDX-License-Identifier: Apache-2.0
"""The mixin as jsonnet evaluates it: the committed rules and dashboards, and what its configuration changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from e2e.binaries import Missing, find_jsonnet
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "dashboards" / "mixin.libsonnet"
RULES = yaml.safe_load((ROOT / "dashboards/rules/out/gpushare.rules.yaml").read_text())["groups"]
BOARDS = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards" / "json").glob("*.json")}


def evaluated(config="{}"):
    """All that a mixin has."""
    found = find_jsonnet()
    if isinstance(found, Missing):
        pytest.skip(str(found))
    program = f"local m = (import '{FILE}') {{ _config+:: {config} }}; {{ [k]: m[k] for k in std.objectFieldsAll(m) }}"
    done = subprocess.run(
        [str(found), "-e", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def alerts(made):
    """By name."""
    return {
        rule["alert"]: rule
        for group in made["prometheusAlerts"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_it_is_the_committed_rules_and_dashboards():
    """
    All of them; no alert stands among the records.
    """
    made = evaluated()
    rules = [*made["prometheusRules"]["groups"], *made["prometheusAlerts"]["groups"]]

    assert {group["name"]: group for group in RULES} == {group["name"]: group for group in rules}
    assert len(RULES) == len(rules)
    assert BOARDS == made["grafanaDashboards"]
    assert [] == [rule for group in made["prometheusRules"]["groups"] for rule in group["rules"] if "alert" in rule]


def test_its_configuration_changes_alerts_and_dashboards():
    """
    Labels are added, alerts left out; tags, refresh and time zone are those that are given. Records stay.
    """
    plain = evaluated()
    [first, *others] = alerts(plain)
    changed = evaluated(
        f"{{ alertLabels: {{ team: 'gpu' }}, disabledAlerts: ['{first}'], dashboardTags: ['a'],"
        " dashboardRefresh: '1m', dashboardTimezone: 'utc' }"
    )

    assert others == list(alerts(changed))
    assert {"gpu"} == {rule["labels"]["team"] for rule in alerts(changed).values()}
    assert plain["prometheusRules"] == changed["prometheusRules"]
    assert {(("a",), "1m", "utc")} == {
        (tuple(board["tags"]), board["refresh"], board["timezone"]) for board in changed["grafanaDashboards"].values()
    }
