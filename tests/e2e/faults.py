# SPDX-License-Identifier: Apache-2.0
"""
An API server that has bad days: requests go through, are refused, are slow, or are carried out without an answer.

Speaks TLS with a certificate of the plane's authority and asks the real server as the administrator.
Keeps a list of what was asked, so that writes can be counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from e2e.plane import ControlPlane

_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade", "authorization"}
)


@dataclass
class BadDay:
    """What happens to requests; `fault` may name a status, "lost" (done, no answer) or "slow" (done, seconds late)."""

    port: int = 0
    kubeconfig: Path | None = None
    fault: Callable[[str, str], int | str | None] = lambda _method, _path: None
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path without query, status given."""

    def writes(self, part: str = "") -> list[tuple[str, str, int]]:
        """Everything that was not read, of paths with this in them."""
        return [one for one in self.asked if one[0] != "GET" and part in one[1]]


@contextlib.asynccontextmanager
async def bad_day(plane: ControlPlane) -> AsyncIterator[BadDay]:
    """A proxy for the length of the block."""
    day = BadDay()
    pair = plane.serving_pair("bad-day", ("127.0.0.1", "localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    connector = aiohttp.TCPConnector(ssl=plane.tls(), limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(plane.url, connector=connector, timeout=timeout, auto_decompress=False) as session:
        app = web.Application(client_max_size=1 << 26)

        async def serve(request: web.Request) -> web.StreamResponse:
            return await _pass(request, session, day)

        app.router.add_route("*", "/{path:.*}", serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        try:
            day.port = runner.addresses[0][1]
            day.kubeconfig = plane.kubeconfig_for("admin", port=day.port)
            yield day
        finally:
            await runner.cleanup()


async def _pass(request: web.Request, session: aiohttp.ClientSession, day: BadDay) -> web.StreamResponse:
    body = await request.read()
    fault = day.fault(request.method, request.path)
    if isinstance(fault, int):
        day.asked.append((request.method, request.path, fault))
        status = {"kind": "Status", "code": fault, "reason": "Made up", "message": "a bad day"}
        extra = {"Retry-After": "1"} if fault == 429 else {}
        return web.json_response(status, status=fault, headers=extra)
    headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
    async with session.request(request.method, request.rel_url, data=body, headers=headers) as answer:
        day.asked.append((request.method, request.path, answer.status))
        if fault == "lost":
            await answer.read()
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPBadGateway
        if fault == "slow":
            await asyncio.sleep(7)
        back = web.StreamResponse(status=answer.status)
        for key, value in answer.headers.items():
            if key.lower() not in _HOP:
                back.headers[key] = value
        await back.prepare(request)
        async for chunk in answer.content.iter_any():
            await back.write(chunk)
        return back
