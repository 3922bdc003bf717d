# SPDX-License-Identifier: Apache-2.0
"""
The repository's own automation names only what is there: targets, scripts, images, folders, Python versions.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml") if path.stem != "config")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

each = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path):
    """The jobs of a workflow."""
    return yaml.safe_load(path.read_text())["jobs"].values()


def steps(path):
    """All steps of a workflow."""
    return [step for job in jobs(path) for step in job["steps"]]


def test_there_are_the_four_that_people_expect():
    assert ["all", "images", "lint", "unit"] == [path.stem for path in WORKFLOWS]


@each
def test_what_a_workflow_runs_is_there(path):
    """Make's targets, scripts and stages of the image build."""
    run = [step["run"] for step in steps(path) if "run" in step]
    assert run
    for line in run:
        for target in re.findall(r"\bmake ([a-z-]+)", line):
            assert target in TARGETS
        for script in re.findall(r"(?:^| )(\.ci/\S+|images/\S+)", line):
            assert (ROOT / script).is_file()


@each
def test_a_workflow_may_read_only_and_ends(path):
    """A pull request of a stranger gets no right to write, no stored credentials, and no machine for ever."""
    document = yaml.safe_load(path.read_text())
    assert {"contents": "read"} == document["permissions"]
    assert all(job["timeout-minutes"] <= 120 for job in jobs(path))
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts or "pull_request_target" not in path.read_text()
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_images_are_those_that_the_file_makes():
    stages = set(re.findall(r"^FROM .* AS (\w+)", (ROOT / "images" / "Containerfile").read_text(), re.MULTILINE))
    (job,) = jobs(ROOT / ".github" / "workflows" / "images.yaml")
    assert set(job["strategy"]["matrix"]["image"]) <= stages


def test_the_oldest_python_is_the_one_that_is_promised():
    (job,) = jobs(ROOT / ".github" / "workflows" / "unit.yaml")
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f">={job['strategy']['matrix']['python'][0]}" == required


def test_folders_that_the_cache_key_hashes_are_there():
    (key,) = {
        step["with"]["key"] for step in steps(ROOT / ".github/workflows/all.yaml") if "key" in step.get("with", {})
    }
    patterns = re.findall(r"'([^']+)'", key)
    assert patterns
    assert all(list(ROOT.glob(pattern)) for pattern in patterns)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_an_issue_is_one_that_github_shows(path):
    """A form with a mistake is silently left out: these keys it must have, and these kinds of questions there are."""
    form = yaml.safe_load(path.read_text())
    labels = [part["attributes"]["label"] for part in form["body"]]

    assert {"name", "description", "labels", "body"} == set(form)
    assert {"textarea", "input", "dropdown", "checkboxes"} >= {part["type"] for part in form["body"]}
    assert len(labels) == len(set(labels))
    assert any(part.get("validations") == {"required": True} for part in form["body"])
    for part in form["body"]:
        assert (part["type"] in {"dropdown", "checkboxes"}) == ("options" in part["attributes"])


def test_hooks_run_the_tools_of_the_environment():
    """No second place that pins their versions."""
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert "local" == repo["repo"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repo["hooks"])
