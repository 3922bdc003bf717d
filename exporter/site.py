"""
What stands at which path: metrics, liveness, readiness, recent breaches.

Knows paths and status codes; nothing of sockets, and nothing of what is exposed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from exporter import negotiate
from exporter.exposition import Form, Page, Silent
from exporter.message import JSON, Answer, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.message import Request

_log: Final = logging.getLogger(__name__)

_METHODS: Final = ("GET", "HEAD")
_VARY: Final = ("Vary", "Accept, Accept-Encoding")
OPEN: Final = frozenset({"/healthz", "/readyz"})
"""Paths that say nothing but yes or no: whoever keeps the process alive needs no password for them."""


class Pages(Protocol):
    """Where a scrape's page comes from."""

    def page(self, form: Form = ...) -> Page:
        """The page; Silent, with the reason, while there is nothing to show."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """Every path there is."""

    pages: Pages
    ready: Callable[[], str] | None = None
    """Why this process should not be asked now; empty: it should. None: as soon as there is a page."""
    documents: Mapping[str, Callable[[], bytes]] | None = None
    """JSON documents by path."""

    def __call__(self, request: Request) -> Answer:
        """Answer one request; whatever goes wrong inside is an answer too."""
        if request.method not in _METHODS:
            return plain(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported", ("Allow", ", ".join(_METHODS))
            )
        try:
            return self._at(request.path, request.fields)
        except Exception:  # noqa: BLE001 (the client gets an answer, the log the cause)
            _log.exception("cannot render %s", request.path[:100])
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "cannot render the page: see the log")

    def _at(self, path: str, fields: Mapping[str, str]) -> Answer:
        document = (self.documents or {}).get(path)
        if document is not None:
            return Answer(HTTPStatus.OK, document(), JSON)
        match path:
            case "/metrics":
                return self._metrics(fields)
            case "/healthz":
                return plain(HTTPStatus.OK, "ok")
            case "/readyz":
                return self._readyz()
            case "/":
                return plain(HTTPStatus.OK, self._index())
            case _:
                return plain(HTTPStatus.NOT_FOUND, self._index())

    def _index(self) -> str:
        paths = ["/metrics", "/healthz", "/readyz", *(self.documents or {})]
        return f"gpushare: see {', '.join(paths[:-1])} and {paths[-1]}"

    def _readyz(self) -> Answer:
        try:
            reason = self.ready() if self.ready is not None else self.pages.page() and ""
        except Silent as exc:
            reason = str(exc)
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, reason) if reason else plain(HTTPStatus.OK, "ok")

    def _metrics(self, fields: Mapping[str, str]) -> Answer:
        packed = negotiate.gzip(fields.get("accept-encoding"))
        if packed is None:
            return plain(HTTPStatus.NOT_ACCEPTABLE, "supported content encodings: gzip and identity", _VARY)
        try:
            page = self.pages.page(Form(negotiate.openmetrics(fields.get("accept", "")), packed))
        except Silent as exc:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(exc))
        encoding = (("Content-Encoding", page.encoding),) if page.encoding else ()
        return Answer(HTTPStatus.OK, page.body, page.content_type, (*encoding, _VARY))
