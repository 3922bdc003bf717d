# SPDX-License-Identifier: Apache-2.0
"""A thousand gangs on full cards: with reservations each starts whole; where a sum admits them, many do not."""

from __future__ import annotations

import pytest
from support import builders
from support.gang_churn import FULL, Churn
from support.scheduler_cache_builders import build_cache
from support.scheduler_harness import bound, pod

from isolation.contract.model import Refusal
from isolation.contract.provisioning_request import PodSet, ProvisioningRequest


@pytest.mark.parametrize("gangs", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_gang_that_comes_to_full_cards_starts_whole(gangs):
    """
    Each is offered when 95 % of the memory is in use. None starts in part, and none waits for ever.
    """
    found = Churn(1, by_sum=False).run(gangs)
    assert (gangs, 0, 0) == (found.whole, found.partial, found.stuck)
    assert FULL <= min(found.fills)
    assert found.refused > gangs, "gangs were hardly ever refused: the cards were not full"


def test_where_a_sum_admits_them_gangs_start_in_part():
    """
    The same gangs, admitted as a quota does: pods run that wait for others of their gang, in every other gang.
    """
    found = Churn(1, by_sum=True).run(100)
    assert found.partial > 40


def two_gangs():
    """Three pods of 9 GiB each, on four cards of 15 GiB: by sum both fit."""
    gangs = {name: [pod(f"{name}{i}", 9, provisioning_request=name) for i in range(3)] for name in "ab"}
    return build_cache(builders.node("n", cards=4, size=15)), gangs


def start(cache, pods):
    """Those that found a card."""
    started = []
    for one in pods:
        if cache.filter(one, ["n"], 10.0).fit:
            found = cache.assume(one, "n", 10.0)
            cache.confirm(one.uid)
            cache.set_pod(bound(one, found.placement, found.reservation))
            started.append(one.uid)
    return started


def test_two_gangs_that_a_sum_admits_block_each_other_for_ever_and_reserved_ones_do_not():
    """
    Pods start in turns. By sum two of each gang hold the four cards, and no third one ever starts.
    """
    cache, gangs = two_gangs()
    turns = [one for pair in zip(gangs["a"], gangs["b"], strict=True) for one in pair]
    assert ["a0", "b0", "a1", "b1"] == start(cache, turns)
    assert [] == start(cache, turns[4:])

    cache, gangs = two_gangs()

    def reserve(name):
        asked = ProvisioningRequest("ml", name, name, 1.0, (PodSet("t", 3),))
        return cache.reserve_gang(asked, [("t", one.request) for one in gangs[name]], 10.0)

    assert 3 == len(reserve("a"))
    assert isinstance(reserve("b"), Refusal)
    assert ["a0", "a1", "a2"] == start(cache, turns[::2])
    for one in gangs["a"]:
        cache.remove_pod(one.uid)
    assert 3 == len(reserve("b"))
    assert ["b0", "b1", "b2"] == start(cache, turns[1::2])
