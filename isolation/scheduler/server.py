# SPDX-License-Identifier: Apache-2.0
"""
The listeners of this process: the extender on loopback or over TLS, metrics and probes.

Decides how much may be asked. Bodies and connections are bounded, slow ones are ended, and every question gets an
answer. What the answer is, is decided elsewhere; admission has a process of its own (`admission.supervise`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import web

from isolation.host.bounded_connections import Limits
from isolation.scheduler import http as bounded
from isolation.scheduler.core import legacy_inspect, wire
from isolation.scheduler.extender import VERBS
from isolation.scheduler.http import body_of, listener
from isolation.scheduler.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from isolation.kube.options import Address
    from isolation.scheduler.extender import Extender
    from isolation.scheduler.metrics import Metrics
    from isolation.scheduler.tls import Certificates

log = logging.getLogger(__name__)
EXTENDER_LIMITS: Final = Limits(connections=256, request_seconds=10.0)
METRICS_LIMITS: Final = Limits(connections=64, request_seconds=5.0)
EXTENDER: Final = "/extender"
_MEASURED: Final = {"shortlist": "filter"}
"""Verbs that are another one, to a reader of metrics."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Who answers what."""

    extender: Extender
    inspect: Callable[[str | None], bytes]
    health: Callable[[], dict[str, str]]
    """What is wrong, by probe (`readyz`, `leader`); a probe that is not in it is well."""
    release: str


class Doors:
    """Applications over one set of answers and one of metrics."""

    def __init__(self, answers: Answers, metrics: Metrics) -> None:
        self._answers, self._metrics = answers, metrics

    def extender(self) -> web.Application:
        """For the loopback port and the TLS port, where the handshake wants a client certificate."""
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
                app.router.add_post(f"{legacy_inspect.PREFIX}/{verb}", self._verb(verb))
        app.router.add_get(f"{legacy_inspect.PREFIX}/inspect", self._inspected)
        app.router.add_get(f"{legacy_inspect.PREFIX}/inspect/{{node}}", self._inspected)
        app.router.add_get(f"{legacy_inspect.PREFIX}/version", self._version)
        app.router.add_get("/version", self._version)

    def _add_probes(self, app: web.Application) -> None:
        for probe in ("healthz", "readyz", "leader"):
            app.router.add_get(f"/{probe}", self._probe(probe))

    def _verb(self, verb: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = await body_of(request, wire.MOST_BYTES)
            began = time.perf_counter()
            reply = await self._answers.extender.answer(verb, body)
            self._metrics.answered(_MEASURED.get(verb, verb), reply.outcome, time.perf_counter() - began)
            kind = "application/json" if reply.status == HTTPStatus.OK else "text/plain"
            return web.Response(body=reply.body, status=reply.status, content_type=kind)

        return answer

    async def _inspected(self, request: web.Request) -> web.Response:
        return web.Response(body=self._answers.inspect(request.match_info.get("node")), content_type="application/json")

    async def _version(self, _request: web.Request) -> web.Response:
        return web.Response(body=legacy_inspect.version(self._answers.release), content_type="application/json")

    async def _page(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    def _probe(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            wrong = self._answers.health().get(name, "")
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            return web.Response(text=f"{wrong or 'ok'}\n", status=status)

        return answer


@contextlib.asynccontextmanager
async def serving(
    app: web.Application,
    address: Address,
    limits: Limits,
    certificates: Certificates | None = None,
    keep: bounded.Keep = bounded.alone,
) -> AsyncIterator[int]:
    """Serve while the block lasts; the port."""
    sock = listener(address)
    port: int = sock.getsockname()[1]
    context = (lambda: certificates.context) if certificates is not None else None
    async with bounded.serving(app, sock, limits, log, context, keep=keep):
        yield port
