# SPDX-License-Identifier: Apache-2.0
"""Computing time from samples: late, rounded, lost, garbage; judged by a card whose truth is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.budget import examples

from exporter.pipeline.busy_time import LATE_MICROS, LOOK_BACK_MICROS, PERIOD_MICROS, BusyMeter, BusySample, Load

START = 1_700_000_000_000_000
SECOND = 1_000_000
LATE = 100_000


@dataclass
class Driver:
    """What NVML keeps of a card on which processes compute as `percents` say, one tuple for each sample period."""

    percents: dict[int, tuple[int, ...]]
    lost: frozenset[tuple[int, int]] = frozenset()
    """(pid, period) of samples that never come."""
    period: int = PERIOD_MICROS
    shows_load: bool = True
    late: int = LATE
    asked: list[int] = field(default_factory=list)

    def ends(self, now):
        """Number and end of every period that can be told by now."""
        length = max((len(row) for row in self.percents.values()), default=0)
        return [
            (n, START + (n + 1) * self.period)
            for n in range(length)
            if START + (n + 1) * self.period <= now - self.late
        ]

    def samples(self, since, now):
        """The newest of each process that computed since then, as NVML tells them."""
        self.asked.append(since)
        found = []
        for pid, row in self.percents.items():
            samples = [
                (end, row[n]) for n, end in self.ends(now) if row[n] and end > since and (pid, n) not in self.lost
            ]
            found += [BusySample(pid, *samples[-1])] if samples else []
        return found

    def loads(self, since, now):
        """Every sample of the whole card since then."""
        if not self.shows_load:
            return []
        return [
            Load(end, min(100, sum(row[n] for row in self.percents.values())))
            for n, end in self.ends(now)
            if end > since
        ]


def watch(driver, seconds, *, beat=150_000, cycle=2 * SECOND):
    """The windows of an exporter that watches the card from its start."""
    meter, windows, now = BusyMeter(START), [], START
    due = START + cycle
    while now < START + int(seconds * SECOND):
        now = min(now + (beat or cycle), due)
        if now == due:
            loads = driver.loads(meter.loads_since, now)
            meter.add(driver.samples(meter.since, now), now)
            windows.append(meter.take(loads, now))
            due += cycle
        else:
            meter.add(driver.samples(meter.since, now), now)
    return windows


def mean(windows, pid):
    """Of all windows, each as long as the other."""
    return sum(window.ratios.get(pid, 0.0) for window in windows) / len(windows)


def truth(driver, pid, seconds):
    """Of all periods that can have been told."""
    samples = driver.ends(START + int(seconds * SECOND))
    return sum(driver.percents[pid][n] for n, _ in samples) / len(samples) / 100


PATTERNS = st.sampled_from(
    [
        (30,),
        (100,),
        (60, 0),
        (100, 0, 0),
        (0, 0, 0, 0, 90),
        (0, 20, 80),
        (5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (50, 50, 50, 0, 0, 0, 0),
    ]
)


@pytest.mark.parametrize("beat", [150_000, 0])
def test_a_steady_process_is_reported_as_it_is(beat):
    """
    30 % all the time is 0.3 in every window, whether samples are taken between looks or not.
    """
    driver = Driver({7: (30,) * 60})

    windows = watch(driver, 8, beat=beat)

    assert [0.3] * 4 == pytest.approx([window.ratios[7] for window in windows], abs=0.02)
    assert [0.3] * 4 == pytest.approx([window.load for window in windows])


@settings(max_examples=examples(60), deadline=None)
@given(
    patterns=st.lists(PATTERNS, min_size=1, max_size=3),
    loss=st.sampled_from([0.0, 0.02, 0.1]),
    seed=st.integers(0, 1000),
)
@example(patterns=[(60, 0)], loss=0.0, seed=0)
@example(patterns=[(100,)], loss=0.1, seed=1)
def test_samples_add_up_to_the_time_that_was_spent(patterns, loss, seed):
    """
    Whatever the rhythm, the mean over eight seconds is the truth, and where samples are lost within three
    points and what is lost. A pause is not taken for a lost sample.
    """
    rows = {pid: (pattern * 100)[:100] for pid, pattern in enumerate(patterns, 1)}
    whole = [sum(row[n] for row in rows.values()) for n in range(100)]
    rows = {pid: tuple(row[n] * 100 // max(100, whole[n]) for n in range(100)) for pid, row in rows.items()}
    chance = random.Random(seed)  # noqa: S311 (no secret)
    lost = frozenset((pid, n) for pid in rows for n in range(100) if chance.random() < loss)
    driver = Driver(rows, lost)

    windows = watch(driver, 8)

    for pid in rows:
        allowed = 0.03 + loss if loss else 0.01
        assert truth(driver, pid, 8) == pytest.approx(mean(windows, pid), abs=allowed)


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.dictionaries(st.integers(-2, 6), st.lists(st.integers(-5, 1 << 40), min_size=40, max_size=40), max_size=5),
    beat=st.sampled_from([0, 150_000, 700_000]),
    shows_load=st.booleans(),
)
def test_no_garbage_makes_more_than_the_whole_card(rows, beat, shows_load):
    """
    Percents in the millions, negative ones and pids of nobody are dropped: every figure is in 0..1.
    """
    driver = Driver({pid: tuple(row) for pid, row in rows.items()}, shows_load=shows_load)

    for window in watch(driver, 6, beat=beat):
        assert all(0 < ratio <= 1 for ratio in window.ratios.values())
        assert all(pid > 0 for pid in window.ratios)
        assert window.load is None or 0 <= window.load <= 1


def test_nobody_computed_is_no_failure():
    """
    A card without samples has an empty window, and without loads of its own an unknown load.
    """
    assert [{}, {}] == [window.ratios for window in watch(Driver({}), 4)]
    assert [None, None] == [window.load for window in watch(Driver({}), 4)]


def test_who_ended_is_gone_from_the_next_window():
    """
    A process that computed for 2 s and died is in the windows of that time only.
    """
    driver = Driver({7: (80,) * 12 + (0,) * 30})

    shares = [window.ratios.get(7, 0.0) for window in watch(driver, 6)]

    assert 0.7 < shares[0] <= 0.85
    assert shares[1] < 0.2
    assert 0 == shares[2]


def test_a_process_that_began_late_is_not_credited_with_the_time_before():
    """
    Full load in the last two of the eleven samples that can be reported: that part, not the whole window.
    """
    driver = Driver({7: (0,) * 9 + (100,) * 3 + (0,) * 12})

    first = watch(driver, 2, beat=0)[0].ratios[7]

    assert 2 / 11 == pytest.approx(first, abs=0.02)


def test_without_the_cards_own_samples_those_of_processes_must_do():
    """
    A driver that keeps no samples of the card: steady use is told right all the same.
    """
    windows = watch(Driver({7: (40,) * 60}, shows_load=False), 8)

    assert [0.4] * 3 == pytest.approx([window.ratios[7] for window in windows[1:]], abs=0.04)
    assert {None} == {window.load for window in windows}


def test_slow_products_sample_once_a_second():
    """
    With a sample each second each of them stands for a second.
    """
    driver = Driver({7: (50,) * 12}, period=SECOND)

    assert 0.5 == pytest.approx(mean(watch(driver, 10)[1:], 7), abs=0.03)


def test_stale_samples_count_nothing():
    """
    A driver that tells the same sample again and again has told it once.
    """
    meter = BusyMeter(START)
    again = [BusySample(7, START + 200_000, 60)]
    for beat in range(1, 13):
        meter.add(again, START + beat * 150_000)

    window = meter.take([], START + 2 * SECOND)

    assert 0.6 * PERIOD_MICROS / (2 * SECOND - LATE_MICROS) == pytest.approx(window.ratios[7], rel=0.01)
    assert START + 200_000 == meter.since


def test_looks_closer_together_than_samples_repeat_the_last_figures():
    """
    A second look 10 ms after the first has nothing new to tell, and takes nothing from the third.
    """
    driver = Driver({7: (50,) * 60})

    windows = watch(driver, 3, beat=0, cycle=10_000)

    assert 0.5 == pytest.approx(windows[-1].ratios[7], abs=0.02)
    assert 0.5 == pytest.approx(windows[-2].ratios[7], abs=0.02)


def test_a_clock_that_is_set_back_starts_over():
    """
    After the wall clock went back an hour the next windows are told as before.
    """
    meter = BusyMeter(START)
    meter.add([BusySample(7, START + SECOND, 50)], START + SECOND)
    meter.take([], START + SECOND)
    back = START - 3600 * SECOND
    meter.take([], back)

    for beat in range(1, 14):
        end = back + beat * PERIOD_MICROS
        meter.add([BusySample(7, end, 50)], end)
    window = meter.take([], back + 13 * PERIOD_MICROS)

    assert 0.5 == pytest.approx(window.ratios[7], abs=0.05)


def test_an_hour_without_a_look_is_no_hour_of_computing():
    """
    After an hour of silence what was sampled before it is forgotten, and one sample of 60 % stands for the
    last second at most.
    """
    meter = BusyMeter(START)
    meter.add([BusySample(7, START + SECOND, 100)], START + SECOND)
    later = START + 3600 * SECOND

    meter.add([BusySample(8, later - LATE, 60)], later)
    window = meter.take([], later)

    assert {8} == set(window.ratios)
    assert 0.6 <= window.ratios[8] <= 0.6 * LOOK_BACK_MICROS / (LOOK_BACK_MICROS - LATE)


def test_garbage_beside_good_samples_changes_nothing():
    """
    A driver that tells nonsense of the same process in between: percents, pids and times that cannot be.
    """
    meter, loads = BusyMeter(START), []
    for beat in range(1, 13):
        end = START + beat * PERIOD_MICROS
        loads.append(Load(end, 30))
        garbage = [
            BusySample(7, end - 1, 2_000_000),
            BusySample(9, end, 101),
            BusySample(0, end, 50),
            BusySample(8, end + 60 * SECOND, 9),
        ]
        meter.add([*garbage, BusySample(7, end, 30)], end)

    window = meter.take([*loads, Load(START + 3600 * SECOND, 100), Load(START + 1, 900)], START + 2 * SECOND + LATE)

    assert {7: 0.3} == pytest.approx(dict(window.ratios))
    assert 0.3 == pytest.approx(window.load)


def test_other_engines_are_reported_beside():
    """
    Memory, encoder and decoder have windows of their own; what is over 100 % is cut off.
    """
    meter = BusyMeter(START)
    for beat in range(1, 13):
        end = START + beat * PERIOD_MICROS
        meter.add([BusySample(7, end, 10, 40, 0, 900)], end)

    window = meter.take([], START + 12 * PERIOD_MICROS)

    assert {7: 0.4} == pytest.approx(dict(window.copy))
    assert {} == window.encoder
    assert {7: 1.0} == window.decoder


def test_memory_does_not_grow_with_processes_that_come_and_go():
    """
    Ten thousand processes later only those of the last seconds are remembered.
    """
    meter = BusyMeter(START)
    for number in range(1, 10_001):
        end = START + number * PERIOD_MICROS
        meter.add([BusySample(number, end, 50)], end)
        if number % 12 == 0:
            meter.take([Load(end, 50)], end)

    assert len(meter._seen) < 100
    assert len(meter._history) < 100
    assert len(meter._shares) < 20
