# SPDX-License-Identifier: Apache-2.0
"""The thread that takes NVML samples between two readings: nothing that a driver does ends it."""

from __future__ import annotations

import pytest
from support.waiting import until

from exporter.sources.nvml.library import CardGoneError, LostError
from exporter.sources.nvml.source import NvmlSource


class Session:
    """A driver that fails at every other sample."""

    def __init__(self, error):
        self.error, self.samples = error, 0

    def read(self, _now, _micros):
        """No cards."""

    def sample(self, _micros):
        """As the driver would."""
        self.samples += 1
        if self.samples % 2:
            raise self.error

    def close(self):
        """Nothing to end."""


@pytest.mark.parametrize("error", [CardGoneError("gone"), LostError("off the bus"), OSError("input/output error")])
def test_a_sample_that_fails_is_followed_by_the_next(error, monkeypatch):
    """Whatever it failed of; the next reading is who says so."""
    session = Session(error)
    source = NvmlSource(beat=0.001)
    monkeypatch.setattr(source, "_current", lambda _now: session)
    source._session = session
    source.read(0.0)
    try:
        assert until(lambda: session.samples > 5)
    finally:
        source.close()
