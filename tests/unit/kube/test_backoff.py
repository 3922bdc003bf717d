# SPDX-License-Identifier: Apache-2.0
"""Waits after failures: bounded, growing, out of step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isolation.kube.core.backoff import Pace, delay

draws = st.floats(0, 1)
paces = st.builds(Pace, first=st.floats(0.01, 5), longest=st.floats(5, 60))


def test_without_a_failure_nobody_waits():
    """
    A watch that ended in good order is resumed at once.
    """
    assert 0.0 == delay(0, 0.5)


@given(st.integers(1, 10**9), draws, paces)
def test_a_wait_is_never_zero_and_never_beyond_its_bound(failures, draw, pace):
    """
    However long the server is away.
    """
    assert pace.first / 2 <= delay(failures, draw, pace) <= pace.longest


@given(st.integers(1, 1000), draws, paces)
def test_another_failure_never_shortens_the_wait(failures, draw, pace):
    """
    For the same draw.
    """
    assert delay(failures, draw, pace) <= delay(failures + 1, draw, pace)


@given(st.integers(1, 1000), draws, st.floats(0, 300))
def test_what_the_server_asks_for_is_kept(failures, draw, asked):
    """
    A 429 with Retry-After is obeyed, and spread.
    """
    assert asked <= delay(failures, draw, asked=asked)
