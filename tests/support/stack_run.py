# SPDX-License-Identifier: Apache-2.0
"""One `gpushare up` with the whole stack, whose processes can be told from everybody else's."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.ports import free_ports
from support.waiting import PATIENCE_SECONDS, until

from autoscaler.demo.stack.addresses import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
OK = 200
MEMORY = Path("/dev/shm")  # noqa: S108 (where the cards of a stack are)


class Run:
    """One `gpushare up` whose processes can be told from everybody else's."""

    def __init__(self, folder: Path, *words: str, **more: str) -> None:
        self.sign = f"STACK_TEST={uuid.uuid4().hex}"
        name, _, value = self.sign.partition("=")
        self.folder = folder
        self.note = folder / "addresses.json"
        # not port 0: the kernel may give its ports to another test in between, and does so when this run has ended
        up = ["up", "--port", str(free_ports(OFFSETS)), "--addresses", str(self.note)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpushare", *up, *words],
            stdout=(folder / "out").open("w"),
            stderr=(folder / "err").open("w"),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder), name: value} | more,
            start_new_session=True,
        )

    def addresses(self) -> dict[str, str]:
        """Where everything listens."""
        assert until(self.note.exists)
        found: dict[str, str] = json.loads(self.note.read_text())
        return found

    def page(self) -> dict[str, dict[str, float]]:
        """The real exporter's page: {name: {pod: largest value}}; empty while it does not answer."""
        found: dict[str, dict[str, float]] = {}
        with contextlib.suppress(OSError, http.client.HTTPException):
            at = urlsplit(self.addresses()["exporter"])
            connection = http.client.HTTPConnection(at.netloc, timeout=PATIENCE_SECONDS)
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            for family in text_string_to_metric_families(answer.read().decode() if answer.status == OK else ""):
                for sample in family.samples:
                    of = found.setdefault(sample.name, {})
                    pod = sample.labels.get("pod", "")
                    of[pod] = max(sample.value, of.get(pod, sample.value))
            connection.close()
        return found

    def denied(self) -> float | None:
        """Allocations refused to the greedy one; None: not told."""
        return self.page().get("gpushare_isolation_denied_allocations_total", {}).get("greedy")

    def processes(self) -> dict[int, str]:
        """{pid: command line} of every process that came of this run, the run included."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and self.sign.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def pid(self, word: str) -> int:
        """The process whose command line has this word, and not one that it has forked: PIDs begin again at 32768."""
        found = [pid for pid, line in self.processes().items() if word in line and " run " not in line]
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in found}
        [first] = [pid for pid in found if parents[pid] not in found]
        return first

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its status, after this signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def nothing_left(self) -> None:
        """No process, no folder, no port."""
        until(lambda: not self.processes(), self.processes)
        assert [] == [path.name for path in self.folder.iterdir() if path.name.startswith("gpushare-up")]
        assert [] == [path for path in MEMORY.glob("gpushare-up-*") if path in self.cards]
        if self.note.exists():
            for url in filter(None, json.loads(self.note.read_text()).values()):
                with pytest.raises(OSError, match="refused"):
                    http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECONDS).connect()

    cards: tuple[Path, ...] = ()

    def remember(self) -> list[Path]:
        """Which folder in memory is this run's."""
        mine = [path for path in MEMORY.glob("gpushare-up-*") if (self.folder / f"{path.name}.d").exists()]
        self.cards = tuple(mine)
        return mine


@contextlib.contextmanager
def runs_in(folder: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs; none of them outlives the test, whatever happens."""
    runs: list[Run] = []

    def start(*words: str, **more: str) -> Run:
        runs.append(Run(folder, *words, **more))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.end()
