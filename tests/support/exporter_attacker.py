# SPDX-License-Identifier: Apache-2.0
"""
Attacks on an exporter's port, in a process of their own: `python exporter_attacker.py NAME HOST PORT`.

Each is done over and over until the process is killed; what it returns stays open until the next round but one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def connect(at: tuple[str, int]) -> socket.socket:
    """A client that gives up on a server that does not take what it sends."""
    return socket.create_connection(at, timeout=1.0)


def crlf_flood(at: tuple[str, int]) -> None:
    """Empty lines before a request, which are passed over, without end."""
    with connect(at) as sock:
        for _ in range(75):
            sock.sendall(b"\r\n" * 32768)


def pipelining(at: tuple[str, int]) -> None:
    """One connection asks a thousand times at once, and reads what comes."""
    with connect(at) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
        for _ in range(1000):
            if not sock.recv(1 << 16):
                return


def pipelining_unread(at: tuple[str, int]) -> list[socket.socket]:
    """Sixteen that read nothing of it."""
    found = [connect(at) for _ in range(16)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
    time.sleep(0.5)
    return found


def slow_clients(at: tuple[str, int]) -> list[socket.socket]:
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


def one_byte(at: tuple[str, int]) -> list[socket.socket]:
    """As many as there are places, each a byte, and again when they are cut."""
    found = [connect(at) for _ in range(256)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"G")
    return found


def idle(at: tuple[str, int]) -> list[socket.socket]:
    """Whole requests, and then nothing: connections that are kept."""
    found = [connect(at) for _ in range(256)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    return found


def unread(at: tuple[str, int]) -> list[socket.socket]:
    """A page each, which nobody takes."""
    found = [connect(at) for _ in range(256)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
    return found


def huge_head(at: tuple[str, int]) -> None:
    """A request line, and header fields, that do not end."""
    with connect(at) as sock:
        sock.sendall(b"GET /" + b"a" * (4 << 20))
    with connect(at) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (1 << 20))


def bodies(at: tuple[str, int]) -> list[socket.socket]:
    """What is not asked for, promised large and sent slowly."""
    found = [connect(at) for _ in range(40)]
    for sock in found:
        with contextlib.suppress(OSError):
            sock.sendall(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n" + b"a" * 100_000)
    return found


ATTACKS: dict[str, Callable[[tuple[str, int]], list[socket.socket] | None]] = {
    attack.__name__: attack
    for attack in (
        crlf_flood,
        pipelining,
        pipelining_unread,
        slow_clients,
        one_byte,
        idle,
        unread,
        huge_head,
        bodies,
    )
}


def main(name: str, host: str, port: str) -> None:
    """Until somebody kills it."""
    os.nice(5)  # the attacker is another machine: it takes no time from the server
    kept: list[socket.socket] = []
    while True:
        made: list[socket.socket] = []
        with contextlib.suppress(OSError):
            made = ATTACKS[name]((host, int(port))) or []
        for sock in kept:
            sock.close()
        kept = made
        time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
