# SPDX-License-Identifier: Apache-2.0
"""Promises on disk and the source that reads them, for tests of that source; a module may have others."""

from __future__ import annotations

import contextlib

import pytest
from support.hold_writer import HoldWriter
from support.promises_written import source_on


@pytest.fixture
def writer(tmp_path):
    """Writes promises as runners, the agent and the library do."""
    with contextlib.closing(HoldWriter(tmp_path)) as made:
        yield made


@pytest.fixture
def source(writer, tmp_path):
    """The source on them."""
    return source_on(writer, tmp_path)
