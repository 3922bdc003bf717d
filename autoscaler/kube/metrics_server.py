# SPDX-License-Identifier: Apache-2.0
"""
The metrics port: `/metrics`, `/healthz`, `/readyz`, and nothing else.

Decides what a probe answers; the metrics and the state are the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import web

from autoscaler.kube.telemetry.metrics import CONTENT_TYPE
from isolation.kube.malformed_requests import request_error_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from isolation.kube.options import Address

log = logging.getLogger(__name__)
_IDLE_SECONDS: Final = 75.0
_ENDING_SECONDS: Final = 2.0
_BACKLOG: Final = 128


def measured_app(page: Callable[[], bytes], unwell: Callable[[], str], unready: Callable[[], str]) -> web.Application:
    """What is served; `unwell` and `unready` say why liveness and readiness are denied, empty: they are not."""
    app = web.Application(client_max_size=1)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=page(), headers={"Content-Type": CONTENT_TYPE})

    def probe(wrong: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            why = wrong()
            status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
            return web.Response(text=f"{why or 'ok'}\n", status=status)

        return answer

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", probe(unwell))
    app.router.add_get("/readyz", probe(unready))
    return app


@contextlib.asynccontextmanager
async def serving(app: web.Application, address: Address) -> AsyncIterator[int]:
    """Serve while the block lasts; the port."""
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=request_error_logger(log),
        keepalive_timeout=_IDLE_SECONDS,
        shutdown_timeout=_ENDING_SECONDS,
    )
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the runner has no server after its set-up")
        server = await asyncio.get_running_loop().create_server(
            runner.server, address.host, address.port, backlog=_BACKLOG
        )
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()
