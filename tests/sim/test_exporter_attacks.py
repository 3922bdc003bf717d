"""
What one stranger on the network can do to the exporter's port: nothing that a scraper or a probe would notice.

Each attack runs against the command as a DaemonSet starts it, while somebody honest scrapes and probes: every answer
within two seconds, and the same process throughout.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time

import pytest
from exporter_served import Served
from simbox import boxes
from waiting import PATIENCE_SECONDS, until

pytest.importorskip("pynvml")
ANSWERED_SECONDS = 2.0
ATTACK_SECONDS = 6.0
"""Longer than any deadline of the server for a request."""


@pytest.fixture(scope="module")
def served():
    """An exporter of one card."""
    with boxes("t4") as box, Served(box) as made:
        assert until(lambda: made.get()[0] == 200)
        yield made


@contextlib.contextmanager
def attacked(served, attack):
    """While a thread does so over and over; `attack` gets the address and returns what it wants kept open."""
    over, kept = threading.Event(), []

    def go():
        while not over.is_set():
            with contextlib.suppress(OSError):
                kept.extend(attack(address(served)) or ())
            over.wait(0.01)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        for sock in kept:
            sock.close()
        thread.join(PATIENCE_SECONDS)


def address(served):
    """Host and port."""
    host, port = served.url.split("/")[2].rsplit(":", 1)
    return host, int(port)


def connect(at):
    """A client that gives up on a server that does not take what it sends."""
    return socket.create_connection(at, timeout=1.0)


def crlf_flood(at):
    """Empty lines before a request, which are passed over, without end."""
    with connect(at) as sock:
        for _ in range(75):
            sock.sendall(b"\r\n" * 32768)


def pipelining(at):
    """One connection asks a thousand times at once, and reads what comes."""
    with connect(at) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
        for _ in range(1000):
            if not sock.recv(1 << 16):
                return


def pipelining_unread(at):
    """Sixteen that read nothing of it."""
    found = [connect(at) for _ in range(16)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
    time.sleep(0.5)
    return found


def slow_clients(at):
    """Three hundred that send a byte now and then."""
    found = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            found.append(connect(at))
            found[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    for _ in range(20):
        for sock in found:
            with contextlib.suppress(OSError):
                sock.sendall(b"a")
        time.sleep(0.05)
    return found


def one_byte(at):
    """As many as there are places, each a byte, and again as soon as they are cut."""
    found = [connect(at) for _ in range(256)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"G")
    return found


def idle(at):
    """Whole requests, and then nothing: connections that are kept."""
    found = [connect(at) for _ in range(256)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    return found


def unread(at):
    """A page each, which nobody takes."""
    found = [connect(at) for _ in range(256)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
    return found


def huge_head(at):
    """A request line, and header fields, that do not end."""
    with connect(at) as sock:
        sock.sendall(b"GET /" + b"a" * (4 << 20))
    with connect(at) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (1 << 20))


def bodies(at):
    """What is not asked for, promised large and sent slowly."""
    found = [connect(at) for _ in range(40)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n" + b"a" * 100_000)
    return found


ATTACKS = (
    crlf_flood, pipelining, pipelining_unread, slow_clients, one_byte, idle, unread, huge_head, bodies
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_scrapes_and_probes_are_answered_meanwhile(served, attack):
    """Within two seconds each, from the attacker's own address too; nothing restarts, nothing is left behind."""
    slowest = 0.0
    with attacked(served, attack):
        end = time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < end:
            for path in ("/metrics", "/healthz"):
                begun = time.monotonic()
                assert 200 == honest(served, path), path
                slowest = max(slowest, time.monotonic() - begun)
            time.sleep(0.1)

    assert slowest <= ANSWERED_SECONDS
    assert served.process.poll() is None


def honest(served, path):
    """A new connection; one that was cut before it was answered asks again, as every scraper does for a lost one."""
    client = http.client.HTTPConnection(*address(served), timeout=PATIENCE_SECONDS)
    try:
        client.request("GET", path)
        answer = client.getresponse()
        answer.read()
        return answer.status
    finally:
        client.close()


def test_prometheus_own_connection_is_kept(served):
    """Half-read requests make room for each other, and the one idle connection of somebody else stays."""
    client = http.client.HTTPConnection(*address(served), timeout=PATIENCE_SECONDS)
    client.request("GET", "/metrics")
    client.getresponse().read()
    local = client.sock.getsockname()
    with attacked(served, one_byte):
        for _ in range(10):
            time.sleep(0.2)
            client.request("GET", "/metrics")
            answer = client.getresponse()
            answer.read()
            assert 200 == answer.status
            assert local == client.sock.getsockname()
    client.close()
