# SPDX-License-Identifier: Apache-2.0
"""What NVML is asked, and how often: no more than is known to help, and never most of the time."""

from __future__ import annotations

import time
from itertools import pairwise

import pynvml
import pytest
from support.nvml_harness import GIB, read
from support.simbox import HOLD
from support.waiting import until

from exporter.sources.nvml import library

pytest.importorskip("pynvml")


def test_what_a_model_does_not_have_is_asked_for_once(source, monkeypatch):
    """
    A T4 has no row remapping: it is asked about it once in ten minutes, and once for both of them.
    """
    asked = []
    real = pynvml.nvmlDeviceGetRemappedRows

    def counted(handle):
        asked.append(1)
        return real(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", counted)
    for second in range(0, 590, 10):
        read(source, 1000.0 + second)
    assert 1 == len(asked)
    for second in range(590, 640, 10):
        read(source, 1000.0 + second)

    assert 2 == len(asked)


def test_slow_questions_are_spread_over_the_cycles(source, monkeypatch):
    """
    At first all cards are asked about what changes rarely, later one in each cycle, all within a minute.
    """
    asked = []
    real = pynvml.nvmlDeviceGetEnforcedPowerLimit

    def counted(handle):
        asked.append(1)
        return real(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetEnforcedPowerLimit", counted)
    counts = []
    for second in range(0, 60, 2):
        read(source, 1000.0 + second)
        counts.append(len(asked))

    assert 2 == counts[0]
    assert max(b - a for a, b in pairwise(counts)) == 1
    assert 2 * 3 <= counts[-1] <= 2 * 5


def test_expensive_lists_are_asked_for_when_memory_is_unexplained(box, source, run, monkeypatch):
    """
    Graphics and MPS processes: at first, then not while compute processes explain the card, and again
    when memory appears that nobody has.
    """
    asked = []
    real = library.Library.processes

    def counted(self, model, kind, handle):
        asked.append(kind)
        return real(self, model, kind, handle)

    monkeypatch.setattr(library.Library, "processes", counted)
    for second in range(10):
        read(source, 1000.0 + second)
    quiet = asked.count("Graphics")
    run(box, HOLD, BYTES=GIB)
    read(source, 1010.0)
    explained = asked.count("Graphics")
    box.set("nvml_no_bytes", 1)
    read(source, 1011.0)

    assert (2, 2, 3) == (quiet, explained, asked.count("Graphics"))
    assert 24 == asked.count("Compute")


def test_more_processes_than_there_was_room_for(box, source, run, monkeypatch):
    """
    A list that does not fit is asked for again with more room, and is whole.
    """
    monkeypatch.setattr(library, "_ROOM", 1)
    pids = [run(box, HOLD, BYTES=GIB).pid for _ in range(4)]

    card = read(source).cards[0]

    assert sorted(pids) == [one.pid for one in card.processes]


def test_sampling_takes_a_small_part_of_the_time_however_slow_the_driver(source, monkeypatch):
    """
    Where sampling takes 50 ms it is done every 2.5 s at most, not seven times a second.
    """
    read(source)
    taken = []

    def slow(_micros):
        taken.append(time.monotonic())
        time.sleep(0.05)

    monkeypatch.setattr(source._session, "sample", slow)
    until(lambda: len(taken) == 2)

    assert taken[1] - taken[0] >= 2.4
