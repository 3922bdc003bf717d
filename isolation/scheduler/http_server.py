# SPDX-License-Identifier: Apache-2.0
"""
An aiohttp application on one listening socket, with bounded connections.

Decides when a request is complete (its body has been read by `read_body`, or it has none that anybody reads) and tells
the connection; what is asked and answered is the application's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web

from isolation.host.bounded_connections import Bounded, Connection, ConnectionLimits
from isolation.kube.malformed_requests import request_error_logger

if TYPE_CHECKING:
    import logging
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import Any

    from isolation.kube.options import Address

    Work = Callable[[], Coroutine[Any, Any, None]]
    Keep = Callable[[Work], contextlib.AbstractAsyncContextManager[None]]

_IDLE_SECONDS: Final = 120.0
"""Longer than Go's HTTP client keeps an idle connection (90 s), so that we do not close one that it is about to use."""
_LINGER_SECONDS: Final = 1.0
"""For the rest of a request that is refused before it was read, so that its sender reads the answer."""
_SHUTDOWN_SECONDS: Final = 10.0
_BACKLOG: Final = 512
_CONNECTION: Final = web.RequestKey("connection", Connection)


def open_listener(address: Address) -> socket.socket:
    """A socket that listens there; OSError where it cannot."""
    family, _, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(where[:2], family=family, backlog=_BACKLOG)


@contextlib.asynccontextmanager
async def run_beside(work: Work) -> AsyncIterator[None]:
    """Do the work while the block lasts; where it breaks, so does the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        try:
            yield
        finally:
            task.cancel()


@contextlib.asynccontextmanager
async def serve(
    app: web.Application,
    sock: socket.socket,
    limits: ConnectionLimits,
    log: logging.Logger,
    context: Callable[[], ssl.SSLContext] | None = None,
    *,
    keep: Keep = run_beside,
) -> AsyncIterator[Bounded]:
    """
    Serve while the block lasts; the socket is closed with it. What is being answered at the end is answered.

    `keep` runs what accepts connections while its block lasts, and decides what happens where that breaks.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=request_error_logger(log),
        keepalive_timeout=_IDLE_SECONDS,
        lingering_time=_LINGER_SECONDS,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        auto_decompress=False,  # no caller of ours compresses, and a small body may become a large one
    )

    def protocol() -> asyncio.Protocol:
        return cast("web.Server", runner.server)()

    made = Bounded(sock, protocol, limits, context)
    app.middlewares.insert(0, _timed(made))
    await runner.setup()
    try:
        async with keep(made.run):
            yield made
    finally:
        sock.close()
        made.close()
        await runner.cleanup()


def _timed(connections: Bounded) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Tells the connection when its request is complete and answered."""

    @web.middleware
    async def timed(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = connections.of(request.protocol)
        if connection is None:
            raise web.HTTPRequestTimeout  # dropped in this moment: nobody reads the answer
        request[_CONNECTION] = connection
        if not request.can_read_body:
            connection.complete()
        try:
            return await handler(request)
        finally:
            connection.answered()

    return timed


def connection_of(request: web.Request) -> Connection:
    """The connection that a request of a served application came by."""
    return request[_CONNECTION]


async def read_body(request: web.Request, most: int, grown: Callable[[int], None] = lambda _: None) -> bytes:
    """
    The whole body, after which the connection is being answered.

    Too large is 413, encoded is 415, undecodable is 400. `grown` is called with the size after every piece.
    """
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="send the request body without Content-Encoding\n")
    size = request.content_length or 0
    pieces: list[bytes] = []
    held = 0
    try:
        while size <= most:
            piece = await request.content.readany()
            if not piece:
                connection_of(request).complete()
                return b"".join(pieces)
            pieces.append(piece)
            held += len(piece)
            size = max(size, held)
            grown(held)
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(text="cannot decode request body\n") from None
    finally:
        pieces.clear()  # an exception keeps this frame until the next garbage collection
    raise web.HTTPRequestEntityTooLarge(most, size)
