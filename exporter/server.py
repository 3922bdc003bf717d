"""
The HTTP edge: `/metrics` from the rendered snapshot, `/healthz` for as long as the process answers.

Knows paths, status codes and how to say that a port is taken; nothing of what is exposed.
"""

from __future__ import annotations

import errno
import logging
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from exporter.exposition import Page

_log: Final = logging.getLogger(__name__)

IDLE_SECONDS: Final = 10.0
"""A connection that sends nothing for so long is closed, so that nobody can hold threads for ever."""
_PLAIN: Final = "text/plain; charset=utf-8"
_INDEX: Final = b"gpushare: see /metrics and /healthz\n"


class PortError(OSError):
    """The address cannot be served on; the message says what to change."""


class Pages(Protocol):
    """Where a scrape's page comes from."""

    def page(self, accept: str = "") -> Page | None:
        """The page, or None while there is nothing to show yet."""
        ...


class MetricsServer:
    """Serves pages from a thread; a context manager that frees the port when it is left."""

    def __init__(self, pages: Pages, port: int, host: str = "127.0.0.1") -> None:
        handler = type("Handler", (_Handler,), {"pages": pages})
        try:
            self._server = _Server((host, port), handler)
        except OverflowError as exc:
            raise PortError(f"port {port} does not exist; use 0 (any free one) to 65535") from exc
        except OSError as exc:
            raise PortError(_advice(host, port, exc)) from exc
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges; choose one above 1023, or 0 for any free one"
    return f"cannot serve on {host}:{port}: {error.strerror}; choose another port, or 0 for any free one"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (socketserver's signature)
        """A scraper that hangs up is its own business; anything else is logged."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _log.exception("a request from %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    pages: Pages
    timeout = IDLE_SECONDS
    server_version = "gpushare"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one of the known paths."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._metrics()
            case "/healthz":
                self._answer(HTTPStatus.OK, _PLAIN, b"ok\n")
            case "/":
                self._answer(HTTPStatus.OK, _PLAIN, _INDEX)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, _PLAIN, _INDEX)

    do_HEAD = do_GET  # noqa: N815 (http.server's spelling)

    def _metrics(self) -> None:
        try:
            page = self.pages.page(self.headers.get("Accept", ""))
        except Exception:  # noqa: BLE001 (whatever it was, the scraper gets an answer and the log the cause)
            _log.exception("the page could not be rendered")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, b"the page could not be rendered; see the log\n")
            return
        if page is None:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, b"no reading yet\n")
        else:
            self._answer(HTTPStatus.OK, page.content_type, page.body)

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (http.server's name)
        """Say nothing: a scrape every few seconds is no news."""
