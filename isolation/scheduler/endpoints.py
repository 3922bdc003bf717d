# SPDX-License-Identifier: Apache-2.0
"""
The HTTP endpoints of the scheduler process: extender verbs, classic inspect, metrics and probes.

Decides which path calls what, and how many connections and bytes each listener accepts. Admission has a process of its
own (`admission.supervise`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import web

from isolation.host.bounded_connections import ConnectionLimits
from isolation.scheduler import http_server as bounded
from isolation.scheduler.core import extender_api, inspection
from isolation.scheduler.extender import VERBS
from isolation.scheduler.http_server import open_listener, read_body
from isolation.scheduler.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    from isolation.host.reloading_tls import ReloadingTls
    from isolation.kube.options import Address
    from isolation.scheduler.extender import Extender
    from isolation.scheduler.metrics import Metrics

log = logging.getLogger(__name__)
EXTENDER_LIMITS: Final = ConnectionLimits(connections=256, request_seconds=10.0)
METRICS_LIMITS: Final = ConnectionLimits(connections=64, request_seconds=5.0)
_MEASURED: Final = {"shortlist": "filter"}
"""Verbs that the metrics count as another one."""


class Endpoints:
    """
    The aiohttp applications of this process.

    `inspect` gives the classic answer for one node or all; `health` what is wrong by probe (`healthz`, `readyz`,
    `leader`): a probe that is not in it is well.
    """

    def __init__(
        self,
        extender: Extender,
        metrics: Metrics,
        *,
        inspect: Callable[[str | None], bytes],
        health: Callable[[], dict[str, str]],
        release: str,
    ) -> None:
        self._extender, self._metrics = extender, metrics
        self._inspect, self._health, self._release = inspect, health, release

    def extender_app(self) -> web.Application:
        """For the loopback port and for the TLS port, whose handshake requires a client certificate."""
        app = web.Application(client_max_size=extender_api.MAX_BYTES)
        self._add_verbs(app)
        self._add_probes(app)
        return app

    def metrics_app(self) -> web.Application:
        """For the metrics port."""
        app = web.Application(client_max_size=1)
        app.router.add_get("/metrics", self._answer_metrics)
        self._add_probes(app)
        return app

    def _add_verbs(self, app: web.Application) -> None:
        for verb in VERBS:
            app.router.add_post(f"{extender_api.EXTENDER}/{verb}", self._verb(verb))
            if verb in ("filter", "bind"):
                app.router.add_post(f"{inspection.PREFIX}/{verb}", self._verb(verb))
        app.router.add_get(f"{inspection.PREFIX}/inspect", self._answer_inspect)
        app.router.add_get(f"{inspection.PREFIX}/inspect/{{node}}", self._answer_inspect)
        app.router.add_get(f"{inspection.PREFIX}/version", self._answer_version)
        app.router.add_get("/version", self._answer_version)

    def _add_probes(self, app: web.Application) -> None:
        for probe in ("healthz", "readyz", "leader"):
            app.router.add_get(f"/{probe}", self._probe(probe))

    def _verb(self, verb: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = await read_body(request, extender_api.MAX_BYTES)
            began = time.perf_counter()
            reply = await self._extender.answer(verb, body)
            self._metrics.count_request(_MEASURED.get(verb, verb), reply.outcome, time.perf_counter() - began)
            kind = "application/json" if reply.status == HTTPStatus.OK else "text/plain"
            return web.Response(body=reply.body, status=reply.status, content_type=kind)

        return answer

    async def _answer_inspect(self, request: web.Request) -> web.Response:
        return web.Response(body=self._inspect(request.match_info.get("node")), content_type="application/json")

    async def _answer_version(self, _request: web.Request) -> web.Response:
        return web.Response(body=inspection.encode_version(self._release), content_type="application/json")

    async def _answer_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    def _probe(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            problem = self._health().get(name, "")
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            return web.Response(text=f"{problem or 'ok'}\n", status=status)

        return answer


@contextlib.asynccontextmanager
async def serve(
    app: web.Application,
    address: Address,
    limits: ConnectionLimits,
    certificates: ReloadingTls[ssl.SSLContext] | None = None,
    keep: bounded.Keep = bounded.run_beside,
) -> AsyncIterator[int]:
    """Serve while the block lasts; the port."""
    sock = open_listener(address)
    port: int = sock.getsockname()[1]
    context = (lambda: certificates.current) if certificates is not None else None
    async with bounded.serve(app, sock, limits, log, context, keep=keep):
        yield port
