# SPDX-License-Identifier: Apache-2.0
"""
What every test shares: the budget of searches, properties without a deadline, and no skip in CI of what it could have.
"""

from __future__ import annotations

import logging
import os

import pytest
from support import budget as searches
from support.ci_skips import failure


def pytest_addoption(parser):
    """`--budget N`."""
    searches.add_option(parser)


def pytest_configure(config):
    """Before a test module is imported."""
    searches.configure(config)


@pytest.fixture(scope="session")
def budget():
    """How many times as long as usual a search of a program that we start goes on: a whole number, 1 or more."""
    return searches.examples(1)


@pytest.fixture(autouse=True)
def process_as_before():
    """A command that runs inside the test process sets up the root logger and the environment of all of it."""
    root, environment = logging.getLogger(), dict(os.environ)
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__module__.startswith("_pytest")]
    root.setLevel(logging.WARNING)
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


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
