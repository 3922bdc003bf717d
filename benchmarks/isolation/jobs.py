# SPDX-License-Identifier: Apache-2.0
"""
One simulated box with its jobs, fed as `gpushare run` feeds, and what its records said meanwhile.

Runs in a process of its own, because NVML and the simulated driver are one per process. Knows how to
run a scenario, not what to think of the outcome (`judge`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, dump
from isolation.contract.model import Slice
from isolation.contract.quantity import GIB
from isolation.host import process
from isolation.host.feed import Feeder
from isolation.host.machine import NvmlMachine
from isolation.lib import native
from isolation.run.launch import build_environment, write_promise_files
from isolation.simgpu import hardware

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MODEL: Final = "v100-16g"
SHM: Final = Path("/dev/shm")  # noqa: S108 (boxes belong in memory; removed at the end)
START_SECONDS: Final = 1.5
"""From starting the processes to the first launch, so that all begin at once."""
SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """One container: what it is promised and what it runs."""

    pattern: str
    core: int
    policy: str = "fixed"
    online: bool = False
    begin: float = 0.0
    """Seconds after the others."""
    on: float = 0.0
    off: float = 0.0
    """Works and rests in turns of so many seconds; 0: always works."""
    weight: int = 0
    """0: the promise is the weight."""
    ceiling: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A box for so many seconds: jobs by card, and the simulator's parameters."""

    cards: tuple[tuple[Job, ...], ...]
    seconds: float
    settings: Mapping[str, int]
    seed: int
    every: float = 0.05
    """Seconds between two looks into the records."""
    realtime: bool = True


@dataclass(slots=True)
class Track:
    """What the records said of one job: own GPU time at moments of the card's clock, both in ns."""

    job: Job
    card: int
    at: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)
    client: dict[str, Any] = field(default_factory=dict)
    """What the client said at its end."""
    book: dict[str, int] = field(default_factory=dict)
    """What the library said at the end: a claim, for the reader of the figures only."""

    def own_at(self, moment: float) -> float:
        """Own time at a moment of the card's clock, between two looks in proportion."""
        for i in range(1, len(self.at)):
            if self.at[i] >= moment:
                part = (moment - self.at[i - 1]) / max(1, self.at[i] - self.at[i - 1])
                return self.own[i - 1] + part * (self.own[i] - self.own[i - 1])
        return float(self.own[-1])

    def share(self, begin: float, end: float) -> float:
        """Percent of the card between two moments."""
        return 100 * (self.own_at(end) - self.own_at(begin)) / (end - begin)


@dataclass(slots=True)
class Record:
    """What came of a plan."""

    begin: int
    """When the jobs began; CLOCK_MONOTONIC, which is the cards' clock too."""
    end: int
    tracks: list[Track]
    late: float = 0.0
    """Seconds by which the host's word was written late at worst, because this machine was busy."""


