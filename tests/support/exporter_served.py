# SPDX-License-Identifier: Apache-2.0
"""
The exporter's command in the background, as a person or a DaemonSet starts it, and what its page says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

from prometheus_client.parser import text_string_to_metric_families
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from isolation.simgpu.hardware import Box

ROOT = Path(__file__).resolve().parents[2]
Samples = dict[str, list[tuple[dict[str, str], float]]]


def words(box: Box, *more: str) -> list[str]:
    """A whole command line on a plain machine with these cards."""
    return [sys.executable, "-m", "exporter", "--simgpu", str(box.path), "--node", "n", "--no-kubernetes", *more]


class Served:
    """An exporter in the background."""

    def __init__(self, box: Box, *more: str) -> None:
        self.process = subprocess.Popen(
            words(box, "--listen", "127.0.0.1:0", "--interval", "200ms", "--log-format", "json", *more),
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stderr
        self._errors = self.process.stderr
        self.said: list[str] = []
        while not self.said or "serving metrics of" not in self.said[-1]:
            line = self._errors.readline()
            if not line:
                raise AssertionError(self.said)
            self.said.append(json.loads(line)["message"])
        self.url = self.said[-1].split()[-1]
        # a pipe that nobody reads would hold it up once it is full
        self.drained = threading.Thread(target=self._errors.read, daemon=True)
        self.drained.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(timeout=300)
        self.drained.join()
        self._errors.close()

    def get(self, path: str = "/metrics") -> tuple[int, bytes]:
        """Status and body."""
        try:
            with urllib.request.urlopen(self.url.replace("/metrics", path), timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (our own)
                return int(answer.status), bytes(answer.read())
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read()

    def samples(self) -> Samples:
        """{name: [(labels, value)]}."""
        return samples(self.get()[1].decode())


def samples(text: str) -> Samples:
    """{name: [(labels, value)]} of a page."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found
