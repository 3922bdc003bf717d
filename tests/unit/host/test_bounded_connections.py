# SPDX-License-Identifier: Apache-2.0
"""Bounded connections: who goes when places run out, who is dropped in time, and who never is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from types import SimpleNamespace

import pytest
from aiohttp import web
from e2e.certificates import Authority
from support.waiting import soon

from isolation.host import bounded_connections
from isolation.host.bounded_connections import ConnectionLimits
from isolation.kube.options import Address
from isolation.scheduler.admission.serve import PASSED_BYTES_PER_SECOND, ReviewQueue
from isolation.scheduler.http_server import open_listener, read_body, serve

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
LOG = logging.getLogger("test_bounded_connections")


@contextlib.asynccontextmanager
async def served(app, limits, context=None):
    """An application, under TLS if asked; how to open a connection and write to it, and those that the server has."""
    sock, opened = open_listener(Address("127.0.0.1", 0)), []

    async def connect(text=b""):
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(text)
        opened.append(writer)
        return SimpleNamespace(reader=reader, write=writer.write, start_tls=writer.start_tls)

    async with serve(app, sock, limits, LOG, context and (lambda: context)) as connections:
        try:
            yield SimpleNamespace(connect=connect, connections=connections)
        finally:
            for writer in opened:
                writer.transport.abort()


def echo(most=1 << 20, gate=None):
    """Answers a body with its size, once the gate is open."""

    async def answer(request):
        body = await read_body(request, most)
        if gate is not None:
            await gate.wait()
        return web.Response(text=str(len(body)))

    app = web.Application(client_max_size=most)
    app.router.add_post("/", answer)
    return app


async def ended(caller):
    """Whether the connection was ended without an answer."""
    with contextlib.suppress(ConnectionError):
        return b"" == await caller.reader.read(1)
    return True


async def status(caller):
    """Of the next answer."""
    line = await caller.reader.readline()
    return int(line.split()[1])


@pytest.mark.parametrize(
    "text", [b"", b"POST / HT", HEAD % 9, HEAD % 9 + b"12345678"], ids=["nothing", "head", "no body", "half a body"]
)
def test_a_request_that_is_not_whole_in_time_is_dropped(text):
    """
    Also the second one of a connection; an idle connection, and one that is being answered, has all the time.
    """

    async def story():
        gate = asyncio.Event()
        async with served(echo(gate=gate), ConnectionLimits(10, 0.3)) as made:
            waits, late = await made.connect(HEAD % 2 + b"ab"), await made.connect(text)
            await soon(lambda: len(made.connections) == 2)
            assert await ended(late)
            assert {"timeout": 1} == made.connections.dropped
            gate.set()
            assert 200 == await status(waits)
            await asyncio.sleep(0.5)
            assert 1 == len(made.connections)
            waits.write(HEAD % 2 + b"a")
            await soon(lambda: not len(made.connections))
            assert {"timeout": 2} == made.connections.dropped

    asyncio.run(story())


def test_a_handshake_has_the_time_of_a_request_and_none_of_our_pauses(tmp_path):
    """
    While this process stands still it reads no handshake; a caller that sends nothing is dropped as ever.
    """
    authority = Authority(tmp_path, "ca")
    pair = authority.issue("server", hosts=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    trusting = ssl.create_default_context(cafile=authority.certificate)

    async def story():
        async with served(echo(), ConnectionLimits(10, 1.0), context) as made:
            caller, silent = await made.connect(), await made.connect()
            await soon(lambda: len(made.connections) == 2)
            time.sleep(2.0)  # noqa: ASYNC251 (the pause that is meant)
            await caller.start_tls(trusting, server_hostname="127.0.0.1")
            caller.write(HEAD % 2 + b"ab")
            assert 200 == await status(caller)
            assert await ended(silent)
            assert {"timeout": 1} == made.connections.dropped

    asyncio.run(story())


def test_when_places_run_out_the_slowest_goes_then_an_idle_one_and_never_one_that_is_answered(monkeypatch):
    """
    While there is nobody to go, the newcomer waits.
    """
    monkeypatch.setattr(bounded_connections, "YOUNG_SECONDS", 0.0)

    async def story():
        gate = asyncio.Event()
        async with served(echo(gate=gate), ConnectionLimits(3, 1000.0)) as made:
            answered = await made.connect(HEAD % 2 + b"ab")
            await soon(lambda: [one.answering for one in made.connections._open.values()] == [True])
            halves = [await made.connect(HEAD % 2) for _ in range(2)]
            await soon(lambda: len(made.connections) == 3)
            third = await made.connect(HEAD % 2 + b"ab")
            assert await ended(halves[0])
            fourth = await made.connect(HEAD % 2 + b"ab")
            assert await ended(halves[1])
            await soon(lambda: all(one.answering for one in made.connections._open.values()))
            fifth = await made.connect(HEAD % 2 + b"ab")
            await asyncio.sleep(0.3)
            assert {"evicted": 2} == made.connections.dropped
            gate.set()
            assert [200] * 4 == [await status(one) for one in (answered, third, fourth, fifth)]
            assert 3 == made.connections.dropped["evicted"]  # one that was answered and idle

    asyncio.run(story())


def test_what_is_too_large_or_encoded_is_refused():
    """
    Announced or not; a body that is as large as may be is read.
    """

    async def story():
        chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        encoded = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab"
        async with served(echo(most=1000), ConnectionLimits(10, 1000.0)) as made:
            callers = [
                await made.connect(text)
                for text in (
                    HEAD % 1000 + b"x" * 1000,
                    HEAD % 1001,
                    chunked + b"400\r\n" + b"x" * 1024,
                    encoded,
                )
            ]
            return [await status(one) for one in callers]

    assert [200, 413, 413, 415] == asyncio.run(story())


def judged(sizes, pause=0.0):
    """The order in which reviews of these sizes are judged, sent with a pause between them."""
    found = []

    def judge(body, _name):
        found.append(len(body))
        return b"{}"

    async def story():
        reviews = ReviewQueue(judge)
        async with served(reviews.application(), ConnectionLimits(10, 1000.0)) as made:
            callers = []
            for size in sizes:
                callers.append(await made.connect((HEAD % size).replace(b" / ", b" /admit/x ") + b"x" * size))
                await soon(lambda: len([one for one in reviews._held if one.whole is not None]) == len(callers))
                await asyncio.sleep(pause)
            running = asyncio.create_task(reviews.run())
            assert [200] * len(sizes) == [await status(one) for one in callers]
            running.cancel()

    asyncio.run(story())
    return found


def test_small_reviews_pass_large_ones(monkeypatch):
    """
    Whoever sends large ones waits for those who send small ones.
    """
    # an hour, whenever they have arrived
    monkeypatch.setattr("isolation.scheduler.admission.serve.PASSED_BYTES_PER_SECOND", 1 << 10)
    sizes = (6 << 20, 10, 4 << 20, 20)
    assert [10, 20, 4 << 20, 6 << 20] == judged(sizes)


def test_a_review_is_not_passed_for_ever():
    """
    Small ones without end would keep all others waiting: one that has waited for its size is before what comes then.
    """
    size = PASSED_BYTES_PER_SECOND // 10
    assert [size, 10, 20] == judged((size, 10, 20), pause=0.15)


def test_where_all_bodies_are_too_large_the_largest_goes():
    """
    Whether it is complete or not; the others are answered.
    """

    async def story():
        reviews = ReviewQueue(lambda *_: b"{}", most_held=10_000)
        async with served(reviews.application(), ConnectionLimits(10, 1000.0)) as made:

            async def send(size, part):
                return await made.connect((HEAD % size).replace(b" / ", b" /admit/x ") + b"x" * part)

            small, whole, half = await send(100, 100), await send(6000, 6000), await send(90_000, 3000)
            await soon(lambda: sum(one.size for one in reviews._held) == 9100)
            last = await send(2000, 2000)
            assert await ended(whole)
            half.write(b"x" * 6000)
            assert await ended(half)
            assert {"bytes": 2} == reviews.dropped
            running = asyncio.create_task(reviews.run())
            assert [200, 200] == [await status(one) for one in (small, last)]
            running.cancel()

    asyncio.run(story())
