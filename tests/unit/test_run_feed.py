"""
Own GPU time of a command, from late and lossy samples.
"""

from __future__ import annotations

from isolation.run.feed import PERIOD_MICROS, OwnTime
from isolation.run.machine import Sample

OURS = frozenset({1})
MS = 1_000_000
LATE = 100_000
DUE = 30 * PERIOD_MICROS * 300


def fed(own, times, percent=30, pid=1, events=0):
    """Hand over one sample after the other, each a little late, after the events spoke up to time 0."""
    own.add([], OURS, events, 0)
    own.add([Sample(1, 0, 0)], OURS, events, 0)
    for at in times:
        own.add([Sample(pid, at * PERIOD_MICROS, percent)], OURS, events, at * PERIOD_MICROS + LATE)


def test_samples_add_up_to_the_time_that_was_spent():
    """
    30 % for five seconds are 1.5 s, told for the time of the last sample and not for when it came.
    """
    own = OwnTime()
    fed(own, range(1, 31))
    assert (DUE, 30 * PERIOD_MICROS) == (own.own_ns, own.at)


def test_a_lost_sample_is_covered_by_the_next():
    """
    Every fifth one is missing; the sum is the same, and meanwhile nothing is told.
    """
    own = OwnTime()
    fed(own, [at for at in range(1, 31) if at % 5 != 3])
    assert DUE == own.own_ns
    own.add([], OURS, 0, 30 * PERIOD_MICROS + 2 * LATE)
    assert (DUE, 30 * PERIOD_MICROS) == (own.own_ns, own.at)


def test_a_long_gap_is_idleness():
    """
    NVML shows no samples of a process that does nothing: the gap is not filled with the next one's load.
    """
    own = OwnTime()
    fed(own, [1, 2, 30])
    assert own.own_ns < 5 * PERIOD_MICROS * 300


def test_one_sample_counts_once():
    """
    NVML answers with the same sample until there is a newer one.
    """
    own = OwnTime()
    fed(own, [1, 1, 1, 2, 2])
    assert (2 * PERIOD_MICROS * 300, 2 * PERIOD_MICROS) == (own.own_ns, own.since)


def test_processes_of_one_command_add_up():
    """
    Two that share the card, with samples of one moment.
    """
    own = OwnTime()
    own.add([], OURS, 0, 0)
    both = frozenset({1, 2})
    own.add([Sample(1, 0, 0), Sample(2, 0, 0)], both, 0, 0)
    own.add([Sample(1, PERIOD_MICROS, 30), Sample(2, PERIOD_MICROS, 50)], both, 0, PERIOD_MICROS + LATE)
    assert PERIOD_MICROS * 800 == own.own_ns


def test_neighbours_time_is_not_ours():
    """
    Samples of other processes on the card count for nothing.
    """
    own = OwnTime()
    fed(own, range(1, 10), percent=90, pid=2)
    assert 0 == own.own_ns


def test_without_samples_of_ours_events_speak():
    """
    In a PID namespace of its own the keeper finds none: own time then follows the library's events, so
    that nobody computes for free.
    """
    own = OwnTime()
    for turn in range(1, 11):
        own.add([Sample(2, turn * PERIOD_MICROS, 90)], OURS, turn * 30 * MS, turn * 100_000)
    assert (300 * MS, 1_000_000) == (own.own_ns, own.at)


def test_what_events_told_is_not_counted_again():
    """
    Samples take over where events stopped: those of earlier come late and are only the sign that ours
    can be seen.
    """
    own = OwnTime()
    own.add([], OURS, 300 * MS, 1_000_000)
    own.add([Sample(1, 900_000, 30)], OURS, 330 * MS, 1_100_000)
    assert (300 * MS, 1_000_000) == (own.own_ns, own.at)
    own.add([Sample(1, 1_066_667, 30)], OURS, 350 * MS, 1_200_000)
    assert (300 * MS + 66_667 * 300, 1_066_667) == (own.own_ns, own.at)


def test_events_never_take_time_back():
    """
    A region that is made anew, or spoilt, counts from where it stands.
    """
    own = OwnTime()
    for now, events in enumerate((100 * MS, 5 * MS, 25 * MS)):
        own.add([], OURS, events, now)
    assert 120 * MS == own.own_ns
