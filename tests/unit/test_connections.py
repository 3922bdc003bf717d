"""
Who makes room for a newcomer, and what else bounds a listener.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from isolation.host.connections import Bounds, Connections, Phase

BOUNDS = Bounds(connections=4, request_bytes=64, request_seconds=0.3, idle_seconds=0.3, stalled_seconds=1.0)


class Client:
    """A connection as its listener sees it."""

    def __init__(self, phase, address="a", since=0.0, *, stalled=False):
        self.phase, self.address, self.since, self.stalled = phase, address, since, stalled
        self.dropped = False

    def drop(self):
        """It has to go."""
        self.dropped = True


READING, SHAKING, IDLE, ANSWERING = Phase.READING, Phase.SHAKING, Phase.IDLE, Phase.ANSWERING
LONG_AGO, NOW = -100.0, 0.0
ROWS = {
    "half-read before idle": ([(IDLE, "a", LONG_AGO), (READING, "b", LONG_AGO), (ANSWERING, "a", LONG_AGO)], 1),
    "a handshake is half-read": ([(IDLE, "a", LONG_AGO), (SHAKING, "b", LONG_AGO), (IDLE, "a", LONG_AGO)], 1),
    "the address with most": ([(READING, "b", -200.0), (READING, "a", LONG_AGO), (READING, "a", -99.0)], 1),
    "its idle ones count too": ([(READING, "b", -200.0), (READING, "a", LONG_AGO), (IDLE, "a", LONG_AGO)], 1),
    "the oldest of one address": ([(READING, "a", -1.0), (READING, "a", -3.0), (READING, "a", -2.0)], 1),
    "one that has just begun is spared": ([(READING, "a", NOW), (IDLE, "b", NOW), (IDLE, "b", -1.0)], 2),
    "unless most have just begun": ([(READING, "a", NOW), (READING, "a", NOW), (IDLE, "b", LONG_AGO)], 0),
    "or nobody is idle": ([(READING, "a", NOW), (ANSWERING, "b", NOW), (ANSWERING, "b", NOW)], 0),
    "idle ones of the address with most": ([(IDLE, "b", -9.0), (IDLE, "a", -1.0), (IDLE, "a", NOW)], 1),
    "an answer that nobody takes": ([(ANSWERING, "a", NOW), (ANSWERING, "b", NOW, True), (ANSWERING, "a", NOW)], 1),
    "never one that is being answered": ([(ANSWERING, "a", LONG_AGO)] * 4, None),
}


@pytest.mark.parametrize(("rows", "goes"), ROWS.values(), ids=ROWS)
def test_who_makes_room(rows, goes):
    """One goes, or nobody."""

    async def story():
        now = asyncio.get_running_loop().time()
        clients = [Client(phase, address, now + since, stalled=bool(more)) for phase, address, since, *more in rows]
        owner = Connections(Bounds(connections=len(clients)), asyncio.Protocol)
        owner._open = dict.fromkeys(clients)
        return clients, owner.add(Client(READING))

    clients, taken = asyncio.run(story())
    assert [number for number, client in enumerate(clients) if client.dropped] == ([] if goes is None else [goes])
    assert taken is (goes is not None)


class Echo(asyncio.Protocol):
    """Answers each line."""

    def connection_made(self, transport):
        """Keep it."""
        self.transport = transport

    def data_received(self, data):
        """A request is a line."""
        if data.endswith(b"\n"):
            with self.owner.answering(self.transport):
                self.transport.write(data)


@contextlib.asynccontextmanager
async def listening(bounds=BOUNDS):
    """Address and connections."""
    owner = Connections(bounds, Echo)
    Echo.owner = owner
    server = await asyncio.get_running_loop().create_server(owner, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname(), owner
    finally:
        owner.close()
        server.close()


async def until_closed(reader):
    """What comes before the end."""
    try:
        return await reader.read()
    except ConnectionError:
        return b"reset"


@pytest.mark.parametrize("first", [b"", b"h", b"whole\n"], ids=["silent", "half", "idle"])
def test_each_phase_has_an_end(first):
    """Nothing said, half a request, or nothing after one."""

    async def story():
        async with listening() as (address, owner):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(first)
            found = await until_closed(reader)
            return found, len(owner)

    found, left = asyncio.run(story())
    assert found in {b"whole\n" if first.endswith(b"\n") else b"", b"reset"}
    assert 0 == left


def test_a_request_that_does_not_end():
    """Is cut by its size, whatever is still to come of its time, and told so where it listens."""

    async def story():
        bounds = Bounds(request_bytes=64, request_seconds=3600.0)
        async with listening(bounds) as (address, owner):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(3):
                writer.write(b"x" * 60)
                await asyncio.sleep(0.05)
            return await until_closed(reader), len(owner)

    found, left = asyncio.run(story())
    assert found.startswith(b"HTTP/1.1 431 ") or found == b"reset"
    assert 0 == left


def test_bytes_between_two_requests_are_counted_for_the_next():
    """A client may send for ever, as long as each request is small."""

    async def story():
        async with listening() as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(20):
                writer.write(b"x" * 50 + b"\n")
                assert 51 == len(await reader.readexactly(51))

    asyncio.run(story())
