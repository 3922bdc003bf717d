# SPDX-License-Identifier: Apache-2.0
"""
The agent's own small web server: metrics, whether it lives, whether it is ready.

Serves three paths, answers from memory, keeps no secrets. What the answers are is told by whoever calls.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from isolation.kube.malformed_requests import request_error_logger
from isolation.node.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from isolation.node.settings import Settings

log = logging.getLogger(__name__)


class PortError(Exception):
    """The address cannot be served on; the message says what to change."""


@contextlib.asynccontextmanager
async def serving(
    settings: Settings, page: Callable[[], bytes], unwell: Callable[[], str], not_ready: Callable[[], str]
) -> AsyncIterator[None]:
    """Serve while the block lasts; PortError."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=page(), headers={"Content-Type": CONTENT_TYPE})

    def verdict(why: str) -> web.Response:
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def healthz(_request: web.Request) -> web.Response:
        return verdict(unwell())

    async def readyz(_request: web.Request) -> web.Response:
        return verdict(not_ready())

    app = web.Application(client_max_size=1 << 10)
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(
        app, access_log=None, logger=request_error_logger(log), handle_signals=False, shutdown_timeout=0.5
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except (OSError, UnicodeError) as exc:
            # A host that is no name of DNS is a UnicodeError.
            why = exc.strerror if isinstance(exc, OSError) else "not an address or host name"
            where = f"{settings.host[:80]}:{settings.port}"
            other = "choose another --listen"
            raise PortError(f"cannot listen on {where}: {why}: {other}") from None
        for address in runner.addresses:
            log.info("serving metrics at http://%s:%s/metrics", *address[:2])
        yield
    finally:
        await runner.cleanup()
