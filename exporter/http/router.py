# SPDX-License-Identifier: Apache-2.0
"""
What stands at which path: metrics, liveness, readiness, recent breaches.

Knows paths and status codes; nothing of connections, and nothing of what is exposed. What may take its time (a page
that is not made yet, a document) is done in a thread, so that nobody else waits for it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

from aiohttp import web

from exporter.http import negotiate
from exporter.http.pages import Form, Silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.http.pages import MetricsPage, Pages

T = TypeVar("T")

_METHODS: Final = ("GET", "HEAD")
_VARY: Final = ("Vary", "Accept, Accept-Encoding")
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_MAKERS: Final = 4
"""Threads for what is not made yet: one for each form of the page."""
OPEN: Final = frozenset({"/healthz", "/readyz"})
"""Paths that say nothing but yes or no: whoever keeps the process alive needs no password for them."""


def plain(status: HTTPStatus, reason: str, *fields: tuple[str, str]) -> web.Response:
    """An answer of one line."""
    return respond(f"{reason}\n".encode(), _TEXT, *fields, status=status)


def respond(
    body: bytes, content_type: str, *fields: tuple[str, str], status: HTTPStatus = HTTPStatus.OK
) -> web.Response:
    """An answer of bytes that are sent as they are."""
    return web.Response(body=body, status=status, headers={"Content-Type": content_type, **dict(fields)})


@dataclass(frozen=True)
class MetricsRouter:
    """Every path there is."""

    pages: Pages
    ready: Callable[[], str] | None = None
    """Why this process should not be asked now; empty: it should. None: as soon as there is a page."""
    documents: Mapping[str, Callable[[], bytes]] | None = None
    """JSON documents by path."""
    _makers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_MAKERS, "page"), init=False)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        if request.body_exists:
            return plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request bodies are not supported")
        if request.method not in _METHODS:
            return plain(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported", ("Allow", ", ".join(_METHODS))
            )
        try:
            return await self._at(request)
        except Silent as exc:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(exc))

    async def _at(self, request: web.BaseRequest) -> web.Response:
        document = (self.documents or {}).get(request.path)
        if document is not None:
            return respond(await self._aside(document), _JSON)
        match request.path:
            case "/metrics":
                return await self._metrics(request)
            case "/healthz":
                return plain(HTTPStatus.OK, "ok")
            case "/readyz":
                return await self._readyz()
            case "/":
                return plain(HTTPStatus.OK, self._index())
            case _:
                return plain(HTTPStatus.NOT_FOUND, self._index())

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._makers, work)

    def _index(self) -> str:
        paths = ["/metrics", "/healthz", "/readyz", *(self.documents or {})]
        return f"gpushare: see {', '.join(paths[:-1])} and {paths[-1]}"

    async def _readyz(self) -> web.Response:
        reason = self.ready() if self.ready is not None else (await self._page(Form())) and ""
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, reason) if reason else plain(HTTPStatus.OK, "ok")

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        packed = negotiate.gzip(",".join(request.headers.getall("Accept-Encoding", [])) or None)
        if packed is None:
            return plain(HTTPStatus.NOT_ACCEPTABLE, "supported content encodings: gzip and identity", _VARY)
        wanted = Form(negotiate.openmetrics(",".join(request.headers.getall("Accept", []))), packed)
        page = await self._page(wanted)
        encoding = (("Content-Encoding", page.encoding),) if page.encoding else ()
        return respond(page.body, page.content_type, *encoding, _VARY)

    async def _page(self, wanted: Form) -> MetricsPage:
        made = self.pages.made(wanted)
        return made if made is not None else await self._aside(lambda: self.pages.page(wanted))
