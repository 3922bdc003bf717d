"""What every test of the house shares: properties are not judged by the clock, whatever else the machine does."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
