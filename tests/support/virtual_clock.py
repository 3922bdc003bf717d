# SPDX-License-Identifier: Apache-2.0
"""
Stories whose time is apart from the machine's: programs on simulated cards see the same moments however busy it is.

How it works stands in tests/abi/virtual_clock.c. All that take part in a story must be announced; its clock stands
until they have come. A judge of ours is one of them: it looks at the card's records at the moments that a test names.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.compiled import gcc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "abi" / "virtual_clock.c"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
LINK = ("-lpthread", "-ldl")


def library() -> Path:
    """What is preloaded."""
    return gcc("virtual_clock.so", [SOURCE], *FLAGS, *LINK)


@dataclass(frozen=True)
class Story:
    """A clock for so many members."""

    path: Path
    members: int

    def __post_init__(self) -> None:
        made = ctypes.CDLL(str(library())).virtual_clock_create(os.fsencode(self.path), ctypes.c_uint64(self.members))
        assert 0 == made, self.path

    @property
    def begin(self) -> float:
        """Monotonic seconds at which it begins."""
        with self.path.open("rb") as file:
            return int.from_bytes(file.read(8), sys.byteorder) / 1e9

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Of a program that sees this clock; what is preloaded already stays first."""
        before = base.get("LD_PRELOAD", "")
        return {**base, "VIRTUAL_CLOCK": str(self.path), "LD_PRELOAD": f"{before} {library()}".strip()}

    def judge(self, box: Path, looks: Sequence[float], feeds: Mapping[str, int] | None = None, **more: Any) -> Judge:
        """
        Look at the first card at these seconds; `feeds`: files to write every 30 ms, each for a process.

        `feed_seconds`: nothing is written after these.
        """
        wanted = {"box": str(box), "begin": self.begin, "looks": looks, "feeds": feeds or {}, **more}
        env = self.environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
        command = [sys.executable, "-m", "support.virtual_judge", json.dumps(wanted)]
        return Judge(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE))


@dataclass(frozen=True)
class Look:
    """The card at a moment: its clock, and own time of each process."""

    clock_ns: int
    own_ns: dict[int, int]


@dataclass(frozen=True)
class Judge:
    """A process that looks; it does not outlive the block."""

    process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=300)

    def looks(self) -> list[Look]:
        """What it saw, when it has seen all."""
        out, _ = self.process.communicate(timeout=300)
        assert 0 == self.process.returncode
        return [Look(clock, {int(pid): own for pid, own in owns.items()}) for clock, owns in json.loads(out)]


def percent(before: Look, after: Look, pid: int) -> float:
    """Of the card that a process got between two looks."""
    own = after.own_ns.get(pid, 0) - before.own_ns.get(pid, 0)
    return 100 * own / (after.clock_ns - before.clock_ns)
