# SPDX-License-Identifier: Apache-2.0
"""
What a tenant of a card is granted right now, from promises and who wants the card.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.abi import PPM, Policy
from isolation.host.core.compute_rates import TRICKLE_PPM, Tenant, granted

BURST, WEIGHT, PRIORITY, FIXED = Policy.BURST, Policy.WEIGHT, Policy.PRIORITY, Policy.FIXED


def tenant(percent, policy=BURST, *, online=False, active=True):
    """A tenant promised so many percent."""
    return Tenant(percent * 10_000, policy, online, active)


@pytest.mark.parametrize(
    ("mine", "others", "percent"),
    [
        (tenant(30, FIXED), [], 0),
        (tenant(30, Policy.NONE), [], 0),
        (tenant(0), [], 0),
        (tenant(30), [], 100),
        (tenant(30), [tenant(70, active=False)], 100),
        (tenant(30), [tenant(70)], 30),
        (tenant(30), [tenant(70, FIXED)], 30),
        (tenant(30), [tenant(30)], 50),
        (tenant(20), [tenant(40)], 40),
        (tenant(10, WEIGHT), [tenant(20, WEIGHT), tenant(40, WEIGHT)], 100 / 7),
        (tenant(40, WEIGHT), [tenant(20, WEIGHT), tenant(10, WEIGHT)], 400 / 7),
        (tenant(10, WEIGHT), [tenant(20, WEIGHT), tenant(40, WEIGHT, active=False)], 100 / 3),
        (tenant(10, WEIGHT), [tenant(50, FIXED)], 50),
        (tenant(30, PRIORITY, online=True), [tenant(70, PRIORITY)], 100),
        (tenant(70, PRIORITY), [tenant(30, PRIORITY, online=True)], 1),
        (tenant(70, PRIORITY), [tenant(30, PRIORITY, online=True, active=False)], 100),
        (tenant(70, PRIORITY), [tenant(30, PRIORITY)], 70),
    ],
)
def test_the_rate_granted_now(mine, others, percent):
    """
    Percent of the card by policy; 0 means that the promise alone holds.
    """
    assert pytest.approx(percent, abs=0.01) == granted(mine, others) / 10_000


@pytest.mark.parametrize(
    ("mine", "slowest", "percent"),
    [(1.0, 1.0, 10 / 0.7), (1.0, 0.9, 10 / 0.7 * 0.909), (1.0, 0.2, 10 / 0.7 * 0.75), (0.9, 0.9, 10 / 0.7)],
)
def test_nobody_runs_ahead_of_a_rival_who_falls_behind(mine, slowest, percent):
    """
    Ten of seventy by weight: less where another is behind, a quarter less at most, and not for the one who is last.
    """
    me = Tenant(100_000, WEIGHT, got=mine)
    rival = Tenant(600_000, WEIGHT, got=slowest)
    assert pytest.approx(percent, abs=0.01) == granted(me, [rival]) / 10_000


@given(st.sampled_from([BURST, WEIGHT]), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_tenants_who_all_want_the_card_get_it_all_and_no_more(policy, percents):
    """
    Each keeper decides for its own tenant; together they hand out one card, and every promise is kept.
    """
    while sum(percents) > 100:
        percents.pop()
    all_ = [tenant(percent, policy) for percent in percents]
    rates = [granted(mine, [one for one in all_ if one is not mine]) for mine in all_]
    assert PPM - len(all_) <= sum(rates) <= PPM
    assert all(rate >= mine.core_ppm for rate, mine in zip(rates, all_, strict=True))


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from(list(Policy)), st.booleans(), st.booleans())))
def test_a_grant_is_always_within_the_card(drawn):
    """
    Also where the store over-commits a card.
    """
    mine, others = Tenant(500_000, BURST), [Tenant(core * 10_000, *rest) for core, *rest in drawn]
    assert TRICKLE_PPM <= granted(mine, others) <= PPM
