# SPDX-License-Identifier: Apache-2.0
"""
Every alert has a page that can be followed at night: its commands exist, its links lead somewhere.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from support.prometheus_harness import program
from support.waiting import PATIENCE_SECONDS

import gpushare
from dashboards.rules import reference
from dashboards.rules.catalogue import ALERTS

ROOT = Path(__file__).resolve().parents[4]
DOCS = ROOT / "docs"
PAGES = DOCS / "runbooks"
OBJECTS = {"ds": "DaemonSet", "deploy": "Deployment", "configmap": "ConfigMap"}
VERBS = {"get", "describe", "logs", "delete", "cordon", "drain", "exec", "patch", "apply", "top"}
MANIFESTS = "\n".join(path.read_text() for path in (ROOT / "manifests").rglob("*.yaml"))


def text(alert):
    """Its page."""
    return (PAGES / f"{alert.name}.md").read_text()


def commands(page):
    """Lines of its blocks, and commands within sentences."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    inline = re.findall(r"`((?:gpushare|kubectl) [^`]*)`", page.replace("\n  ", " "))
    return [line for block in blocks for line in block.splitlines()] + inline


def test_there_is_a_page_for_each_and_for_nothing_else():
    """A page of an alert that is gone misleads."""
    assert sorted(f"{alert.name}.md" for alert in ALERTS) == sorted(path.name for path in PAGES.iterdir())


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_page_says_what_how_and_when_not(alert):
    """Severity and patience as in the rule, five parts in order, none empty."""
    page = text(alert)
    when = "at once" if alert.patience == "0s" else f"after {alert.patience}"
    parts = re.split(r"\n## (.+)\n", page)

    assert page.startswith(f"# {alert.name}\n**{alert.severity.value}**, fires {when}")
    assert (f", keeps firing for {alert.hold}" in page) is bool(alert.hold)
    assert ["Impact", "Diagnosis", "Mitigation", "When to ignore"] == parts[1::2]
    assert all(len(part.strip()) > 10 for part in parts[::2])
    assert commands(page)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_its_commands_exist(alert):
    """Every command of ours, with its options, and every object of ours that kubectl is asked for."""
    for line in commands(text(alert)):
        words = shlex.split(line)
        if words[0] == "gpushare":
            _exists(words[1:])
            continue
        assert "kubectl" == words[0]
        if "--" in words and "gpushare" == words[words.index("--") + 1]:
            _exists(words[words.index("--") + 2 :])
            assert {word for word in words if word.startswith("/")} <= set(re.findall(r"/etc/[\w./]+", MANIFESTS)), line
        rest = words[3:] if words[1] == "-n" else words[1:]
        assert rest[0] in VERBS, line
        for kind, name in re.findall(r"\b(ds|deploy|configmap)[ /](gpushare[\w-]*)", line):
            assert re.search(rf"kind: {OBJECTS[kind]}\nmetadata:\n  name: {name}\n", MANIFESTS), line


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_logs_are_those_of_the_affected_pod(alert):
    """`kubectl logs deploy/...` and `ds/...` show one pod of several, perhaps not the one that fails."""
    assert [] == [line for line in commands(text(alert)) if re.search(r"\blogs (deploy|ds)/", line)]


def test_the_plan_is_asked_for_with_the_configuration():
    """Without it there are no pools, and the plan says nothing about the autoscaler that runs."""
    plans = [line for alert in ALERTS for line in commands(text(alert)) if " plan" in line]
    assert plans
    assert [] == [line for line in plans if " --config " not in line]


def _exists(words):
    group, at = gpushare.main, click.Context(gpushare.main)
    while isinstance(group, click.Group):
        if not words or words[0].startswith("-"):
            break
        found = group.get_command(at, words[0])
        if found is None:
            break
        group, words = found, words[1:]
    assert group is not gpushare.main, words
    known = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert {word for word in words if word.startswith("-") and word != "-"} <= known, words


@pytest.mark.parametrize("page", [*sorted(PAGES.glob("*.md")), DOCS / "alerts.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Within the repository."""
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not link.startswith("https://"):
            assert (page.parent / link.partition("#")[0]).exists(), link


def test_the_example_for_alertmanager_is_one(tmp_path):
    """It is accepted by amtool, and names alerts and labels that there are."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "alerts.md").read_text(), re.DOTALL)
    (tmp_path / "alertmanager.yml").write_text(example)
    words = [program("amtool"), "check-config", str(tmp_path / "alertmanager.yml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    assert 0 == done.returncode, done.stderr
    assert "5 inhibit rules" in done.stdout
    assert set(re.findall(r"Gpushare\w+", example)) <= {alert.name for alert in ALERTS}


def test_the_reference_is_printed_from_the_rules():
    """docs/alerts.md is what `python -m dashboards.rules.reference` prints."""
    assert reference.page() == (DOCS / "alerts.md").read_text()
