# SPDX-License-Identifier: Apache-2.0
"""
`gpushare rules`: the files that are written, and the check that they are what the sources say.
"""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from dashboards.rules.catalogue import ALERTS, GROUPS
from dashboards.rules.render import OPERATOR, PLAIN, files
from dashboards.rules_cli import COMMITTED, rules


def go(*words):
    """Run it."""
    return CliRunner().invoke(rules, words)


def test_the_committed_files_are_current():
    """What stands in the repository is what `gpushare rules build` would write."""
    done = go("check")

    assert (0, f"{len(ALERTS)} alerts") == (done.exit_code, done.output.split(",")[0]), done.output


def test_both_files_have_the_same_rules(tmp_path):
    """For a plain Prometheus and for its operator; the operator's is an object that it picks up."""
    assert 0 == go("build", "--out", str(tmp_path / "new")).exit_code
    plain, operator = (yaml.safe_load((tmp_path / "new" / name).read_text()) for name in (PLAIN, OPERATOR))

    assert plain == operator["spec"]
    assert [group.name for group in GROUPS] == [group["name"] for group in plain["groups"]]
    assert ("monitoring.coreos.com/v1", "PrometheusRule") == (operator["apiVersion"], operator["kind"])
    assert "gpushare-system" == operator["metadata"]["namespace"]
    assert {"prometheus": "k8s", "role": "alert-rules"}.items() <= operator["metadata"]["labels"].items()


def test_a_change_by_hand_is_found(tmp_path):
    """Status 1, which file, and what to do."""
    go("build", "--out", str(tmp_path))
    (tmp_path / PLAIN).write_text((tmp_path / PLAIN).read_text().replace("critical", "info"))
    (tmp_path / OPERATOR).unlink()
    done = go("check", "--out", str(tmp_path))

    assert 1 == done.exit_code
    assert f"{tmp_path / PLAIN} is out of date" in done.output
    assert f"{tmp_path / OPERATOR} is missing" in done.output
    assert "gpushare rules build" in done.output


def test_every_alert_is_written_whole():
    """Severity, summary, description and the address of its runbook, wherever runbooks are published."""
    text = files("https://wiki.example.org/gpu/")[PLAIN]
    written = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "alert" in rule]

    assert [alert.name for alert in ALERTS] == [rule["alert"] for rule in written]
    for rule in written:
        assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
        assert f"https://wiki.example.org/gpu/{rule['alert']}.md" == rule["annotations"]["runbook_url"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_name_of_an_alert_may_stand_anywhere_in_the_address_of_its_runbook():
    """A site has pages and no .md files."""
    text = files("https://docs.example.org/runbooks/{alert}.html")[PLAIN]

    assert {f"https://docs.example.org/runbooks/{alert.name}.html" for alert in ALERTS} == {
        rule["annotations"]["runbook_url"]
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


@pytest.mark.parametrize("address", ["runbooks", "javascript:alert(1)", "https://a b"])
def test_an_address_that_is_none_is_refused(tmp_path, address):
    """It would stand in every alert."""
    done = go("build", "--out", str(tmp_path / "new"), "--runbooks", address)

    assert 2 == done.exit_code
    assert "https://host/path" in done.output
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    """One line with the way out."""
    (tmp_path / "file").write_text("")
    done = go("build", "--out", str(tmp_path / "file" / "below"))

    assert 1 == done.exit_code
    assert "choose another directory with --out" in done.output


def test_the_same_book_gives_the_same_bytes():
    """So that a diff shows changes only."""
    assert files() == files()
    assert (COMMITTED / PLAIN).read_text() == files()[PLAIN]
