"""The control plane that the tests of this folder share."""

from __future__ import annotations

import os

import pytest
from e2e.binaries import Missing, find
from e2e.plane import ControlPlane


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Whatever asks for the plane is marked `e2e`."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    """A running control plane; without its programs a skip with the remedy, under CI a failure."""
    programs = find()
    if isinstance(programs, Missing):
        pytest.fail(str(programs)) if os.environ.get("CI") == "true" else pytest.skip(str(programs))
    started = ControlPlane(programs, tmp_path_factory.mktemp("plane"))
    started.start()
    yield started
    started.stop()
