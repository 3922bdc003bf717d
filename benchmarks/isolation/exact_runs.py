# SPDX-License-Identifier: Apache-2.0
"""
A simulated card with one promise, and the programs that try its records: a crowd, and those that kill.

The judge is the simulated driver's own book of the card; the library's is what is judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from isolation.contract import abi
from isolation.lib import build, files
from isolation.simgpu import hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = build.HERE / "tests"
UNITS: Final = tuple(f"../src/{name}.c" for name in ("ledger", "slot", "ring", "sys"))
JUDGE: Final = ("families.c", "judge.c", *UNITS)
HARDWARE: Final = hardware.LIBRARIES.parent / "_hardware.so"
FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
PACE: Final = 100_000
"""Microseconds between two kills while the ledger is corrected: a process lives for some of the host's samples."""
PATIENCE: Final = 240.0
"""Seconds beyond its own that a crowd may take on a busy machine before somebody counts as wedged."""


@dataclass(frozen=True)
class Size:
    """How much of each part is done."""

    processes: int = 64
    threads: int = 16
    seconds: float = 60.0
    kills: int = 5000
    samples: int = 0
    """Boundaries of each family's path, at random; 0: every one."""
    seed: int = 1


@dataclass
class Box:
    """A folder with a simulated card, its driver, our library, and one container's promise."""

    folder: Path
    library: Path
    card: hardware.Box

    def promise(self, promised: int) -> None:
        """Make the container's files again."""
        model = self.card.cards()[0].model
        files.create_region(self.folder / "region", "exact")
        limit = abi.CardLimit(UUID(bytes=bytes(model.uuid)), promised, int(model.context_bytes))
        files.write_limits(self.folder / "limits", abi.Limits(1, "exact", (limit,)))

    def environment(self) -> dict[str, str]:
        """What a process of the container has in its environment."""
        env = dict(os.environ, LD_LIBRARY_PATH=str(self.folder), LD_PRELOAD=str(self.library))
        env |= {f"GPUSHARE_{name.upper()}": str(self.folder / name) for name in ("limits", "region", "feed")}
        return env | {"GPUSHARE_SIMGPU": str(self.folder / "hardware"), "LD_BIND_NOW": "1"}

    def used(self) -> tuple[int, int]:
        """Bytes on the card: as the hardware counts them, and as the library's ledger does."""
        self.card.settle()
        return self.card.cards()[0].used_bytes, files.read_region(self.folder / "region").cards[0].used_bytes


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where programs lie until this process ends."""
    return tempfile.TemporaryDirectory(prefix="gpushare-exact-")


@cache
def compiled(name: str, *sources: str) -> Path:
    """One of the library's test programs, compiled against the simulated driver."""
    target = Path(_folder().name) / name
    inputs = [str(TESTS / source) for source in sources]
    linked = ("-Wl,-z,now", "-Wl,--no-as-needed", f"-L{hardware.LIBRARIES}", "-l:libcuda.so.1", "-lpthread", "-ldl")
    subprocess.run(["gcc", *FLAGS, f"-I{build.HERE / 'include'}", "-o", str(target), *inputs, *linked], check=True)
    return target


