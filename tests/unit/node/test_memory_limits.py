# SPDX-License-Identifier: Apache-2.0
"""Answers to the guard, and limits of running containers, with a driver that takes everything."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading

import pytest

from isolation.contract.model import Slice
from isolation.host.memory_limits import UNLIMITED, MemoryLimit
from isolation.node.memory_limits import LimitKeeper, LimitServer

GIB = 1 << 30
CARD, CONTAINER = "GPU-1", "c" * 64


class Driver:
    """Limits by group."""

    def __init__(self):
        self.hard = {}

    def set(self, _uuid, group, hard):
        """Takes it."""
        self.hard[group] = hard

    def get(self, _uuid, group):
        """What it took."""
        return MemoryLimit(self.hard.get(group, UNLIMITED), 0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Answers until the end of the test, and waits for questions for as long."""
    monkeypatch.setattr("isolation.node.memory_limits.ANSWER_SECONDS", 600.0)
    made, over = LimitServer(tmp_path / "socket", tmp_path, Driver()), threading.Event()
    made.open()

    def run():
        while not over.is_set():
            made.cycle()

    thread = threading.Thread(target=run)
    thread.start()
    yield made
    over.set()
    thread.join()
    made.close()


@contextlib.contextmanager
def connected(server):
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(60)
        made.connect(str(server.place))
        yield made


def ask(connection, *, group=f"/pods/{CONTAINER}"):
    connection.sendall(f"{CONTAINER}\t{group}\t{CARD}={GIB}\n".encode())
    return connection.recv(1024)


def test_whoever_is_connected_and_silent_holds_nobody_up(server, tmp_path):
    """Nor does whoever says half of a question."""
    with connected(server), connected(server) as slow, connected(server) as guard:
        slow.sendall(b"c")
        assert ask(guard) == b"ok\n"
        assert server._limits.hard == {tmp_path / "pods" / CONTAINER: GIB}
        assert not select.select([slow], [], [], 0)[0], "its own time is not over"


def test_a_question_that_comes_late_is_answered(server):
    with connected(server) as slow, connected(server) as guard:
        assert ask(guard) == b"ok\n"
        assert ask(slow, group="/pods/other") == b"group /pods/other is not the container's own\n"


def test_a_running_containers_limit_follows_its_promise_and_the_log_says_what_was_before(tmp_path, caplog):
    driver, group = Driver(), tmp_path / CONTAINER
    keeper = LimitKeeper(driver, lambda _uid, _container: group, lambda: True)
    with caplog.at_level(logging.INFO):
        for size in (2, 2, 3):
            keeper.keep("ml/a", "u-1", [CONTAINER], [Slice(CARD, 0, size * GIB)])
    assert driver.hard == {group: 3 * GIB}
    assert [one.getMessage() for one in caplog.records] == [
        f"memory limit of ml/a on {CARD}: {2 * GIB}, before: no limit",
        f"memory limit of ml/a on {CARD}: {3 * GIB}, before: {2 * GIB}",
    ]
