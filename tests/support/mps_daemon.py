# SPDX-License-Identifier: Apache-2.0
"""
An MPS control daemon of the simulator beside a box.

    with mps_daemon(box, tmp_path / "pipes") as daemon:
        daemon.command("start_server -uid 0")
        run(box, code, **daemon.env)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from isolation.simgpu.hardware import Box

PROGRAM = (sys.executable, "-m", "isolation.simgpu.mps")


@dataclass
class MpsDaemon:
    """See the module."""

    pipes: Path
    process: subprocess.Popen[bytes]
    env: dict[str, str] = field(init=False)
    """Of its clients."""

    def __post_init__(self) -> None:
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes)}

    def command(self, *lines: str) -> str:
        """What `nvidia-cuda-mps-control` prints for these lines."""
        done = subprocess.run(
            PROGRAM,
            input="\n".join(lines),
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        return done.stdout.strip()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def mps_daemon(box: Box, pipes: Path, visible: str = "") -> Iterator[MpsDaemon]:
    """A daemon that runs for the length of a block; `visible`: CUDA_VISIBLE_DEVICES."""
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    if visible:
        env["CUDA_VISIBLE_DEVICES"] = visible
    made = MpsDaemon(pipes, subprocess.Popen([*PROGRAM, "-f"], env=env))
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        note = pipes / "nvidia-cuda-mps-control.pid"  # one that was killed leaves its own behind
        while not (note.is_file() and note.read_text().strip() == str(made.process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield made
    finally:
        made.command("quit")
        made.kill()
