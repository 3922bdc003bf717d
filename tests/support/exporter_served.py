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

from prometheus_client.parser import text_string_to_metric_families
from support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


def words(box, *more):
    """A whole command line on a plain machine with these cards."""
    return [sys.executable, "-m", "exporter", "--simgpu", str(box.path), "--node", "n", "--no-kubernetes", *more]


class Served:
    """An exporter in the background."""

    def __init__(self, box, *more):
        self.process = subprocess.Popen(
            words(box, "--listen", "127.0.0.1:0", "--interval", "200ms", "--log-format", "json", *more),
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.said = []
        while not self.said or "serving metrics of" not in self.said[-1]:
            line = self.process.stderr.readline()
            if not line:
                raise AssertionError(self.said)
            self.said.append(json.loads(line)["message"])
        self.url = self.said[-1].split()[-1]
        # a pipe that nobody reads would hold it up once it is full
        self.drained = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.drained.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.drained.join()
        self.process.stderr.close()

    def get(self, path="/metrics"):
        """Status and body."""
        try:
            with urllib.request.urlopen(self.url.replace("/metrics", path), timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (our own)
                return answer.status, answer.read()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read()

    def samples(self):
        """{name: [(labels, value)]}."""
        return samples(self.get()[1].decode())


def samples(text):
    """{name: [(labels, value)]} of a page."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found
