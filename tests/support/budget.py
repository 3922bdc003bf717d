# SPDX-License-Identifier: Apache-2.0
"""
How long the tests that search for faults (fuzzing, kill storms, random interleavings) go on searching.

`pytest --budget N` and `make test-all BUDGET=N` search N times as long as every run
does; `make unit` a quarter as long.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

_times = 1.0


def add_option(parser: pytest.Parser) -> None:
    """`--budget N`."""
    text = "search for faults N times as long as usual: examples, kills, seeds (default: 1)"
    parser.addoption("--budget", type=float, default=1.0, metavar="N", help=text)


def configure(config: pytest.Config) -> None:
    """Take N over before a test module is imported: its decorators ask for it."""
    global _times  # noqa: PLW0603 (one value for the whole run)
    _times = config.getoption("budget")
    if not 0 < _times <= 10_000:
        raise pytest.UsageError("--budget takes a number above 0 and up to 10000: 0.25, 5")
    settings.register_profile("gpushare", deadline=None, max_examples=examples(100))
    settings.load_profile("gpushare")


def examples(usual: int) -> int:
    """So many times `usual` as the budget allows, at least one: examples of hypothesis, rounds of a storm, seeds."""
    return max(1, round(usual * _times))
