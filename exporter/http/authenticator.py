# SPDX-License-Identifier: Apache-2.0
"""
Who may come: TLS, certificates of clients, passwords, a rate, by the web configuration that is in force.

What the file may say is `exporter.http.webconfig`'s, reading it again `exporter.http.webfile`'s, and passwords are
checked by `exporter.http.passwords`.
"""

from __future__ import annotations

import base64
import binascii
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from exporter.http.passwords import LONGEST, PasswordChecker, refusal
from exporter.http.router import OPEN, plain
from exporter.http.tls import server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from aiohttp import web

    from exporter.http.webconfig import WebConfig


class Authenticator:
    """
    Judges requests. For the server's event loop alone.

    `changed` is asked whenever somebody comes: a configuration that replaces the last one, or None. Its certificates
    are contents, not names of files (`exporter.http.webfile`).
    """

    def __init__(
        self,
        config: WebConfig,
        changed: Callable[[], WebConfig | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._changed, self._clock = config, changed, clock
        self._context = server_context(config.tls) if config.tls is not None else None
        self._passwords = PasswordChecker()
        self._tokens = float(config.burst)
        self._filled = clock()

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken; that much cannot change while we run."""
        return self._context is not None

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Header fields of every answer."""
        return self._config.headers

    def context(self) -> ssl.SSLContext | None:
        """TLS as it is spoken with the next client; None: plain text."""
        self._look()
        return self._context

    def admits(self, certificate: object) -> bool:
        """Whether a client with this certificate (`getpeercert`) may send requests."""
        tls = self._config.tls
        return tls is None or not tls.allowed_sans or not _names(certificate).isdisjoint(tls.allowed_sans)

    async def check(self, request: web.BaseRequest) -> web.Response | None:
        """A refusal, or None to let them in: the rate first, then the password."""
        self._look()
        config = self._config
        if config.interval and not self._token(config):
            return plain(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", ("Retry-After", "1"))
        if not config.users or request.path in OPEN:
            return None
        fields = request.headers.getall("Authorization", [])
        given = _credentials(fields[0]) if len(fields) == 1 else None
        if given is None:
            return refusal()
        name, secret = given
        wanted = dict(config.users).get(name)
        return await self._passwords.check(request.remote or "", name, secret, wanted.encode() if wanted else None)

    def _token(self, config: WebConfig) -> bool:
        now = self._clock()
        self._tokens = min(float(max(1, config.burst)), self._tokens + (now - self._filled) / config.interval)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _look(self) -> None:
        config = self._changed()
        if config is not None:
            self._context = server_context(config.tls) if config.tls is not None else None
            self._config = config


def _names(certificate: object) -> set[str]:
    """Subject alternative names, as `getpeercert` gives them."""
    if not isinstance(certificate, dict):
        return set()
    return {str(value) for _, value in certificate.get("subjectAltName", ())}


def _credentials(field: str) -> tuple[str, bytes] | None:
    """Name and password of an Authorization field; None where there is nothing that we could check."""
    scheme, _, text = field.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, secret = base64.b64decode(text.strip(), validate=True).partition(b":")
        named = name.decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return (named, secret) if colon and len(secret) <= LONGEST and b"\0" not in secret else None
