# SPDX-License-Identifier: Apache-2.0
"""The pages about other systems: every example is what `gpushare migrate` prints, and every name is there."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushare import main
from isolation.contract.dialects import SYSTEMS

PAGES = Path(__file__).resolve().parents[3] / "docs" / "dialects"
EXAMPLE = re.compile(r"```yaml\n(.*?)```\n```\n\$ gpushare (migrate .*?)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_examples_of_a_page_are_what_is_printed(name, tmp_path, monkeypatch):
    """Word for word; GPUSHARE_UPDATE_GOLDEN=1 writes them."""
    page = PAGES / f"{name}.md"
    monkeypatch.chdir(tmp_path)

    def printed(match):
        manifest, command, _ = match.groups()
        Path("pod.yaml").write_text(manifest)
        done = CliRunner().invoke(main, shlex.split(command), catch_exceptions=False)
        assert 0 == done.exit_code, done.output
        return match[0][: match.start(3) - match.start()] + done.stdout + "```"

    text = page.read_text()
    assert EXAMPLE.search(text)
    made = EXAMPLE.sub(printed, text)
    if os.environ.get("GPUSHARE_UPDATE_GOLDEN"):
        page.write_text(made)
    assert made == page.read_text()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_page_names_all_that_its_dialect_reads(name):
    """Resources, annotations and schedulers of the table."""
    system, text = SYSTEMS[name], (PAGES / f"{name}.md").read_text()
    names = (*system.resources, *system.implied, *system.annotations, *system.also_removed, *system.schedulers)
    missing = {one for one in names if one not in text and one.partition("/")[2] not in text}
    missing |= {one for one in system.container_annotations if one.format("NAME") not in text}
    assert set() == missing
