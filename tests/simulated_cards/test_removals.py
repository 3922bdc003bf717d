# SPDX-License-Identifier: Apache-2.0
"""
No machine is removed under a pod, however late anybody hears of anything: one seed, one interleaving.

Real loop, deciders, world and watches of the autoscaler in a simulator of everything around them
(`interleave.removal`); a seed that fails here fails again: `play(seed)`.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from interleave.removal import play
from support.budget import examples

BLOCKS = 4
SEEDS = examples(50)
"""Per block."""


@pytest.fixture(autouse=True)
def _quiet():
    """Thousands of lines about things that are meant to go wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, BLOCKS))])
def test_no_machine_goes_under_a_pod(block):
    """Watches of the autoscaler and of schedulers up to 150 s behind, binds of up to 60 s, lost answers, restarts."""
    runs = [play(seed) for seed in range(block * SEEDS, (block + 1) * SEEDS)]
    assert {} == {run.seed: run.findings for run in runs if run.findings}
    count = sum((run.count for run in runs), Counter())
    assert count["removed"] > SEEDS
    assert count["bound to a tainted node"] > SEEDS / 4


def test_one_seed_is_one_interleaving():
    """What is found can be found again."""
    first, second = play(3), play(3)
    assert (first.findings, first.count) == (second.findings, second.count)
