# SPDX-License-Identifier: Apache-2.0
"""
Who makes room for a newcomer, and what else bounds the connections of a listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from isolation.host.bounded_connections import Bounded, ConnectionLimits

LIMITS = ConnectionLimits(connections=4, request_bytes=64, request_seconds=0.3, idle_seconds=0.3, stalled_seconds=1.0)


class Client:
    """A connection as its listener sees it."""

    def __init__(self, state, address, since, stalled):
        self.incomplete, self.answering = state in {READING, WHOLE}, state == ANSWERING
        self.whole = state == WHOLE
        self.address, self.since = address, since
        self.full_since = since if stalled else None
        self.dropped = False

    def drop(self):
        """It has to go."""
        self.dropped = True


READING, WHOLE, IDLE, ANSWERING = "reading", "whole", "idle", "answering"
LONG_AGO, NOW = -100.0, 0.0
ROWS = {
    "half-read before idle": ([(IDLE, "a", LONG_AGO), (READING, "b", LONG_AGO), (ANSWERING, "a", LONG_AGO)], 1),
    "the address with most": ([(READING, "b", -200.0), (READING, "a", LONG_AGO), (READING, "a", -99.0)], 1),
    "its idle ones count too": ([(READING, "b", -200.0), (READING, "a", LONG_AGO), (IDLE, "a", LONG_AGO)], 1),
    "the oldest of one address": ([(READING, "a", -1.0), (READING, "a", -3.0), (READING, "a", -2.0)], 1),
    "one that has just begun is spared": ([(READING, "a", NOW), (IDLE, "b", NOW), (IDLE, "b", -1.0)], 2),
    "unless most have just begun": ([(READING, "a", NOW), (READING, "a", NOW), (IDLE, "b", LONG_AGO)], 0),
    "or nobody is idle": ([(READING, "a", NOW), (ANSWERING, "b", NOW), (ANSWERING, "b", NOW)], 0),
    "idle ones of the address with most": ([(IDLE, "b", -9.0), (IDLE, "a", -1.0), (IDLE, "a", NOW)], 1),
    "not one that only waits for its turn": ([(WHOLE, "a", LONG_AGO), (READING, "a", -1.0), (WHOLE, "a", -2.0)], 1),
    "an answer that nobody takes": ([(ANSWERING, "a", -9.0), (ANSWERING, "b", -9.0, True), (ANSWERING, "a", -9.0)], 1),
    "an answer that may still be taken": ([(ANSWERING, "b", NOW, True), (ANSWERING, "a", LONG_AGO)], None),
    "never one that is being answered": ([(ANSWERING, "a", LONG_AGO)] * 4, None),
}


@pytest.mark.parametrize(("rows", "goes"), ROWS.values(), ids=ROWS)
def test_who_makes_room(rows, goes):
    """One goes, or nobody."""
    now = time.monotonic()
    clients = [Client(state, address, now + since, bool(more)) for state, address, since, *more in rows]
    with socket.socket() as listener:
        owner = Bounded(listener, asyncio.Protocol, ConnectionLimits(connections=len(clients)))
        owner._open = dict(enumerate(clients))
        made = owner._evict()

    assert [number for number, client in enumerate(clients) if client.dropped] == ([] if goes is None else [goes])
    assert made is (goes is not None)


class Echo(asyncio.Protocol):
    """Answers each line."""

    owner: Bounded

    def connection_made(self, transport):
        """Keep it."""
        self.transport = transport

    def data_received(self, data):
        """A request is a line."""
        if data.endswith(b"\n"):
            with self.owner.answering(self):
                self.transport.write(data)


@contextlib.asynccontextmanager
async def listening(limits=LIMITS):
    """Address and connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        owner = Echo.owner = Bounded(listener, Echo, limits)
        running = asyncio.create_task(owner.run())
        try:
            yield listener.getsockname(), owner
        finally:
            running.cancel()
            owner.close()


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
            found = await reader.readline() if first.endswith(b"\n") else b""
            return found, await until_closed(reader), len(owner)

    found, end, left = asyncio.run(story())
    assert found == (first if first.endswith(b"\n") else b"")
    assert end in {b"", b"reset"}
    assert 0 == left


def test_a_request_that_does_not_end():
    """Is cut by its size, whatever is still to come of its time."""

    async def story():
        async with listening(ConnectionLimits(request_bytes=64, request_seconds=3600.0)) as (address, owner):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(3):
                writer.write(b"x" * 60)
                await asyncio.sleep(0.05)
            return await until_closed(reader), len(owner), owner.dropped["bytes"]

    found, left, dropped = asyncio.run(story())
    assert found in {b"", b"reset"}
    assert (0, 1) == (left, dropped)


def test_each_request_is_counted_again():
    """A client may send for ever, as long as each request is small."""

    async def story():
        async with listening() as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(20):
                writer.write(b"x" * 50 + b"\n")
                assert 51 == len(await reader.readexactly(51))

    asyncio.run(story())


def test_a_newcomer_gets_a_place():
    """Silent clients hold every place; whoever comes and asks is answered at once."""

    async def story():
        async with listening(ConnectionLimits(connections=4, request_seconds=3600.0)) as (address, owner):
            silent = [await asyncio.open_connection(*address) for _ in range(8)]
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"hello\n")
            found = await reader.readline()
            for _, one in silent:
                one.close()
            return found, owner.dropped["evicted"]

    found, evicted = asyncio.run(story())
    assert b"hello\n" == found
    assert evicted >= 5