@contextmanager
def boxed(model: str, library: Path | None = None) -> Iterator[Box]:
    """A box in memory for the length of a block; the library is the built one unless named."""
    with tempfile.TemporaryDirectory(prefix="gpushare-exact-", dir="/dev/shm") as name:
        folder = Path(name)
        hardware.create(folder / "hardware", [model], {"teardown_ns": 0, "alloc_ns": 0})
        hardware.install(folder)
        with hardware.open_box(folder / "hardware") as card:
            yield Box(folder, library or build.HERE / build.PLAIN, card)


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a crowd did, and what the records said."""

    calls: int
    refused: int
    other: int
    failed: int
    promised: int
    peak_truth: int
    rest_truth: int
    rest_ledger: int
    left_truth: int
    left_ledger: int
    said: str


def crowd(box: Box, size: Size, families: Sequence[str], promised: int) -> Crowd:
    """Let processes of many threads loose on one promise; look at rest, and when all is given back."""
    program = compiled("crowd", "crowd.c", "families.c")
    box.promise(promised)
    board = box.folder / "board"
    board.write_bytes(bytes(8192))
    command = [str(program), str(board)]
    ends, seed = [str(size.seconds), str(size.threads)], int(size.seed) * 64
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen(
            [*command, str(index), str(size.processes), *ends, str(seed + index), *families],
            env=box.environment(),
            **pipes,  # type: ignore[call-overload]
        )
        for index in range(size.processes)
    ]
    try:
        _wait(lambda: _word(board, 4) == size.processes or any(p.poll() is not None for p in running), size.seconds)
        rest = box.used()
        with board.open("r+b") as file:
            file.seek(8)
            file.write((1).to_bytes(4, "little"))
        ended = [process.communicate(timeout=PATIENCE) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    calls, refused, other = (
        sum(column) for column in zip(*(map(int, out.split()) for out, _ in ended if out), strict=True)
    )
    left = box.used()
    said = "\n".join(sorted({line for _, err in ended for line in err.splitlines() if line.startswith("crowd:")}))
    failed = sum(process.returncode != 0 for process in running)
    peak = box.card.cards()[0].peak_bytes
    return Crowd(calls, refused, other, failed, promised, peak, *rest, *left, said)


def _word(board: Path, offset: int) -> int:
    return int.from_bytes(board.read_bytes()[offset : offset + 4], "little")


def _wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds + PATIENCE
    while not until():
        if time.monotonic() > end:
            raise TimeoutError("the crowd does not come to rest: somebody is wedged")
        time.sleep(0.02)


def killed(box: Box, program: str, *arguments: str) -> dict[str, int]:
    """Run one of the programs that kill over all families; its figures."""
    path = compiled(program, f"{program}.c", *JUDGE)
    return _figures(box.environment(), program, [str(path), str(HARDWARE), *arguments])


@dataclass(frozen=True, slots=True)
class Corrected:
    """What a storm under `gpushare run` left behind, and the most that the card ever held."""

    figures: dict[str, int]
    promised: int
    peak_truth: int
    left_truth: int


def corrected(model: str, size: Size, families: Sequence[str], gib: int, context_bytes: int) -> Corrected:
    """Kill under contention while `gpushare run` corrects the ledger by the driver's figure all the time."""
    storm = compiled("storm", "storm.c", *JUDGE)
    with tempfile.TemporaryDirectory(prefix="gpushare-exact-", dir="/dev/shm") as name:
        path = Path(name) / "hardware"
        hardware.create(path, [model], {"teardown_ns": 0, "alloc_ns": 0, "context_bytes": context_bytes})
        command = [sys.executable, "-m", "gpushare", "run", "--simgpu", str(path), "--gpu-mem", str(gib), "--"]
        figures = map(str, (size.kills, size.processes, size.threads, PACE, size.seed))
        arguments = [str(storm), str(HARDWARE), *figures, *families]
        env = os.environ | {"GPUSHARE_STATE_DIR": str(Path(name) / "state")}
        found = _figures(env, "storm", [*command, *arguments])
        with hardware.open_box(path) as box:
            box.settle()
            card = box.cards()[0]
            return Corrected(found, gib << 30, card.peak_bytes, card.used_bytes)


def killed_inside(box: Box, *arguments: str) -> dict[str, int]:
    """Run the program that kills inside the ledger's and the slots' own steps; its figures."""
    return _figures(box.environment(), "kill", [str(compiled("kill", "kill.c", *UNITS)), *arguments])


def _figures(env: Mapping[str, str], name: str, command: Sequence[str]) -> dict[str, int]:
    """What a program of names and figures prints."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600, check=False, cwd=ROOT)
    words = done.stdout.split()
    if not words:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-400:]}")
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
