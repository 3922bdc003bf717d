# SPDX-License-Identifier: Apache-2.0
"""
`gpushare dashboards build|check|list` as people and continuous integration call it.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dashboards.boards import files
from dashboards.cli import dashboards


@pytest.fixture
def call():
    """Runs the command."""
    return lambda *words: CliRunner().invoke(dashboards, list(words))


def test_build_writes_every_dashboard_and_check_agrees(call, tmp_path):
    """Made folder, one file each, valid JSON, current."""
    folder = tmp_path / "new" / "folder"
    built = call("build", "--out", str(folder))
    assert 0 == built.exit_code
    assert {board.uid for board in files.BOARDS} == {json.loads(path.read_text())["uid"] for path in folder.iterdir()}
    checked = call("check", "--dir", str(folder))
    assert (0, "7 dashboards are up to date\n") == (checked.exit_code, checked.output)


def test_check_says_what_is_stale_missing_or_strange(call, tmp_path):
    """Status 1, the first differences, and what to run."""
    call("build", "--out", str(tmp_path))
    changed = tmp_path / "gpushare-pod.json"
    changed.write_text(changed.read_text().replace('"title": "Promised"', '"title": "Given"'))
    (tmp_path / "gpushare-internals.json").unlink()
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "gpushare-card.json").write_bytes(b"\xff\xfe")
    checked = call("check", "--dir", str(tmp_path))
    assert 1 == checked.exit_code
    for words in (
        "gpushare-pod.json is stale",
        '-      "title": "Given"',
        '+      "title": "Promised"',
        "gpushare-internals.json is missing",
        "gpushare-card.json cannot be read",
        "old.json is not a gpushare dashboard",
        f"run: gpushare dashboards build --out {tmp_path}",
    ):
        assert words in checked.output
    assert len(checked.output.splitlines()) < 40


def test_build_where_nothing_can_be_written(call, tmp_path):
    """A sentence, no traceback."""
    (tmp_path / "file").write_text("")
    built = call("build", "--out", str(tmp_path / "file" / "folder"))
    assert 1 == built.exit_code
    assert "cannot write" in built.output
    assert "Traceback" not in built.output


def test_list(call):
    """Names and addresses."""
    shown = call("list")
    assert 0 == shown.exit_code
    assert all(board.address in shown.output for board in files.BOARDS)
