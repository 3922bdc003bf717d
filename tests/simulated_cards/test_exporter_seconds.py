# SPDX-License-Identifier: Apache-2.0
"""GPU seconds of tenants that compute in bursts, judged by the simulator's own records."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from support.simbox import Program, boxes
from support.virtual_clock import Story

pytest.importorskip("pynvml")

ROOT = str(Path(__file__).resolve().parents[2])
SCRAPE_SECONDS = 15
SCRAPES = 17
"""Moments at which counter and records are read: four minutes."""
RANDOM_PATTERNS = 50
STEP_SECONDS = 0.05

BURSTS = """
import json, os, time
patterns = json.loads(os.environ["PATTERNS"])
cards = []
for card in range(len(patterns)):
    context = start(card)
    cards.append((context, functions(b"busy")[0]))
say("up")
join()
begin = time.monotonic()
for step in range(1 << 30):
    now = step * STEP
    for (context, busy), (burst, every, phase) in zip(cards, patterns):
        if (now + phase) % every < burst:
            do("cuCtxSetCurrent", context)
            launch(busy, int(STEP * 1e9))
    time.sleep(max(0.0, begin + now + STEP - time.monotonic()))
"""
WATCH = """
import ctypes, json, os, sys, time
from pathlib import Path
from exporter.sources.nvml.source import NvmlSource
from isolation.simgpu.hardware import Box
path, scrape, scrapes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
box, reader = Box(path), NvmlSource(path)
def read():
    return reader.read(time.monotonic()).cards
def records():
    box.settle()
    return [({client.pid: client.own_ns / 1e9 for client in box.clients(at)}, card.busy_ns / 1e9)
            for at, card in enumerate(box.cards())]
ctypes.CDLL(None).virtual_clock_join()
read()
begin, found, gauges = time.monotonic(), [], []
for second in range(2, int(scrape * scrapes) + 1, 2):
    time.sleep(max(0.0, begin + second - time.monotonic()))
    cards = read()
    if second % scrape in (0, 1) and second >= scrape:
        found.append(([(dict(card.compute_seconds), card.busy_seconds) for card in cards], records()))
        gauges.append([dict(card.busy) for card in cards])
print(json.dumps([found, gauges]), flush=True)
os._exit(0)
"""


def patterns(number):
    """(burst, period, phase) in seconds: those of the issue, then random ones."""
    drawn = random.Random(19)  # noqa: S311 (the same patterns every time)
    found = [(3, 15, 0), (2, 60, 20), (3, 17, 5)]
    while len(found) < number:
        every = drawn.uniform(4, 90)
        found.append((max(0.3, every * drawn.choice((0.03, 0.1, 0.2, 0.5))), every, drawn.uniform(0, every)))
    return found


def watch(wanted, monkeypatch):
    """What counters and records said at each scrape, of two tenants on every card; the seconds are those of a story."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    halves = [wanted[::2], wanted[1::2]]
    with boxes(*["t4"] * len(halves[0])) as box:
        story = Story(box.path.with_name("story"), 3)
        code = BURSTS.replace("STEP", str(STEP_SECONDS))
        running = [Program(box.path, code, PATTERNS=json.dumps(half), **story.environment({})) for half in halves]
        try:
            assert ["up", "up"] == [one.line() for one in running]
            command = [sys.executable, "-c", WATCH, str(box.path), str(SCRAPE_SECONDS), str(SCRAPES)]
            env = story.environment() | {"PYTHONPATH": ROOT}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
        finally:
            for one in running:
                one.kill()
    assert 0 == done.returncode, done.stderr[-2000:]
    found, gauges = json.loads(done.stdout)
    return [one.pid for one in running], halves, found, gauges


def test_seconds_of_bursts_are_those_the_driver_recorded(monkeypatch):
    """
    Tenants of 3 s in 15, 2 s in 60, 3 s in 17 and 50 random patterns, two to a card: over four minutes each counter
    grows by what its process had in the records, within 2 %, and between any two scrapes it is never behind or ahead by
    more than what the driver had not shown yet. A gauge read at the same scrapes misses whole tenants.
    """
    pids, halves, found, gauges = watch(patterns(3 + RANDOM_PATTERNS), monkeypatch)

    blind = 0
    for which, half in enumerate(halves):
        pid = str(pids[which])
        for card, pattern in enumerate(half):
            reported = [scrape[card][0].get(pid, 0.0) for scrape, _ in found]
            true = [records[card][0].get(pid, 0.0) for _, records in found]
            assert true[-1] - true[0] > 0, pattern
            assert reported[-1] - reported[0] == pytest.approx(true[-1] - true[0], rel=0.02, abs=0.1), pattern
            for (a, b), (c, d) in combinations(zip(reported, true, strict=True), 2):
                assert abs((c - a) - (d - b)) <= 0.3 + 0.02 * (d - b), pattern
            blind += all(gauge[card].get(pid, 0.0) == 0 for gauge in gauges)
    for card in range(len(halves[0])):
        reported = [scrape[card][1] for scrape, _ in found]
        true = [records[card][1] for _, records in found]
        assert reported[-1] - reported[0] == pytest.approx(true[-1] - true[0], rel=0.02, abs=0.1)
    assert blind >= 1, "a gauge that is read at the same scrapes misses some tenant altogether"
