# SPDX-License-Identifier: Apache-2.0
"""
The metrics APIs over HTTP: authenticate, authorize, reply.

Decides the order of the checks and the status of a reply; who may read, and the values, are decided elsewhere.
Probes are open to every client, everything else to users that the front proxy authenticated. Every such user may read
discovery, as on kube-apiserver itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from aiohttp import web

from autoscaler.apis.metrics.core.answer import build_reply
from autoscaler.apis.metrics.core.request import DiscoveryRequest, make_attributes, parse_request
from autoscaler.apis.metrics.core.responses import JsonReply, StatusReply
from autoscaler.apis.metrics.front_proxy import MAX_GROUPS, parse_user
from isolation.kube.core.errors import ClusterError
from isolation.kube.malformed_requests import request_error_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from autoscaler.apis.metrics.authorizer import Authorizer
    from autoscaler.apis.metrics.core.answer import Clocks
    from autoscaler.apis.metrics.core.readings import SnapshotSource
    from autoscaler.apis.metrics.front_proxy import User
    from autoscaler.apis.metrics.tls import MetricsTls

log = logging.getLogger(__name__)
_PROBES: Final = ("/healthz", "/livez", "/readyz")
_HANDSHAKE_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 10.0
"""For a first whole request."""
_IDLE_SECONDS: Final = 75.0
_ENDING_SECONDS: Final = 2.0
_HEADERS: Final = MAX_GROUPS + 256
"""Every group of a user is a header of its own."""
_UNAUTHENTICATED: Final = StatusReply(
    HTTPStatus.UNAUTHORIZED,
    "send the request through kube-apiserver: its front proxy certificate and X-Remote-User identify the user",
)


class MetricsApiServer:
    """Answers requests from one source of readings."""

    def __init__(
        self,
        tls: MetricsTls,
        authorizer: Authorizer,
        readings: SnapshotSource,
        groups: Collection[str],
        *,
        now: Callable[[], Clocks],
        unready: Callable[[], str],
        closed: Callable[[], str] = str,
    ) -> None:
        """`unready`: why readiness is denied; empty: ready. `closed`: the same for figures."""
        self._tls, self._authorizer, self._readings = tls, authorizer, readings
        self._groups, self._now, self._unready, self._closed = groups, now, unready, closed
        self.active: WeakSet[object] = WeakSet()
        """Connections that have asked something."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        transport = request.transport
        if transport is None:
            return _response(_UNAUTHENTICATED)  # gone already
        self.active.add(transport)
        if request.path in _PROBES:
            wrong = self._unready() if request.path == "/readyz" else ""
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            return web.Response(text=f"{wrong or 'ok'}\n", status=status)
        if self._tls.is_outdated(transport.get_extra_info("ssl_object")):
            transport.abort()  # the front proxy connects again, and is verified again
            return _response(_UNAUTHENTICATED)
        return _response(await self._reply_to(request))

    async def _reply_to(self, request: web.BaseRequest) -> JsonReply | StatusReply:
        user = self._user(request)
        if user is None:
            return _UNAUTHENTICATED
        if request.method != "GET":
            return StatusReply(HTTPStatus.METHOD_NOT_ALLOWED, f"method {request.method[:20]} is not allowed; use GET")
        asked = parse_request(request.raw_path, self._groups)
        if isinstance(asked, StatusReply):
            return asked
        if not isinstance(asked, DiscoveryRequest):
            wish = make_attributes(asked)
            try:
                refused = await self._authorizer.refusal(user, wish)
            except ClusterError as exc:
                log.warning("cannot check authorization: %s", exc)
                return StatusReply(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot check authorization now: {exc}")
            if refused is not None:
                resource = "/".join(filter(None, (wish.resource, wish.subresource)))
                where = f'in namespace "{wish.namespace}"' if wish.namespace else "at the cluster scope"
                text = f'user "{user.name}" cannot {wish.verb} {resource}.{wish.group} {where}'
                return StatusReply(HTTPStatus.FORBIDDEN, f"{text}: {refused}")
            if why := self._closed():
                return StatusReply(HTTPStatus.SERVICE_UNAVAILABLE, why)
        return build_reply(asked, self._readings.latest(), self._now())

    def _user(self, request: web.BaseRequest) -> User | None:
        trust, transport = self._tls.trust, request.transport
        if trust is None or transport is None or not trust.allows(transport.get_extra_info("peercert")):
            return None
        return parse_user(trust, request.headers.items())


@contextlib.asynccontextmanager
async def serve(server: MetricsApiServer, tls: MetricsTls, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the block lasts; the port. What is being answered at the end is answered."""
    web_server = web.Server(
        server.handle,
        access_log=None,
        logger=request_error_logger(log),
        keepalive_timeout=_IDLE_SECONDS,
        max_headers=_HEADERS,
        handler_cancellation=True,
    )
    loop = asyncio.get_running_loop()

    def connected() -> web.RequestHandler:
        made = web_server()
        loop.call_later(_SILENT_SECONDS, _end_silent, server.active, made)
        return made

    sockets = await loop.create_server(
        connected, host, port, ssl=tls.context, ssl_handshake_timeout=_HANDSHAKE_SECONDS, backlog=128
    )
    try:
        yield sockets.sockets[0].getsockname()[1]
    finally:
        sockets.close()
        await web_server.shutdown(_ENDING_SECONDS)


def _end_silent(active: WeakSet[object], connection: web.RequestHandler) -> None:
    """A connection that asks nothing costs a file, of which a process has few."""
    if connection.transport is not None and connection.transport not in active:
        connection.force_close()


def _response(said: JsonReply | StatusReply) -> web.Response:
    reply = said.reply() if isinstance(said, StatusReply) else said
    return web.Response(body=reply.body, status=reply.status, content_type="application/json")
