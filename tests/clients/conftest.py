"""
Every test here runs programs of others that `make clients` has fetched.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from clients.stand import Machine
from simbox import MEMORY


def pytest_itemcollected(item):
    """All of them belong to the stage `clients`."""
    item.add_marker(pytest.mark.clients)


@pytest.fixture
def machine():
    """Two simulated cards; gone after the test."""
    with tempfile.TemporaryDirectory(prefix="gpushare-test-", dir=MEMORY) as folder:
        yield Machine(Path(folder))
