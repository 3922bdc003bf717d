"""
What every test of the house shares: properties are not judged by the clock, and CI skips nothing that it could have.
"""

from __future__ import annotations

import os

import pytest
from ci_skips import failure
from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    """Of a test."""
    return judged((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report():
    """Of a module that skips itself as it is imported."""
    return judged((yield))


def judged(report):
    """Under CI a skip becomes a failure that says what is missing; an expected failure is none."""
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        wrong = failure(report.longrepr[2])
        if wrong:
            report.outcome, report.longrepr = "failed", wrong
    return report
