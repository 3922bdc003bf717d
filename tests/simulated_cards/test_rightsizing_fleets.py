# SPDX-License-Identifier: Apache-2.0
"""
Right-sizing walked forward over a generated fleet of 30 days: the bars, beside VPA's algorithm and peak + 15 %.

Seed, mix and the rule for promises are those of `benchmarks.rightsizing.fleet`.
"""

from __future__ import annotations

import pytest

from benchmarks.rightsizing.fleet import Mix, generate
from benchmarks.rightsizing.replay import OurAdviser, PeakAdviser, VpaAdviser, walk

SEED = 1
PROGRAMS = 90


@pytest.fixture(scope="module")
def fleet():
    """Services, trainings, restarts with another model, greedy programs."""
    return generate(SEED, Mix(programs=PROGRAMS))


def test_the_bars(fleet):
    """
    At least 5,000 container-days, each judged by what was known before it.
    """
    score = walk(fleet, OurAdviser)

    assert score.all_days >= 5000
    assert score.oom_ratio <= 0.001
    assert score.cut >= 0.4
    assert score.advised_ratio >= 0.7
    assert score.greedy_ratio >= 0.95
    assert score.others_abstained <= 0.1
    assert score.above == 0


@pytest.mark.parametrize("baseline", [VpaAdviser, PeakAdviser])
def test_the_baselines_break_them(fleet, baseline):
    """
    On a third of the same fleet: more OOMs than allowed, and recommendations for greedy programs.
    """
    score = walk(fleet[::3], baseline)

    assert score.oom_ratio > 0.001
    assert score.greedy_ratio < 0.95
