# SPDX-License-Identifier: Apache-2.0
"""
What strangers send to an HTTPS port of ours, from a process of its own, without end.

    python tests/support/strangers.py ATTACK PORT

Knows nothing of who answers: certificates are not checked, and whatever ends a connection begins the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.children import DIES_WITH_US

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

MIB = 1 << 20
HEAD = b"POST /admit/pods HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
REVIEW = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",'
    b'"namespace":"default","resource":{"group":"","version":"v1","resource":"pods"},"object":{"metadata":{"name":"p"},'
    b'"spec":{"containers":[{"name":"m"}]}}}}'
)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One connection over TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def half(port: int, size: int) -> None:
    """Most of a body, and then nothing."""
    async with connected(port) as (reader, writer):
        writer.write(HEAD % size + b" " * (size - size // 8))
        while await reader.read(MIB):
            pass


async def whole(port: int, body: bytes) -> None:
    """One body after another on one connection."""
    async with connected(port) as (reader, writer):
        while True:
            writer.write(HEAD % len(body) + body)
            await writer.drain()
            if not await reader.read(MIB):
                return


async def silent(port: int) -> None:
    """Not even a handshake; the beginning of one at most."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"\x16" if id(writer) % 32 else b"")
        await asyncio.sleep(3)
    finally:
        writer.transport.abort()


def bomb(inner: bytes, size: int) -> bytes:
    """Small on the wire, large in memory."""
    return b'{"a":[' + b",".join([inner] * ((size - 8) // (len(inner) + 1))) + b"]}"


ATTACKS: dict[str, tuple[int, Callable[[int], Awaitable[None]]]] = {
    "half-sent": (40, lambda port: half(port, 16 * MIB)),
    "half-sent-of-3MiB": (40, lambda port: half(port, 3 * MIB)),
    "lists-of-16MiB": (4, lambda port: whole(port, bomb(b"[]", 16 * MIB))),
    "lists-of-6MiB": (4, lambda port: whole(port, bomb(b"[]", 6 * MIB))),
    "lists-of-1.5MiB": (4, lambda port: whole(port, bomb(b"[]", 3 * MIB // 2))),
    "large": (4, lambda port: whole(port, b'{"a":"' + b"x" * (16 * MIB) + b'"}')),
    "small": (32, lambda port: whole(port, REVIEW)),
    "silent": (600, silent),
}
"""By name: how many at a time, and what each does."""


async def attack(name: str, port: int) -> None:
    """Until killed."""
    number, one = ATTACKS[name]

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await one(port)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(again() for _ in range(number)))


@contextlib.contextmanager
def attacking(name: str, port: int) -> Iterator[None]:
    """While the block lasts."""
    # Strangers have machines of their own: they take no core from those whom they attack.
    command = [*DIES_WITH_US, "nice", "-n", "10", sys.executable, __file__, name, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, f"{name} ended"
    finally:
        process.kill()
        process.wait(timeout=300)


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], int(sys.argv[2])))
