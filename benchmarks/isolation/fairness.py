# SPDX-License-Identifier: Apache-2.0
"""
Part `fair`: scenarios on random draws, side by side as far as this machine carries them.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.isolation import jobs
from benchmarks.isolation.judge import Finding, judge
from benchmarks.isolation.scenarios import SCENARIOS, Scenario, draw
from isolation.simgpu.hardware import LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

HERE: Final = Path(__file__).resolve().parent
STARVED: Final = 0.02
"""Part of its time that a job stood without a CPU, from which on a run that missed a bar is made again."""
LATE: Final = 0.1
"""Seconds; likewise where the host's word came later: keepers are never that late unless there is no CPU."""
TRIES: Final = 3
FILL: Final = 0.8
"""Of this machine's CPUs; the rest is for everybody else."""


@dataclass(slots=True)
class Outcome:
    """One scenario on one draw."""

    scenario: str
    seed: int
    findings: list[Finding]
    starved: float
    """Part of its time that a job stood ready without a CPU, at worst."""
    late: float = 0.0
    """Seconds by which the feed was late at worst."""
    error: str = ""
    tracks: tuple[dict[str, Any], ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether this machine had no CPU for the job or for its host: that is not the limiter's doing."""
        return self.starved > STARVED or self.late > LATE

    @property
    def met(self) -> bool:
        """Whether all bars hold."""
        return not self.error and all(finding.met for finding in self.findings)


@dataclass(slots=True)
class Task:
    """One scenario to be run on one draw, and how often still."""

    scenario: Scenario
    seed: int
    left: int = TRIES


def client(folder: Path) -> Path:
    """The job program, built for the simulated driver."""
    target = folder / "fair_client"
    libraries = LIBRARIES
    source = HERE / "fair_client.c"
    flags = ("-std=gnu11", "-O2", f"-L{libraries}", "-l:libcuda.so.1")
    subprocess.run(["gcc", "-o", str(target), str(source), *flags], check=True)
    return target


def _one(task: Task, program: Path, pipe: Connection, *, realtime: bool) -> None:
    """In a process of its own."""
    settings = draw(task.seed)
    try:
        record = jobs.run(task.scenario.plan(task.seed, settings, realtime=realtime), program)
        findings = judge(task.scenario.judge, record, settings["switch_ns"])
        starved = max(track.client["starved_ns"] for track in record.tracks) / (record.end - record.begin)
        tracks = tuple(
            {"card": t.card, "job": asdict(t.job), "client": t.client, "library": t.book, "at": t.at, "own": t.own}
            for t in record.tracks
        )
        pipe.send(Outcome(task.scenario.name, task.seed, findings, starved, record.late, tracks=tracks))
    except Exception:  # noqa: BLE001 (told to the parent, who prints it)
        pipe.send(Outcome(task.scenario.name, task.seed, [], 0.0, error=traceback.format_exc()))


def outcomes(tasks: list[Task], *, realtime: bool, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Run everything; starved runs again."""
    room = FILL * (os.cpu_count() or 1)
    done: list[Outcome] = []
    fork = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[Task, BaseProcess]] = {}
    waiting = sorted(tasks, key=lambda task: -task.scenario.seconds)
    with tempfile.TemporaryDirectory() as folder:
        program = client(Path(folder))
        while waiting or running:
            load = sum(task.scenario.load for task, _ in running.values())
            fitting = [t for t in waiting if load + t.scenario.load <= room or not running]
            if fitting:
                task = fitting[0]
                waiting.remove(task)
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_one, args=(task, program, theirs), kwargs={"realtime": realtime})
                process.start()
                theirs.close()
                running[ours] = (task, process)
                time.sleep(0.05)
                continue
            for pipe in wait(list(running)):
                task, process = running.pop(pipe)  # type: ignore[call-overload]
                outcome = _received(pipe, task)
                process.join()
                task.left -= 1
                if outcome.disturbed and task.left and not outcome.met:
                    waiting.append(task)
                    continue
                done.append(outcome)
                tell(outcome)
    return done


def _received(pipe: Any, task: Task) -> Outcome:
    try:
        return pipe.recv()  # type: ignore[no-any-return]
    except EOFError:
        return Outcome(task.scenario.name, task.seed, [], 0.0, error="the box died without a word")


def summary(done: Sequence[Outcome]) -> Iterator[tuple[str, Finding, float, float, int, int]]:
    """By scenario and figure: an example, median and worst over the draws, how many met the bar, of how many."""
    order = [scenario.name for scenario in SCENARIOS]
    for name in sorted({outcome.scenario for outcome in done}, key=order.index):
        mine = [outcome for outcome in done if outcome.scenario == name and not outcome.error]
        for at, first in enumerate(mine[0].findings if mine else []):
            values = [outcome.findings[at].value for outcome in mine]
            worst = min(values) if first.least else max(values)
            met = sum(outcome.findings[at].met for outcome in mine)
            yield name, first, median(values), worst, met, len(mine)
