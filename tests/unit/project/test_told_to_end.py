# SPDX-License-Identifier: Apache-2.0
"""A signal ends a command wherever it comes: also amid the very wait that it is to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]
STEPS = 2000
"""More than any of these waits has lines and calls of Python code."""

AMID = """
import signal, sys

def amid(step, wait):
    '''Wait, and have a signal come at so many lines and calls of Python code from here; whether it came.'''
    left = step
    def trace(frame, event, _):
        nonlocal left
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)
        return trace
    sys.settrace(trace)
    try:
        wait()
    finally:
        sys.settrace(None)
    return left <= 0
"""

UP = """
from autoscaler.demo.up import StopSignal

for step in range(1, STEPS):
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        came = amid(step, lambda: [stop.wait(0.001) for _ in range(3)])
        assert came == stop.wait(0.0) == stop.wait(0.001), step
    assert signal.getsignal(signal.SIGTERM) is before
    came or sys.exit("ended" if step > 10 else "hardly a step was tried")
"""

EXPORTER = """
import os, threading
from exporter.cli import _until_told

class Cycle:
    def run(self, stop):
        stop.wait()

class Node:
    pages, cycle = None, Cycle()

class Front:
    def start(self, pages, ended):
        pass

def again(over):
    while not over.wait(0.05):
        os.kill(os.getpid(), signal.SIGTERM)

for step in range(1, STEPS):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    over = threading.Event()
    threading.Thread(target=again, args=(over,)).start()
    came = amid(step, lambda: _until_told(Node(), Front()))
    over.set()
    came or sys.exit("ended" if step > 10 else "hardly a step was tried")
"""


def run(code):
    """What a program says that tries every step."""
    return subprocess.run(
        [sys.executable, "-c", AMID + code.replace("STEPS", str(STEPS))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.processes
@pytest.mark.parametrize("code", [UP, EXPORTER], ids=["up", "exporter"])
def test_a_signal_at_every_step_of_a_wait_ends_it(code):
    """At each line in turn, of ours and of Python's own; the wait after the last step shows that all were tried."""
    done = run(code)

    assert (1, "ended\n") == (done.returncode, done.stderr)
