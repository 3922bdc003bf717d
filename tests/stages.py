# SPDX-License-Identifier: Apache-2.0
"""
Runs the stages of `make test` and `make test-all`: side by side, each to its end, and says at the end which failed.

    python tests/stages.py test                  what `make test` runs
    python tests/stages.py all [--without test]  everything, or only what `make test` did not run
    python tests/stages.py lint cluster          these stages

A stage is one command with a log of its own in build/tests/. Stages that use the machine differently (computing;
waiting for a control plane) run side by side. A stage that fails hides no other; the last lines name it with the
command that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Collection

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "tests"
BIN = Path(sys.executable).parent
CORES = os.cpu_count() or 2
LIMIT_SECONDS = 3600.0
"""After this long a stage hangs: all that it started is ended and it has failed."""
LINES_SHOWN = 400
_PERCENT = re.compile(r"\[ *(\d+)%\]")
_CLOSING = re.compile(r"^=* ?(\d+ (passed|failed|error|skipped|deselected|warning)\S*.* in .*s.*?) ?=*$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Stage:
    """One command, or several of which each runs whatever the others say."""

    name: str
    about: str
    commands: tuple[tuple[str, ...], ...]
    repeat: str
    root_only: bool = False


def pytest(workers: int, *words: str) -> tuple[str, ...]:
    """
    A pytest run by so many workers; a module's tests stay together, since they share what is slow to make.

    In the order of the folders, which begins with the tests that wait for processes and ends with many short ones: no
    worker is left alone with a long module. The log has a line for each test, with how far the whole is.
    """
    return (str(BIN / "pytest"), "-v", "-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", *words)


def stages(budget: int) -> dict[str, Stage]:
    """Every stage by its name."""
    searching = ("--budget", str(budget)) if budget > 1 else ()
    elsewhere = tuple(f"--ignore-glob=*/test_{name}" for name in ("real_kubelet_*", "keda.py", "operators.py"))
    many, few = max(4, CORES), max(2, CORES // 2)
    lint = (
        (str(BIN / "ruff"), "check", "."),
        (str(BIN / "ruff"), "format", "--check", "."),
        (str(BIN / "mypy"),),
        (str(BIN / "lint-imports"), "--no-cache"),
    )
    kubelet = (("bash", "tests/realkubelet/get.sh"), pytest(0, "-m", "e2e", "-k", "real_kubelet", "tests/e2e"))
    keda = (("bash", "tests/e2e/get_keda.sh"), pytest(0, "tests/e2e/test_keda.py"))
    operators = (("bash", "tests/e2e/get_operators.sh"), pytest(0, "tests/e2e/test_operators.py"))
    cuda_programs = (
        (sys.executable, "tests/cuda_programs/get.py"),
        pytest(few, "-m", "cuda_programs", "tests/cuda_programs"),
        (sys.executable, "tests/cuda_programs/table.py"),
    )
    made = (
        Stage("lint", "ruff, mypy --strict, import contracts", lint, "make lint"),
        Stage(
            "tests",
            "unit tests, the isolation library on simulated cards, every command",
            (pytest(many, "-m", "not slow and not e2e and not cuda_programs", *searching),),
            "make stage S=tests",
        ),
        Stage(
            "cluster",
            "main scenarios on a real control plane",
            (pytest(few, "-m", "e2e and not slow", *elsewhere, *searching, "tests/e2e"),),
            "make stage S=cluster",
        ),
        Stage(
            "slow-tests",
            "long random tests, installs, simulated days of a cluster",
            (pytest(max(3, few), "-m", "slow and not e2e", *searching),),
            "make stage S=slow-tests",
        ),
        Stage(
            "slow-cluster",
            "all other scenarios on a real control plane",
            (pytest(max(3, few), "-m", "e2e and slow", *elsewhere, *searching, "tests/e2e"),),
            "make stage S=slow-cluster",
        ),
        Stage("kubelet", "the node agent under a real kubelet and containerd", kubelet, "make kubelet", root_only=True),
        Stage("keda", "docs/keda.md with the real KEDA", keda, "make keda", root_only=True),
        Stage("operators", "the real cert-manager and Prometheus operator", operators, "make operators"),
        Stage(
            "cuda-programs",
            "programs of others, with and without the isolation library",
            cuda_programs,
            "make cuda-programs",
        ),
    )
    return {stage.name: stage for stage in made}


GROUPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "test": (("lint", "tests"), ("cluster",)),
    "all": (("lint", "tests", "slow-tests"), ("cluster", "slow-cluster", "keda", "operators"), ("kubelet",)),
}
"""Lanes run side by side; the stages of a lane one after another. `cuda-programs` is in none: it fetches 10 GiB."""


@dataclass
class Run:
    """One stage of this run."""

    stage: Stage
    log: Path
    process: subprocess.Popen[bytes] | None = None
    at: int = -1
    """Which of the stage's commands is running."""
    began: float = 0.0
    seconds: float | None = None
    """How long it took; None while it has not ended."""
    failed: list[str] = field(default_factory=list)
    why: str = ""
    """Why it was not run."""

    def start(self) -> None:
        """Begin the first command."""
        self.began = time.monotonic()
        self.log.write_bytes(b"")
        if self.stage.root_only and os.geteuid() != 0:
            self.why, self.seconds = "needs root", 0.0
            return
        self._next()

    def poll(self) -> bool:
        """Whether it has ended; a command that has ended is followed by the next one."""
        if self.seconds is not None:
            return True
        status = self.process.poll()
        if status is None and time.monotonic() - self.began > LIMIT_SECONDS:
            self.end()
            status = f"still running after {LIMIT_SECONDS / 60:.0f} minutes"
        if status is None:
            return False
        if status != 0:
            words = self.stage.commands[self.at]
            self.failed.append(f"{shlex.join((Path(words[0]).name, *words[1:]))}: {exit_text(status)}")
        self._next()
        return self.seconds is not None

    def end(self) -> None:
        """Stop it and all that it started."""
        if self.process is None or self.process.poll() is not None:
            return
        for kind, patience in ((signal.SIGINT, 20), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
                return

    def percent(self) -> int:
        """How far pytest says it is; 0 where it says nothing."""
        found = _PERCENT.findall(tail(self.log, 4000))
        return int(found[-1]) if found else 0

    def _next(self) -> None:
        self.at += 1
        if self.at == len(self.stage.commands):
            self.seconds = time.monotonic() - self.began
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.stage.commands[self.at],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment(),
            )


