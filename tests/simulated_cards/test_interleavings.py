# SPDX-License-Identifier: Apache-2.0
"""
Zero: whatever crashes, comes late, twice or in another order, no card is given twice and nothing is left.

Real deciders (books, binder, leadership, the agent's answers, watches) in a simulator of everything around them, one
seed one interleaving: docs/proof.md. A seed that fails here: `python -m benchmarks.interleave --seed N --trace`; where
that finds nothing the order within sets was another one, so run this file with PYTHONHASHSEED=0 as the benchmark does.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from interleave.broken import VARIANTS
from interleave.case import Setup
from interleave.chaos import STROKES
from interleave.run import play

BLOCKS = 8
SEEDS = 8
"""Per block; the benchmark runs ten thousand others."""
MAX_SEEDS = 200
"""In which a broken variant must be found out."""


@pytest.fixture(autouse=True)
def _quiet():
    """Thousands of lines about things that are meant to go wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, BLOCKS))])
def test_nothing_is_given_twice_wrong_stuck_or_left(block):
    """In storms of crashes, restarts, reboots, outages, slow disks and lost answers, the judges find nothing."""
    runs = [play(Setup(seed)) for seed in range(block * SEEDS, (block + 1) * SEEDS)]
    assert {} == {run.seed: run.findings for run in runs if run.findings}
    assert all(run.count["bound"] and run.count["containers"] for run in runs if run.count["pods"] > 12)


def test_places_on_nodes_to_come_are_given_to_nobody_twice_and_end():
    """Purchases for half of the pods, stored late, for pods that are gone, or taken back: the judges find nothing."""
    runs = [play(Setup(seed, bought=True)) for seed in range(SEEDS)]
    assert {} == {run.seed: run.findings for run in runs if run.findings}
    assert sum(run.count["purchases"] for run in runs) > 10 * SEEDS


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, BLOCKS))])
def test_resizes_lose_and_double_no_unit_and_reject_no_pod(block):
    """
    Running pods are asked to grow and shrink amid crashes, restarts, outages and failovers: no card is promised twice,
    at rest the kubelet can give exactly what the cards have left, and it has refused nobody for want of units.
    """
    runs = [play(Setup(seed, resizes=14)) for seed in range(1000 + block * SEEDS, 1000 + (block + 1) * SEEDS)]
    assert {} == {run.seed: run.findings for run in runs if run.findings}
    assert sum(run.count["resize"] for run in runs) > 8 * SEEDS


def test_one_seed_is_one_interleaving():
    """The same seed runs the same steps and tells the same story, so that what is found can be found again."""
    first, second = (play(Setup(5, trace=True)) for _ in range(2))
    assert first.trace == second.trace
    assert (first.steps, first.findings, first.count) == (second.steps, second.findings, second.count)


def test_every_stroke_happens():
    """No kind of trouble is only on paper."""
    seen = set[str]()
    for seed in range(200, 230):
        seen |= {word for word, times in play(Setup(seed)).count.items() if times}
        if set(STROKES) <= seen:
            break
    assert set(STROKES) <= seen


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_the_judges_find_what_is_broken(name):
    """Each of our programs with one safeguard taken out is convicted of what that safeguard prevents."""
    variant = VARIANTS[name]
    with patch.object(*variant.patched) if variant.patched else nullcontext():
        for seed in range(MAX_SEEDS):
            setup = Setup(seed, variant.parts, variant.make, variant.opens, variant.extra)
            if set(play(setup).kinds()) & variant.kinds:
                return
    pytest.fail(f"{name} went through {MAX_SEEDS} seeds unnoticed")
