# SPDX-License-Identifier: Apache-2.0
"""A simulated box for tests of what reads NVML; a module that needs another one has its own."""

from __future__ import annotations

import pytest
from support.nvml_harness import sourced, starting
from support.simbox import boxes


@pytest.fixture
def box(request, monkeypatch):
    """A box of the models that the test names."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    with boxes(*getattr(request, "param", ["t4", "t4"])) as made:
        yield made


@pytest.fixture
def source(box):
    """A source on the box, closed after the test."""
    with sourced(box) as reader:
        yield reader


@pytest.fixture
def run():
    """Starts programs on the box."""
    with starting() as start:
        yield start
