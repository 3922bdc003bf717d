# SPDX-License-Identifier: Apache-2.0
"""
Every test here runs programs of others that `make clients` has fetched.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from clients.stand import Machine
from support.simbox import MEMORY


def pytest_itemcollected(item):
    """All of them belong to the stage `clients`."""
    item.add_marker(pytest.mark.clients)


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
