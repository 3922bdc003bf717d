# SPDX-License-Identifier: Apache-2.0
"""Every defence that the threat model claims is shown by a test that exists, or said to be a limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "threats.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`", TEXT)))
CLAIMS = re.sub(r"(?s)<!-- Made from .*?<!-- end -->", "", TEXT)  # that table is a test's, named above it
ROWS = [
    line for line in CLAIMS.splitlines() if line.startswith("| ") and not line.startswith(("| attempt", "| process"))
]
ROWS = [row for row in ROWS if not row.startswith("| mistake")]


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{Path(path).stem}-{name}" for path, name in NAMED])
def test_a_test_that_is_named_exists(path, name):
    """
    A test that was renamed or taken out takes its defence with it.
    """
    # not by `ast`, whose C code in 3.11 fails where a collection of garbage runs amid it
    there = re.findall(r"^ *(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)

    assert name in there


def test_every_row_names_a_test_or_states_a_limit():
    """
    Nothing is claimed without either.
    """
    assert len(ROWS) > 40
    assert [] == [row for row in ROWS if "::test_" not in row and "**limit**" not in row]


def test_whatever_looks_like_a_test_is_written_as_one():
    """
    A misspelt reference would not be checked at all.
    """
    assert len(re.findall(r"::test_", TEXT)) == len(re.findall(r"`tests/[a-z0-9_/]+\.py::test_[a-z0-9_]+`", TEXT))