def run(plan: Plan, client: Path) -> Record:
    """Carry out one plan. Leaves nothing behind."""
    if plan.realtime:
        hurry(20)
    home = SHM / f"gpushare-fair-{os.getpid()}"
    home.mkdir()
    try:
        hardware.create(home / "hardware", [MODEL] * len(plan.cards), dict(plan.settings))
        return _Box(plan, client, home).run()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def hurry(priority: int) -> None:
    """Before others on this machine, where we may: it is not this machine's load that is judged."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
    except PermissionError:
        return


class _Box:
    def __init__(self, plan: Plan, client: Path, home: Path) -> None:
        self.plan, self.client, self.home = plan, client, home
        self.machine = NvmlMachine(home / "hardware")
        self.cards = self.machine.cards()
        self.begin = time.clock_gettime(time.CLOCK_MONOTONIC) + START_SECONDS
        self.running: list[tuple[Track, subprocess.Popen[str], Path]] = []
        self.feeders: list[tuple[Feeder, frozenset[int]]] = []
        self.late = 0.0

    def run(self) -> Record:
        for card, jobs in enumerate(self.plan.cards):
            for job in jobs:
                self._start(job, card)
        try:
            self._watch()
        finally:
            for _, started, _ in self.running:
                if started.poll() is None and self.plan.seconds and time.monotonic() < self.begin:
                    started.kill()
        end = self.begin + self.plan.seconds
        return Record(int(self.begin * SECOND), int(end * SECOND), [track for track, _, _ in self.running], self.late)

    def _start(self, job: Job, card: int) -> None:
        number = len(self.running)
        uuid = self.cards[card].uuid
        part = Slice(uuid, card, GIB, job.core)
        me = process.identify(os.getpid())
        entry = HostAllocation(
            f"job-{number}",
            "",
            process.boot(),
            time.time(),
            0,
            me,
            ("x",),
            (part,),
            job.policy,
            online=job.online,
            weight=job.weight,
            ceiling=job.ceiling,
        )
        folder = self.home / "book" / entry.id
        folder.mkdir(parents=True)
        policy = abi.Policy[job.policy.upper()]
        write_promise_files(entry, folder, {card.uuid: card.model for card in self.cards})
        (folder / "promise.json").write_text(dump(entry), "utf-8")
        enforced = native.library_path() if job.core > 0 else None
        made = build_environment(
            dict(os.environ),
            self.machine.environment(),
            (entry.id, (part,), {card.uuid: card for card in self.cards}),
            enforced,
            folder,
        )
        start, end = self.begin + job.begin, self.begin + self.plan.seconds
        words = [job.pattern, self.plan.seed * 100 + number, start, end]
        if job.on:
            words += [job.on, job.off]
        started = subprocess.Popen(
            [self.client, *map(str, words)],
            env=made,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: hurry(10)) if self.plan.realtime else None,  # noqa: PLW1509 (no threads here)
        )
        self.running.append((Track(job, card), started, folder))
        if enforced is not None and job.core < 100:
            self.feeders.append((Feeder(entry, folder, self.machine, policy), frozenset({started.pid})))

    def _watch(self) -> None:
        """Feed and look until the end, each at its own pace."""
        due = {id(feeder): 0.0 for feeder, _ in self.feeders}
        look, end = self.begin, self.begin + self.plan.seconds
        with hardware.open_box(self.home / "hardware") as box:
            while (now := time.clock_gettime(time.CLOCK_MONOTONIC)) < end:
                for feeder, pids in self.feeders:
                    if now >= due[id(feeder)]:
                        self.late = max(self.late, now - due[id(feeder)] if due[id(feeder)] else 0.0)
                        due[id(feeder)] = now + feeder.seconds
                        feeder.turn(pids, now)
                if now >= look:
                    look = max(look + self.plan.every, now)
                    self._look(box)
                soon = min([look, *due.values()]) - time.clock_gettime(time.CLOCK_MONOTONIC)
                time.sleep(max(0.0005, soon))
            self._look(box)
            self._books()
            for track, started, _ in self.running:
                out, _ = started.communicate(timeout=30)
                if started.returncode:
                    raise RuntimeError(f"a job ended with status {started.returncode}")
                track.client = json.loads(out)

    def _look(self, box: hardware.Box) -> None:
        box.settle()
        records = box.cards()
        for card, jobs in self._by_card():
            by_pid = {client.pid: client for client in box.clients(card)}
            for track, started, _ in jobs:
                client = by_pid.get(started.pid)
                track.at.append(records[card].clock_ns)
                track.own.append(client.own_ns if client else 0)
                track.slices.append(client.slices if client else 0)

    def _by_card(self) -> Iterator[tuple[int, Sequence[tuple[Track, subprocess.Popen[str], Path]]]]:
        for card in range(len(self.plan.cards)):
            yield card, [one for one in self.running if one[0].card == card]

    def _books(self) -> None:
        from isolation.lib import files  # noqa: PLC0415

        for track, _, folder in self.running:
            for book in files.read_region(folder / "region").cards:
                track.book = {
                    name: getattr(book, name)
                    for name in ("charged_ns", "event_ns", "launches", "throttled_ns", "corrected_ns", "rate_ppm")
                }
