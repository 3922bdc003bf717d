# SPDX-License-Identifier: Apache-2.0
"""
Boxes of simulated cards and processes that use them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isolation.simgpu.hardware import Box, create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parents[1]
QUIET = {"launch_ns": 0, "event_ns": 0, "alloc_ns": 0, "gap_ns": 0, "teardown_ns": 0}


class Client:
    """A process with `simclient` imported that runs the given lines."""

    def __init__(self, box: Path, code: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from support.simclient import *\n" + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GPUSHARE_SIMGPU": str(box), "PYTHONPATH": str(TESTS), **env},
        )

    def line(self) -> str:
        """The next line it says."""
        return self.process.stdout.readline().strip()

    def tell(self, word: str = "go") -> None:
        """Let it go on."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has it."""
        self.process.kill()
        self.process.wait(timeout=300)

    def end(self) -> str:
        """The rest of what it says; it must end well."""
        rest = self.process.stdout.read()
        assert 0 == self.process.wait(timeout=120), rest
        return rest.strip()


@pytest.fixture
def make_box() -> Iterator[Callable[..., Box]]:
    """Boxes in memory; gone after the test."""
    boxes: list[Box] = []

    def make(*models: str, **settings: int) -> Box:
        path = Path(f"/dev/shm/gpushare-test-{os.getpid()}-{len(boxes)}")  # noqa: S108 (a box is shared memory)
        create(path, models or ["v100-16g"], {**QUIET, **settings})
        boxes.append(Box(path))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()
        box.path.unlink(missing_ok=True)


@pytest.fixture
def run() -> Iterator[Callable[..., Client]]:
    """Clients; none outlives the test."""
    clients: list[Client] = []

    def start(box: Box, code: str, **env: str) -> Client:
        clients.append(Client(box.path, code, **env))
        return clients[-1]

    yield start
    for client in clients:
        if client.process.poll() is None:
            client.kill()
        client.process.stdin.close()
        client.process.stdout.close()
