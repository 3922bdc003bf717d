# SPDX-License-Identifier: Apache-2.0
"""
Every test here runs programs of others that `make cuda-programs` has fetched.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from cuda_programs.harness import Machine
from support.simbox import MEMORY


def pytest_itemcollected(item):
    """All of them belong to the stage `cuda-programs`."""
    item.add_marker(pytest.mark.cuda_programs)


@pytest.fixture
def make_machine():
    """Machines with two simulated cards each; gone after the test."""
    with contextlib.ExitStack() as folders:

        def make(**options):
            folder = tempfile.TemporaryDirectory(prefix="gpushare-test-", dir=MEMORY)
            return Machine(Path(folders.enter_context(folder)), **options)

        yield make


@pytest.fixture
def machine(make_machine):
    """One of them."""
    return make_machine()
