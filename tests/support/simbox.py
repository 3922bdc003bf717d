# SPDX-License-Identifier: Apache-2.0
"""
Simulated boxes and processes that compute on them, for tests that judge a reader by the simulator's records.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from isolation.simgpu.hardware import Box, create

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = "/dev/shm"  # noqa: S108 (a box is shared memory)
PRELUDE = "import os\nfrom support.simclient import *\nstart(int(os.environ.get('CARD', 0)))\n"
LOAD = """
import time
(busy,) = functions(b"busy")
part = float(os.environ["PART"])
say("up")
join()
while True:
    begun = time.monotonic()
    launch(busy, int(50e6 * part)); do("cuCtxSynchronize")
    time.sleep(max(0.0, 0.05 - (time.monotonic() - begun)))
"""
"""Computes for PART of the time."""
HOLD = "alloc(int(os.environ['BYTES'])); say('up'); wait()"
"""Has BYTES of memory and does nothing."""


class Program:
    """A process on a box that runs the given lines once it has a context on card CARD."""

    def __init__(self, box: Path, code: str, name: str = sys.executable, **env: object) -> None:
        words = {key: str(value) for key, value in env.items()}
        self.process = subprocess.Popen(
            [name, "-c", PRELUDE + textwrap.dedent(code)],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GPUSHARE_SIMGPU": str(box), "PYTHONPATH": str(Path(__file__).parents[1]), **words},
        )
        assert self.process.stdin
        assert self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout
        self.pid = self.process.pid

    def line(self) -> str:
        """The next line it says."""
        return self._output.readline().strip()

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has it."""
        self.process.kill()
        self.process.wait(timeout=300)
        self._input.close()
        self._output.close()


@contextlib.contextmanager
def boxes(*models: str, **settings: int) -> Iterator[Box]:
    """A box of these cards, and nobody else's; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpushare-test-", dir=MEMORY) as folder:
        path = Path(folder) / "hardware"
        create(path, models or ["t4"], settings)
        box = Box(path)
        try:
            yield box
        finally:
            box.close()


@contextlib.contextmanager
def programs() -> Iterator[list[Program]]:
    """A list for processes that do not outlive the block."""
    running: list[Program] = []
    try:
        yield running
    finally:
        for program in running:
            program.kill()
