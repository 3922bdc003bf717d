"""
The doors: TLS for the API server and foreign schedulers, plain loopback for the kube-scheduler beside us, metrics.

Decides who may ask what: over TLS the extender wants a client certificate, admission wants none (the API
server has none); on the loopback address there is no admission. Bodies are bounded, slow ones are ended,
and every question gets an answer. What the answer is, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import web

from isolation.cluster.garbage import bounded
from isolation.scheduler import legacy, wire
from isolation.scheduler.admission.question import MOST_BYTES as MOST_REVIEW_BYTES
from isolation.scheduler.extender import VERBS
from isolation.scheduler.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    from isolation.cluster.listen import Address
    from isolation.scheduler.extender import Extender
    from isolation.scheduler.metrics import Metrics

log = logging.getLogger(__name__)
BODY_SECONDS: Final = 10.0
"""For a whole body to arrive."""
EXTENDER: Final = "/extender"
ADMIT: Final = "/admit"
_MEASURED: Final = {"shortlist": "filter"}
"""Verbs that are another one, to a reader of metrics."""
_HANDSHAKE_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 75.0
_BACKLOG: Final = 512


@dataclass(frozen=True, slots=True)
class Answers:
    """Who answers what."""

    extender: Extender
    admit: Callable[[bytes], bytes]
    inspect: Callable[[str | None], bytes]
    health: Callable[[], dict[str, str]]
    """What is wrong, by probe (`readyz`, `leader`); a probe that is not in it is well."""
    release: str


class Doors:
    """Applications over one set of answers and one of metrics."""

    def __init__(self, answers: Answers, metrics: Metrics) -> None:
        self._answers, self._metrics = answers, metrics

    def secure(self, *, trusts_clients: bool) -> web.Application:
        """For the TLS port."""
        app = web.Application(
            client_max_size=MOST_REVIEW_BYTES, middlewares=[_certified(trusts_clients=trusts_clients)]
        )
        self._add_verbs(app)
        app.router.add_post(f"{ADMIT}/{{name}}", self._admission)
        self._add_probes(app)
        return app

    def sidecar(self) -> web.Application:
        """For the loopback port."""
        app = web.Application(client_max_size=wire.MOST_BYTES)
        self._add_verbs(app)
        self._add_probes(app)
        return app

    def measured(self) -> web.Application:
        """For the metrics port."""
        app = web.Application(client_max_size=1)
        app.router.add_get("/metrics", self._page)
        self._add_probes(app)
        return app

    def _add_verbs(self, app: web.Application) -> None:
        for verb in VERBS:
            app.router.add_post(f"{EXTENDER}/{verb}", self._verb(verb))
            if verb in ("filter", "bind"):
                app.router.add_post(f"{legacy.PREFIX}/{verb}", self._verb(verb))
        app.router.add_get(f"{legacy.PREFIX}/inspect", self._inspected)
        app.router.add_get(f"{legacy.PREFIX}/inspect/{{node}}", self._inspected)
        app.router.add_get(f"{legacy.PREFIX}/version", self._version)
        app.router.add_get("/version", self._version)

    def _add_probes(self, app: web.Application) -> None:
        for probe in ("healthz", "readyz", "leader"):
            app.router.add_get(f"/{probe}", self._probe(probe))

    def _verb(self, verb: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = await _whole(request, wire.MOST_BYTES)
            began = time.perf_counter()
            reply = await self._answers.extender.answer(verb, body)
            self._metrics.answered(_MEASURED.get(verb, verb), reply.outcome, time.perf_counter() - began)
            kind = "application/json" if reply.status == HTTPStatus.OK else "text/plain"
            return web.Response(body=reply.body, status=reply.status, content_type=kind)

        return answer

    async def _admission(self, request: web.Request) -> web.Response:
        body = await _whole(request, MOST_REVIEW_BYTES)
        began = time.perf_counter()
        answer = self._answers.admit(body)
        self._metrics.answered("admission", "done", time.perf_counter() - began)
        return web.Response(body=answer, content_type="application/json")

    async def _inspected(self, request: web.Request) -> web.Response:
        return web.Response(body=self._answers.inspect(request.match_info.get("node")), content_type="application/json")

    async def _version(self, _request: web.Request) -> web.Response:
        return web.Response(body=legacy.version(self._answers.release), content_type="application/json")

    async def _page(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    def _probe(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            wrong = self._answers.health().get(name, "")
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            return web.Response(text=f"{wrong or 'ok'}\n", status=status)

        return answer


@contextlib.asynccontextmanager
async def serving(app: web.Application, address: Address, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve while the block lasts; the port. What is being answered at the end is answered."""
    runner = web.AppRunner(
        app, access_log=None, logger=bounded(log), keepalive_timeout=_IDLE_SECONDS, shutdown_timeout=BODY_SECONDS
    )
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("aiohttp runner has no server after setup")
        timeout = _HANDSHAKE_SECONDS if context is not None else None
        server = await asyncio.get_running_loop().create_server(
            runner.server, address.host, address.port, ssl=context, backlog=_BACKLOG, ssl_handshake_timeout=timeout
        )
        try:
            port: int = server.sockets[0].getsockname()[1]
            yield port
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _whole(request: web.Request, most: int) -> bytes:
    """The body; too large is 413, too slow is 408, undecodable is 400."""
    size = request.content_length or 0
    if size <= most:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="request body timed out") from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest(text="cannot decode request body") from None
        if len(body) <= most:
            return body
        size = len(body)
    raise web.HTTPRequestEntityTooLarge(most, size)


def _certified(*, trusts_clients: bool) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Over TLS only admission and probes are for everybody."""

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path.startswith((f"{EXTENDER}/", f"{legacy.PREFIX}/")):
            if not trusts_clients:
                raise web.HTTPForbidden(text="client certificates are not configured: set --client-ca\n")
            transport = request.transport
            if transport is None or not transport.get_extra_info("peercert"):
                raise web.HTTPForbidden(text="present a client certificate that is signed by the CA of --client-ca\n")
        return await handler(request)

    return guard
