# SPDX-License-Identifier: Apache-2.0
"""
What a tenant of a card is granted right now, from promises and who wants the card.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.abi import PPM, Policy
from isolation.host.core.compute_rates import TenantShare, granted

BURST, WEIGHT, PRIORITY, FIXED = Policy.BURST, Policy.WEIGHT, Policy.PRIORITY, Policy.FIXED


def tenant(percent, policy=BURST, *, online=False, active=True, weight=0, ceiling=0):
    """A tenant promised so many percent."""
    return TenantShare(percent * 10_000, policy, online, active, weight=weight, ceiling_ppm=ceiling * 10_000)


@pytest.mark.parametrize(
    ("mine", "others", "percent"),
    [
        (tenant(30, FIXED), [], 0),
        (tenant(30, Policy.NONE), [], 0),
        (tenant(0), [], 100),
        (tenant(0), [tenant(60)], 20),
        (tenant(30, ceiling=50), [], 50),
        (tenant(30), [tenant(30, ceiling=40)], 60),
        (tenant(0, WEIGHT, weight=1), [tenant(0, WEIGHT, weight=3)], 25),
        (tenant(0, WEIGHT, weight=9), [tenant(50, WEIGHT, weight=1)], 50),
        (tenant(50, WEIGHT, weight=1), [tenant(0, WEIGHT, weight=9)], 50),
        (tenant(0, WEIGHT), [tenant(0, WEIGHT, weight=3, ceiling=20)], 80),
        (tenant(9, WEIGHT, weight=19), [tenant(0, WEIGHT, weight=3)], 1900 / 22),
        (tenant(0, WEIGHT, weight=3), [tenant(9, WEIGHT, weight=19)], 300 / 22),
        (tenant(0, PRIORITY, online=True), [tenant(0, PRIORITY, online=True, weight=3)], 25),
        (tenant(0, PRIORITY), [tenant(100, PRIORITY, online=True)], 0.0001),
        (tenant(30), [tenant(30, WEIGHT)], 50),
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
        (tenant(30, PRIORITY, online=True), [tenant(70, PRIORITY)], 99),
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
    me = TenantShare(100_000, WEIGHT, got=mine)
    rival = TenantShare(600_000, WEIGHT, got=slowest)
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


MIXES = st.lists(
    st.builds(
        tenant,
        st.integers(0, 60),
        st.sampled_from(list(Policy)),
        online=st.booleans(),
        active=st.booleans(),
        weight=st.integers(0, 100),
        ceiling=st.sampled_from([0, 60, 80, 100]),
    ),
    min_size=1,
    max_size=8,
)


@given(MIXES, st.floats(0.3, 1))
def test_any_mix_gets_at_most_the_card_and_each_at_least_what_is_guaranteed(tenants, got):
    """
    Of those who want the card and are limited; who gets nothing is granted a millionth, as 0 would be no word.
    """
    tenants[0] = replace(tenants[0], got=got)
    while sum(one.core_ppm for one in tenants) > PPM:
        tenants.pop()
    active = [one for one in tenants if one.active]
    rates = []
    for at, mine in enumerate(active):
        rate = granted(mine, [*active[:at], *active[at + 1 :], *(one for one in tenants if not one.active)])
        assert (rate == 0) == (mine.policy in {Policy.FIXED, Policy.NONE})
        assert not rate or rate >= mine.guaranteed
        assert rate <= max(mine.guaranteed, mine.ceiling_ppm or PPM)
        rates.append(rate or mine.core_ppm)
    assert sum(rates) <= PPM + rates.count(1)


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from(list(Policy)), st.booleans(), st.booleans())))
def test_a_grant_is_always_within_the_card(drawn):
    """
    Also where the store over-commits a card.
    """
    mine, others = TenantShare(500_000, BURST), [TenantShare(core * 10_000, *rest) for core, *rest in drawn]
    assert mine.core_ppm <= granted(mine, others) <= PPM
