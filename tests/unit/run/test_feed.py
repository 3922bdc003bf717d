# SPDX-License-Identifier: Apache-2.0
"""
Own GPU time of a command, from late, rounded and lossy samples; how far a tenant falls behind.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from isolation.contract.abi import CardLedger
from isolation.host.core.own_time import OwnTime
from isolation.host.feed import PACE_NS, ComputePace
from isolation.host.machine import Sample

OURS = frozenset({1})
PERIOD = 166_667
MS = 1_000_000


def fed(times, percent=30, pid=1, start=0):
    """One sample after the other, in periods; every other one is a percent higher, as of real jobs."""
    own = OwnTime()
    for at in (start, *times):
        own.add([Sample(pid, (at + 1) * PERIOD, percent + at % 2)], OURS)
    return own


def test_samples_add_up_to_the_middle_of_what_they_may_mean():
    """
    30 and 31 % by turns, rounded down: 31 % of five seconds, told for the time of the last sample.
    """
    own = fed(range(1, 31))
    assert (30 * PERIOD * 310, 31 * PERIOD, 30 * PERIOD * 1000) == (own.own_ns, own.at, own.seen_ns)


def test_a_lost_sample_is_time_that_nobody_saw():
    """
    Of 30 periods six are missing: own time covers 24 and says so.
    """
    own = fed([at for at in range(1, 31) if at % 5 != 3])
    assert (24 * PERIOD * 1000, 31 * PERIOD) == (own.seen_ns, own.at)
    assert pytest.approx(24 * PERIOD * 310, rel=0.02) == own.own_ns


def test_one_sample_counts_once():
    """
    NVML answers with the same sample until there is a newer one.
    """
    once, again = fed([1, 2, 3]), fed([1, 1, 1, 2, 2, 3])
    assert (once.own_ns, once.at, once.since) == (again.own_ns, again.at, again.since)


def test_processes_of_one_command_add_up():
    """
    Two that share the card, with samples of one moment: each is rounded by itself.
    """
    own, both = OwnTime(step=1), frozenset({1, 2})
    for moment, (one, two) in enumerate([(30, 51), (31, 50)], 1):
        own.add([Sample(1, moment * PERIOD, one), Sample(2, moment * PERIOD, two)], both)
    assert (PERIOD * 820, PERIOD * 1000) == (own.own_ns, own.seen_ns)


def test_neighbours_time_is_not_ours():
    """
    Samples of other processes on the card count for nothing, and without one of ours nothing is reported.
    """
    own = fed(range(1, 10), percent=90, pid=2)
    assert (0, 0) == (own.own_ns, own.at)


@pytest.mark.parametrize(("percents", "step"), [((30, 31), 1), ((30, 28), 2), ((25, 35), 5), ((20, 40), 5)])
def test_the_rounding_is_learnt_from_what_percents_have_in_common(percents, step):
    """
    Nobody documents it; steps beyond five are not believed.
    """
    own = OwnTime()
    for at, percent in enumerate(percents, 1):
        own.add([Sample(1, at * PERIOD, percent)], OURS)
    assert step == own.step


def test_a_busy_sample_never_means_more_than_all():
    """
    100 % is not rounded.
    """
    own = fed([1, 2], percent=99)
    own.add([Sample(1, 4 * PERIOD, 100)], OURS)
    before = own.own_ns
    own.add([Sample(1, 5 * PERIOD, 100)], OURS)
    assert PERIOD * 1000 == own.own_ns - before


def store(event_ns, charged_ns, rate_ppm=500_000):
    """A region's card with these times."""
    return CardLedger(UUID(int=1), 0, 0, 0, 0, 0, charged_ns, event_ns, 0, 0, 0, rate_ppm, uncorrected=False)


def test_who_always_has_work_queued_and_gets_less_than_its_rate_is_behind():
    """
    Granted half the card, a queue that is never empty, 40 % got: four fifths, approached by halves.
    """
    pace = ComputePace()
    got = [pace.add(store(at * PACE_NS, at * PACE_NS * 2 // 5), at * PACE_NS) for at in range(9)]
    assert pytest.approx([1.0, 0.9, 0.85], abs=0.001) == got[:3]
    assert pytest.approx(0.8, abs=0.002) == got[-1]


def test_who_asks_for_little_is_not_behind():
    """
    A queue that is empty half of the time: what it does not get it did not want.
    """
    pace = ComputePace()
    got = [pace.add(store(at * PACE_NS // 2, at * PACE_NS // 5), at * PACE_NS) for at in range(9)]
    assert [1.0] * 9 == got
