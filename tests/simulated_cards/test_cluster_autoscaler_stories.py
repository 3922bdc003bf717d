# SPDX-License-Identifier: Apache-2.0
"""
Beside a cluster-autoscaler, whatever goes wrong: one seed, one story (`interleave.stories`).

A seed that fails here fails again: `play(seed)`, whose `told` says what happened when.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache

import pytest
from interleave.stories import play
from support.budget import examples

from autoscaler.apis.rpc.provider_groups import OrderingProvider
from isolation.scheduler.core.cache import SchedulerCache

BLOCKS = 20
SEEDS = examples(5)
"""Per block."""
FAST = 2
"""The block of `make test`: orders outlive their pods in two of its stories."""
EVICTED, ROBBED, STALE = 21, 3, 2
"""Stories in which it shows, tried first."""
MAX_BEYOND_PACKING = 0.1
"""Of all machines: pods that came one after the other may take more than if all of them were packed at once."""


@pytest.fixture(autouse=True)
def _quiet():
    """Thousands of lines about things that are meant to go wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@cache
def runs(block):
    """Every story of a block."""
    return [play(seed) for seed in range(block * SEEDS, (block + 1) * SEEDS)]


SLOW = (pytest.param(block, marks=pytest.mark.slow) for block in range(BLOCKS) if block != FAST)
IN_BLOCKS = pytest.mark.parametrize("block", [FAST, *SLOW])


@IN_BLOCKS
def test_nobody_is_evicted_or_left_waiting(block):
    """No running share pod is evicted, no machine goes under a pod, and at the end nobody waits in vain."""
    found = {run.seed: run.findings + run.waits for run in runs(block) if run.findings or run.waits}
    assert {} == found
    count = sum((run.count for run in runs(block)), Counter())
    assert count["bought"] > 4 * SEEDS
    assert count["leader killed"] > 0
    assert count["cluster-autoscaler killed"] > 0
    assert count["reservations used"] > SEEDS


@IN_BLOCKS
def test_nothing_is_bought_for_nobody(block):
    """Every machine has a pod that waits for it when it is bought, and few would be saved by packing all pods again."""
    assert {} == {run.seed: run.spare + run.robbed for run in runs(block) if run.spare or run.robbed}
    count = sum((run.count for run in runs(block)), Counter())
    assert count["bought beyond packing"] <= MAX_BEYOND_PACKING * count["bought"]


def test_the_judge_sees_evictions():
    """Share pods that do not say whose they are, are evicted."""
    stories = (play(seed, annotations={}) for seed in (EVICTED, *range(20)))
    assert any("was evicted" in finding for story in stories for finding in story.findings)


class Heedless(SchedulerCache):
    """Keeps nothing on nodes to come."""

    def set_reservation(self, reservation):
        """Only those that name a node."""
        if not reservation.pool:
            super().set_reservation(reservation)


def test_the_judge_sees_that_the_first_node_up_is_taken_by_whoever_fits():
    """
    By a scheduler that knows of no reservations for purchases.
    """
    stories = (play(seed, cache=Heedless) for seed in (ROBBED, *range(20)))
    assert any(story.robbed for story in stories)


def test_the_judge_sees_orders_that_outlive_their_pods(monkeypatch):
    """
    Where none is taken back.
    """

    async def kept(*_):
        return 0

    monkeypatch.setattr(OrderingProvider, "take_back", kept)
    stories = (play(seed) for seed in (STALE, *range(20)))
    assert any(story.spare for story in stories)


def test_one_seed_is_one_story():
    """What is found can be found again."""
    first, second = play(3), play(3)
    assert (first.told, first.count) == (second.told, second.count)