def say(text: str) -> None:
    """A line for people, at once also in a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def environment() -> dict[str, str]:
    """
    Of every stage: as ours, with room for long lines.

    Modules are compiled once, also where that is switched off, and not by each of a thousand processes of tests.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"COLUMNS": "160"}


def exit_text(status: int | str) -> str:
    """What an exit status means; pytest's 5 is not a success."""
    if isinstance(status, str):
        return status
    if status == 5:
        return "no tests found"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def tail(path: Path, size: int) -> str:
    """The end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace")


def clock(seconds: float) -> str:
    """`4:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Plain:
    """Progress for a file or a pipe: a line when a stage begins or ends, and one a minute."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._seen: set[str] = set()

    def show(self, runs: list[Run]) -> None:
        """Say what is new."""
        now = time.monotonic()
        for run in runs:
            if run.began and run.stage.name not in self._seen:
                self._seen.add(run.stage.name)
                self._say(f"{run.stage.name}: {run.stage.about}")
            if run.seconds is not None and f"{run.stage.name} ended" not in self._seen:
                self._seen.add(f"{run.stage.name} ended")
                self._say(f"{run.stage.name}: {outcome(run)} after {clock(run.seconds)}")
        if now - self._said >= 60:
            running = [f"{run.stage.name} {run.percent()} %" for run in runs if run.began and run.seconds is None]
            self._say(", ".join(running))

    def close(self) -> None:
        """Nothing to do."""

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        say(f"{clock(self._said - self._began):>6}  {text}")


class Bars:
    """Progress for a terminal: a bar for each stage."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<13}"), BarColumn(30), TextColumn("{task.fields[state]}"))
        self._bars = Progress(*columns)
        self._tasks: dict[str, TaskID] = {}
        self._bars.start()

    def show(self, runs: list[Run]) -> None:
        """Bring every bar up to date."""
        for run in runs:
            name = run.stage.name
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=100, state="")
            if run.seconds is not None:
                colour = "red" if run.failed else "yellow" if run.why else "green"
                state, done = f"[{colour}]{outcome(run)}[/] {clock(run.seconds)}", 100
            elif run.began:
                state, done = clock(time.monotonic() - run.began), run.percent()
            else:
                state, done = "[dim]waiting[/]", 0
            self._bars.update(self._tasks[name], completed=done, state=state)

    def close(self) -> None:
        """Leave the last picture."""
        self._bars.stop()


def outcome(run: Run) -> str:
    """One word, or why there is none."""
    if run.why:
        return f"not run: {run.why}"
    return "failed" if run.failed else "passed"


def play(lanes: list[list[Run]], screen: Plain | Bars) -> None:
    """Run every lane to its end."""
    runs = [run for lane in lanes for run in lane]
    waiting = [list(lane) for lane in lanes]
    current: list[Run | None] = [None] * len(lanes)
    while True:
        for at, lane in enumerate(waiting):
            if (current[at] is None or current[at].poll()) and lane:
                current[at] = lane.pop(0)
                current[at].start()
        screen.show(runs)
        if all(run.seconds is not None for run in runs):
            return
        time.sleep(0.5)


def report(runs: list[Run]) -> None:
    """What failed, whole; then each stage's closing line; then one table."""
    for run in runs:
        if run.failed:
            say(f"\n----- {run.stage.name} failed; full log: {run.log.relative_to(ROOT)}")
            say(failure_text(run.log.read_text(errors="replace")))
    say("")
    for run in runs:
        closing = _CLOSING.findall(run.log.read_text(errors="replace")) if run.began and not run.why else []
        for line, *_ in closing:
            say(f"===== {line} ===== ({run.stage.name})")
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "result", "minutes", "repeat with"):
        table.add_column(heading, no_wrap=True)
    for run in runs:
        colour = "red" if run.failed else "yellow" if run.why else "green"
        table.add_row(run.stage.name, f"[{colour}]{outcome(run)}[/]", clock(run.seconds or 0.0), run.stage.repeat)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for run in runs:
        for name in _FAILED.findall(run.log.read_text(errors="replace"))[:10] if run.failed else ():
            say(f"repeat one test: make one T={shlex.quote(name)}")


def failure_text(log: str) -> str:
    """From the first failure on; where pytest names none, the end of the log."""
    start = re.search(r"^=+ (FAILURES|ERRORS) =+$", log, re.MULTILINE)
    lines = (log[start.start() :] if start else log).splitlines()
    if len(lines) > LINES_SHOWN:
        half = LINES_SHOWN // 2
        lines = [*lines[:half], f"... {len(lines) - LINES_SHOWN} more lines in the log ...", *lines[-half:]]
    return "\n".join(lines)


def chosen(words: list[str], without: str | None, known: Collection[str]) -> list[list[str]]:
    """Lanes of names of the known stages; raises ValueError for a word that is neither a stage nor a group."""
    unknown = [word for word in (*words, *([without] if without else [])) if word not in known and word not in GROUPS]
    if unknown:
        raise ValueError(f"unknown stage {', '.join(unknown)}; choose from {', '.join([*GROUPS, *sorted(known)])}")
    wanted = expanded(words) - expanded([without] if without else [])
    # A stage that no group has follows those that have one: it is there only because its name was given.
    alone = tuple(sorted(set(known) - expanded(["all"])))
    return [[name for name in lane if name in wanted] for lane in (*GROUPS["all"], alone)]


def expanded(words: list[str]) -> set[str]:
    """Groups replaced by their stages."""
    return {name for word in words for lane in GROUPS.get(word, ((word,),)) for name in lane}


def main() -> int:
    """0 if every stage passed."""
    parser = argparse.ArgumentParser(description="Run test stages and list those that failed.")
    parser.add_argument(
        "stages", nargs="+", help=f"a group of stages ({', '.join(GROUPS)}) or single stages: {', '.join(stages(1))}"
    )
    parser.add_argument("--without", metavar="STAGE", help="skip this stage or group")
    parser.add_argument(
        "--budget", type=int, default=1, metavar="N", help="run random tests N times as long (default: 1)"
    )
    options = parser.parse_args()
    known = stages(max(1, options.budget))
    try:
        lanes = chosen(options.stages, options.without, known)
    except ValueError as exc:
        parser.error(str(exc))
    if options.budget < 1:
        parser.error("--budget must be a whole number of 1 or more")
    LOGS.mkdir(parents=True, exist_ok=True)
    made = [[Run(known[name], LOGS / f"{name}.log") for name in lane] for lane in lanes]
    runs = [run for lane in made for run in lane]
    screen = Bars() if sys.stdout.isatty() else Plain()
    # Also where a shell started us in the background, with SIGINT ignored: the stages would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        play(made, screen)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        for run in runs:
            run.end()
        screen.close()
    report(runs)
    return 1 if any(run.failed for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
