# SPDX-License-Identifier: Apache-2.0
"""
Part `cost`: what the library adds to a call, on a fake driver whose own calls cost next to nothing.

Every figure is with the preload less without it, medians of several runs that take turns. Event calls are
given the microsecond that they cost on real drivers, approximately; means contain them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final
from uuid import UUID

from benchmarks.isolation.jobs import hurry
from isolation.contract import abi
from isolation.contract.quantity import GIB, MIB
from isolation.lib import build, files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOURCES: Final = Path(build.__file__).parent / "tests"
TURNS: Final = 7
PROCESSES: Final = 64
EVENT_NS: Final = 1000
NO_LIMIT, LIMIT = 0, 950_000


@dataclass(frozen=True, slots=True)
class Cost:
    """One figure, its bar, and the figures of every turn."""

    name: str
    unit: str
    value: float
    bar: float
    runs: tuple[float, ...]

    @property
    def met(self) -> bool:
        """Whether the bar holds."""
        return self.value <= self.bar


class _Place:
    """A container on a fake card, and the programs to run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        flags = ("-std=gnu11", "-O2", f"-I{SOURCES.parent / 'include'}")
        shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
        driver, program = folder / "libcuda.so.1", folder / "bench"
        for target, source, more in (
            (driver, "fake_cuda.c", shared),
            (program, "bench.c", (str(driver), "-Wl,--no-as-needed")),
        ):
            command = ["gcc", *flags, "-o", str(target), str(SOURCES / source), *more, "-lpthread"]
            subprocess.run(command, check=True)
        self.program = program
        build.build(folder / build.PLAIN, build.PLAIN)

    def promise(self, core_ppm: int) -> None:
        """A fresh region and a promise."""
        (self.folder / "region").unlink(missing_ok=True)
        files.create_region(self.folder / "region", "cost")
        card = abi.CardLimit(UUID(int=1), 64 * GIB, 100 * MIB, core_ppm)
        files.write_limits(self.folder / "limits", abi.Limits(1, "cost", (card,)))
        files.write_feed(self.folder / "feed", [abi.CardFeed(0, 0)])

    def environment(self, *, preload: bool) -> dict[str, str]:
        """With the library or without."""
        hardware = self.folder / "hardware"
        hardware.write_bytes(bytes(4096))
        env = dict(os.environ, LD_LIBRARY_PATH=str(self.folder), FAKE_CUDA_FILE=str(hardware), FAKE_CUDA_GIB="64")
        env["FAKE_EVENT_NS"] = str(EVENT_NS)
        for name in ("limits", "region", "feed"):
            env[f"GPUSHARE_{name.upper()}"] = str(self.folder / name)
        return env | ({"LD_PRELOAD": str(self.folder / build.PLAIN)} if preload else {})

    def bench(self, live: int, *, preload: bool) -> dict[str, tuple[float, float]]:
        """Median and mean by name, nanoseconds."""
        done = subprocess.run(
            [self.program, str(live)],
            env=self.environment(preload=preload),
            capture_output=True,
            text=True,
            check=True,
        )
        rows = (line.split() for line in done.stdout.splitlines())
        return {name: (float(middle), float(mean)) for name, middle, mean in rows}


def _calls(place: _Place, core_ppm: int, live: int, names: Mapping[str, tuple[str, int, float]]) -> Iterator[Cost]:
    """`names`: row title -> (what the program calls it, 0 median or 1 mean, bar)."""
    found: dict[str, list[float]] = {title: [] for title in names}
    for _ in range(TURNS):
        place.promise(core_ppm)
        without, with_it = place.bench(live, preload=False), place.bench(live, preload=True)
        for title, (name, at, _) in names.items():
            found[title].append(with_it[name][at] - without[name][at])
    for title, (_, _, bar) in names.items():
        yield Cost(title, "ns", median(found[title]), bar, tuple(found[title]))


def _started(place: _Place, *, preload: bool) -> float:
    """Microseconds until the last of many processes of one container has its context."""
    place.promise(NO_LIMIT)
    env = place.environment(preload=preload)
    with ExitStack() as stack:
        took = 0.0
        for _ in range(PROCESSES):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            started = subprocess.Popen([place.program, "start"], env=env, text=True, **pipes)  # type: ignore[call-overload]
            stack.callback(started.communicate)
            took = float(started.stdout.readline().split()[1]) / 1000
        return took


def _true(env: Mapping[str, str]) -> float:
    """Microseconds of one `true`: the middle of many."""
    times = []
    for _ in range(200):
        began = time.perf_counter()
        pid = os.posix_spawn("/bin/true", ["true"], env)
        os.waitpid(pid, 0)
        times.append((time.perf_counter() - began) * 1e6)
    return median(times)


def costs(*, realtime: bool) -> Iterator[Cost]:
    """Every figure of the part."""
    if realtime:
        hurry(10)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = _Place(Path(folder))
        for live in (1, 1000, 100_000):
            text = f"alloc+free, {live:,} live"
            rows = {text: ("alloc+free", 0, 100.0), f"{text}, mean": ("alloc+free", 1, 150.0)}
            if live == 1:
                rows["cuMemGetInfo over the driver's"] = ("meminfo", 0, 100.0)
                rows["launch, no compute limit"] = ("launch", 0, 10.0)
            yield from _calls(place, NO_LIMIT, live, rows)
        limited = {"launch, compute limit": ("launch", 0, 50.0), "launch, compute limit, mean": ("launch", 1, 250.0)}
        yield from _calls(place, LIMIT, 1, limited)
        runs = [(_started(place, preload=True), _started(place, preload=False)) for _ in range(3)]
        more = tuple(with_it - without for with_it, without in runs)
        yield Cost(f"start-up of process {PROCESSES}", "us", median(more), 1000.0, more)
        plain = {"PATH": os.defpath}
        preloaded = plain | {"LD_PRELOAD": str(place.folder / build.PLAIN)}
        pairs = [(_true(preloaded), _true(plain)) for _ in range(TURNS)]
        more = tuple(with_it - without for with_it, without in pairs)
        yield Cost("`true` with the preload", "us", median(more), 50.0, more)
