# SPDX-License-Identifier: Apache-2.0
"""
The line of runs that wait: who counts, in which order, and who holds up nobody.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isolation.run import wait_queue

WAITS = """
import pathlib, sys, time
from isolation.run import wait_queue
wait_queue.enqueue(pathlib.Path(sys.argv[1]))
print("taken", flush=True)
time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine is no run that has stopped."""
    monkeypatch.setattr(wait_queue, "FRESH_SECONDS", 3600.0)


@pytest.fixture
def another(tmp_path):
    """Another run that takes a place in the line and waits."""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", WAITS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert "taken\n" == process.stdout.readline()
        yield process
        process.kill()


def test_the_order_is_that_of_asking(tmp_path):
    """
    Each sees those that came before and still wait; who leaves makes room for the next.
    """
    first, second, third = (wait_queue.enqueue(tmp_path) for _ in range(3))
    before = [one.ahead() for one in (first, second, third)]
    second.drop()
    after = [first.ahead(), third.ahead()]
    first.drop()
    last = third.ahead()
    third.drop()

    assert ([0, 1, 2], [0, 1], 0) == (before, after, last)
    assert [] == list(tmp_path.iterdir())


def test_a_killed_one_holds_up_nobody(tmp_path, another):
    """
    Its lock falls with it, and what it left is swept away by the next who asks.
    """
    mine = wait_queue.enqueue(tmp_path)
    waiting = mine.ahead()
    another.kill()
    another.wait()
    gone = mine.ahead()
    wait_queue.enqueue(tmp_path).drop()

    assert (1, 0) == (waiting, gone)
    assert [mine.path] == list(tmp_path.iterdir())
    mine.drop()


def test_a_stopped_one_holds_up_nobody_for_long(tmp_path, another):
    """
    It keeps its lock and does not touch its ticket: after some seconds its turn passes, until it goes on.
    """
    mine = wait_queue.enqueue(tmp_path)
    another.send_signal(signal.SIGSTOP)
    (its,) = set(tmp_path.iterdir()) - {mine.path}
    os.utime(its, (0, time.time() - wait_queue.FRESH_SECONDS - 1))
    stopped = mine.ahead()
    os.utime(its)

    assert (0, 1) == (stopped, mine.ahead())
    mine.drop()


def test_what_is_no_ticket_counts_for_nothing(tmp_path):
    """
    Folders, pipes, links and other names in the store's folder neither count nor hinder.
    """
    mine_first = wait_queue.enqueue(tmp_path)
    os.mkfifo(tmp_path / ".wait-000000000000-pipe")
    (tmp_path / ".wait-000000000000-link").symlink_to("/dev/zero")
    (tmp_path / ".wait-000000000000-folder").mkdir()
    (tmp_path / ".wait-x").touch()
    mine = wait_queue.enqueue(tmp_path)

    assert (0, 1) == (mine_first.ahead(), mine.ahead())
    for one in (mine_first, mine):
        one.drop()
