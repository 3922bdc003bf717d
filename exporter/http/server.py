# SPDX-License-Identifier: Apache-2.0
"""
The HTTP edge: aiohttp in a thread of its own, behind bounded connections.

Knows nothing of paths (`exporter.http.router`) and of who may come (`exporter.http.authenticator`).
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from threading import Thread
from typing import TYPE_CHECKING, Final

from aiohttp import web

from exporter.http.listen import listen, url
from exporter.http.router import MetricsRouter, plain
from isolation.host.bounded_connections import Bounded, ConnectionLimits

if TYPE_CHECKING:
    import socket
    from types import TracebackType
    from typing import Self

    from exporter.http.authenticator import Authenticator
    from exporter.http.pages import Pages

_log: Final = logging.getLogger(__name__)

LIMITS: Final = ConnectionLimits(request_bytes=64 * 1024, bodies=False)
_ANSWER_SECONDS: Final = 10.0
"""For a client to take an answer."""
_STOP_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
_LINGER_SECONDS: Final = 1.0
"""Closing with bytes unread would take away the answer that is on its way."""


class MetricsServer:
    """
    Serves a router from a thread; a context manager that frees the port when it is left.

    Raises PortError. `listener`: a socket that `listen` made, where somebody else had to make it.
    """

    def __init__(
        self,
        router: MetricsRouter | Pages,
        port: int = 0,
        host: str = "127.0.0.1",
        authenticator: Authenticator | None = None,
        *,
        listener: socket.socket | None = None,
        limits: ConnectionLimits = LIMITS,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._router = router if isinstance(router, MetricsRouter) else MetricsRouter(router)
        self._authenticator, self._limits, self._answer_seconds = authenticator, limits, answer_seconds
        self._listener = listener or listen(host, port)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._connections: Bounded | None = None
        self._thread = Thread(target=self._run, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that was asked for, or the one that was free."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return url(self._listener, secure=self._authenticator is not None and self._authenticator.secure)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections) if self._connections is not None else 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_SECONDS)
        self._listener.close()

    def _run(self) -> None:
        """The thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # which cancels what is left at the end
            runner.run(self._serve())

    async def _serve(self) -> None:
        http = web.Server(
            self._handle,
            access_log=None,
            logger=_quiet(),
            keepalive_timeout=2 * self._limits.idle_seconds,  # the connections' own deadline comes first
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,  # no body is read here, and a small one can unpack to gigabytes
        )
        authenticator = self._authenticator
        if authenticator is None:
            self._connections = Bounded(self._listener, http, self._limits)
        else:
            self._connections = Bounded(self._listener, http, self._limits, authenticator.context, authenticator.admits)
        accepting = asyncio.create_task(self._accept(self._connections))
        await self._stopping.wait()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)  # it may let one more in until then
        self._connections.close()
        await http.shutdown(_STOP_SECONDS)

    async def _accept(self, connections: Bounded) -> None:
        while True:
            try:
                await connections.run()
            except Exception:  # noqa: BLE001 (whatever it was, the port is served again)
                _log.exception("cannot accept connections; trying again in %g s", _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._connections is not None  # noqa: S101 (for types: it is what calls us)
        with self._connections.answering(request.protocol):
            await asyncio.sleep(0)  # who sends many requests at once waits for the others after each
            answer = await self._answer(request)
            try:
                async with asyncio.timeout(self._answer_seconds):
                    await answer.prepare(request)
                    await answer.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            return answer

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        try:
            refusal = None if self._authenticator is None else await self._authenticator.check(request)
            answer = refusal or await self._router.answer(request)
        except Exception:  # noqa: BLE001 (the client gets an answer, the log the cause)
            _log.exception("cannot answer %s", request.path[:100])
            answer = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "cannot answer: see the log")
        for name, value in () if self._authenticator is None else self._authenticator.fields():
            answer.headers[name] = value
        answer.headers["Server"] = "gpushare"  # and not whose release
        if request.body_exists:  # unread: its bytes would be taken for the next request
            answer.force_close()
        return answer


def _quiet() -> logging.Logger:
    """For aiohttp: malformed requests from the network are not logged, and our handler reports its own errors."""
    logger = logging.getLogger(f"{__name__}.aiohttp")
    logger.setLevel(logging.CRITICAL)
    return logger
