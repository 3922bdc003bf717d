# SPDX-License-Identifier: Apache-2.0
"""
One page of metrics on a port of this machine, for as long as the stack stands.

For Prometheus beside it and for whoever looks: loopback only, a deadline for every connection. What is on the
page is the caller's.
"""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Final

from autoscaler.demo.stack.addresses import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
"""The longest that an end has to wait for the server."""


class PageServer:
    """A context manager: serves `page()` as /metrics, and /healthz."""

    def __init__(self, port: int, page: Callable[[], bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE_SECONDS

            def do_GET(self) -> None:
                """Answer."""
                known = self.path in {"/metrics", "/healthz"}
                body = page() if self.path == "/metrics" else b"ok\n" if known else b"see /metrics\n"
                self.send_response(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing: the terminal belongs to the screen."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that leaves is no news."""

        self._server = Server((HOST, port), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
