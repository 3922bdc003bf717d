# SPDX-License-Identifier: Apache-2.0
"""
How jobs share a card under `gpushare run`, from start to end as a person types it; the simulator's records judge.

Commands, their keepers and the judge are members of a story with a clock of its own (`virtual_clock`): all that
happens does so at its moment, however busy this machine is. Tight figures on many kinds of card:
`python -m benchmarks.isolation`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("pynvml")
from support.compiled import gcc
from support.virtual_clock import Story, percent

hardware = pytest.importorskip("isolation.simgpu.hardware")
ROOT = Path(__file__).resolve().parents[2]
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-L{hardware.LIBRARIES}", "-l:libcuda.so.1")
ONLINE_REQUESTS = 500
SECOND = 1_000_000_000


@dataclass
class Machine:
    """One simulated V100 and jobs on it, each with a keeper; a story of all of them."""

    folder: Path
    client: Path
    jobs: int
    card: dict[str, int] = field(default_factory=dict)
    story: Story = field(init=False)
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hardware.create(self.folder / "box", ["v100-16g"], {"switch_ns": 20000, **self.card})
        self.story = Story(self.folder / "story", 2 * self.jobs + 1)

    def start(self, name: str, pattern: str, seconds: tuple[float, float], *options: str, turn: float = 0) -> None:
        """A job that is backlogged from one second to another, every other `turn` where one is given."""
        begin, end = (self.story.begin + at for at in seconds)
        turns = f" {turn} {turn}" if turn else ""
        command = f"echo $$; exec {self.client} {pattern} 1 {begin} {end}{turns}"
        words = ["run", "--simgpu", str(self.folder / "box"), "--gpu-mem", "2", *options, "--", "sh", "-c", command]
        line = [sys.executable, "-c", FRONT, *words]
        env = self.story.environment()
        self.running[name] = subprocess.Popen(line, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE)

    def shares(self, *windows: tuple[float, float]) -> list[dict[str, float]]:
        """Percent of the card that each job got in each stretch of the story."""
        assert self.jobs == len(self.running)
        moments = sorted({moment for window in windows for moment in window})
        with self.story.judge(self.folder / "box", moments) as judge:
            pids = {name: int(started.stdout.readline()) for name, started in self.running.items()}
            seen = dict(zip(moments, judge.looks(), strict=True))
        return [{name: percent(seen[at], seen[to], pid) for name, pid in pids.items()} for at, to in windows]

    def end(self) -> dict[str, dict]:
        """What the jobs said; all ended well."""
        looks = {name: json.loads(started.communicate(timeout=300)[0]) for name, started in self.running.items()}
        assert {0} == {started.returncode for started in self.running.values()}
        return looks


@pytest.fixture(scope="module")
def client():
    """The job program of the benchmark."""
    return gcc(
        "fair_client", [ROOT / "benchmarks" / "isolation" / "fair_client.c"], *FLAGS, beside=[hardware.LIBRARIES]
    )


@pytest.fixture
def machine(tmp_path, client):
    """A machine for so many jobs; none outlives the test."""
    made = []

    def make(jobs: int, **card: int) -> Machine:
        made.append(Machine(tmp_path, client, jobs, card))
        return made[-1]

    yield make
    for one in made:
        for started in one.running.values():
            started.kill()
            started.communicate(timeout=300)


def test_what_a_neighbour_leaves_idle_is_used_and_given_back_at_once(machine):
    """
    Promised 30, it has the card to itself; 0.3 s after the owner of the other 70 came back it is down to its 30.
    """
    box = machine(2)
    box.start("borrower", "2ms", (0, 4.5), "--gpu-core", "30", "--policy", "burst")
    box.start("owner", "2ms", (2, 4.5), "--gpu-core", "70", "--policy", "burst")
    alone, both = box.shares((0.5, 1.9), (2.3, 4.3))
    box.end()

    assert 97 < alone["borrower"]
    assert 0 == alone["owner"]
    assert 20 < both["borrower"] < 33
    assert 62 < both["owner"] < 71


def test_active_jobs_share_the_card_by_weight(machine):
    """
    10, 20 and 40 percent asked for: a seventh, two and four sevenths of the card.
    """
    box = machine(3)
    for core in (10, 20, 40):
        box.start(str(core), "2ms", (0, 5), "--gpu-core", str(core), "--policy", "weight")
    (got,) = box.shares((2, 4.8))
    box.end()

    assert {core: pytest.approx(100 * int(core) / 70, abs=4) for core in got} == got


def test_weights_hold_soon_where_samples_are_slow_and_do_not_tell_processes_apart(machine):
    """
    A sample a second, some lost, of slices shorter than a kernel: nobody knows before the third second what was waited.
    """
    slow = {"slice_ns": 1_600_000, "switch_ns": 120_000, "sample_ns": SECOND, "sample_late_ns": 200_000_000}
    box = machine(3, sample_shared=1, sample_missing_permille=150, **slow)
    for core in (14, 28, 56):
        box.start(str(core), "2ms", (2.5, 14), "--gpu-core", str(core), "--policy", "weight")
    early, late = box.shares((3.5, 5.5), (8, 13.5))
    box.end()

    assert 75 < sum(early.values())
    assert {core: pytest.approx(sum(late.values()) * int(core) / 98, abs=3) for core in late} == late


def test_an_online_job_hardly_notices_an_offline_one(machine):
    """
    Back to back requests beside a backlog of other work: 95 % of what they had alone, and the other goes on.
    """
    box = machine(2)
    policy = ("--gpu-core", "50", "--policy", "priority")
    box.start("online", "online", (0, 5), *policy, "--online")
    box.start("offline", "2ms", (2, 5), *policy)
    alone, both = box.shares((0.5, 1.9), (2.5, 4.8))
    looks = box.end()

    assert both["online"] > 0.95 * alone["online"] > 85
    assert 0 < both["offline"] < 3
    assert looks["online"]["requests"] > ONLINE_REQUESTS


def test_offline_jobs_use_what_an_online_one_leaves_where_samples_do_not_tell_processes_apart(machine):
    """
    Each time that the online job rests, after it computed for so long that they had all but forgotten each other.
    """
    late = {"sample_ns": 250_000_000, "sample_late_ns": 217_000_000}
    box = machine(4, sample_shared=1, **late)
    policy = ("--gpu-core", "25", "--policy", "priority")
    box.start("online", "2ms", (0, 12), *policy, "--online", turn=3)
    for name in ("a", "b", "c"):
        box.start(name, "2ms", (0, 12), *policy)
    works, rests = box.shares((6.5, 9), (9.5, 12))
    box.end()

    assert 95 < works["online"]
    assert 90 < rests["a"] + rests["b"] + rests["c"]
