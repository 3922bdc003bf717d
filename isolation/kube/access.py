# SPDX-License-Identifier: Apache-2.0
"""
The way to the API server: credentials, TLS, deadlines, bounded answers.

Decides nothing about what is said. Credentials (a pod's service account, else a kubeconfig) are
read again when the server no longer takes them. Every request ends: by an answer, by an error or
by its deadline. The official client at most reads credentials; requests go around it: its models
for thousands of objects, and two turns of a thread for each write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import msgspec
from multidict import CIMultiDict

from isolation.kube.core.errors import (
    ClusterError,
    CredentialsError,
    MalformedError,
    UnauthorizedError,
    UnreachableError,
    refusal,
)
from isolation.kube.core.wire import MAX_EVENT_BYTES, MAX_PAGE_BYTES
from isolation.kube.credentials import read_credentials
from isolation.kube.network_errors import certificate_error, network_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from isolation.kube.core.errors import RefusedError
    from isolation.kube.credentials import Credentials

log = logging.getLogger(__name__)
_OK_BELOW: Final = 300
_RELOAD_SECONDS: Final = 5.0
"""At most this often are credentials read again."""
_CONNECT_SECONDS: Final = 10.0
_NEVER: Final = float("-inf")
_PLUGIN_SECONDS: Final = 30.0
"""An exec plugin may talk to a cloud."""
_LONGEST_ANSWER: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds until an answer must be whole."""

    page: float = 60.0
    write: float = 5.0


@dataclass(slots=True)
class _Line:
    """One set of credentials and the connections that use them."""

    identity: Credentials
    session: aiohttp.ClientSession

    async def close(self) -> None:
        await self.session.close()


class Access:
    """The API server, as one identity. Close it at the end."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        context: str | None = None,
        deadlines: Deadlines | None = None,
        impersonated: tuple[str, ...] = (),
    ) -> None:
        """`impersonated`: a user and its groups, as kubectl's --as and --as-group; empty: nobody."""
        self._kubeconfig, self._context = kubeconfig, context
        self._impersonated = [
            ("Impersonate-Group" if at else "Impersonate-User", name) for at, name in enumerate(impersonated)
        ]
        self._deadlines = deadlines or Deadlines()
        self._line: _Line | None = None
        self._retired: _Line | None = None
        self._read_at = _NEVER
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._current()
        return self

    async def __aexit__(self, *_: object) -> None:
        for line in (self._line, self._retired):
            if line is not None:
                await line.close()
        self._line = self._retired = None

    # Lists and watches.

    async def page(self, path: str, query: Mapping[str, str]) -> bytes:
        """A whole answer of at most `MAX_PAGE_BYTES`."""
        try:
            async with asyncio.timeout(self._deadlines.page), self._get(path, query) as answer:
                return await _bounded(answer, MAX_PAGE_BYTES)
        except TimeoutError:
            raise UnreachableError(f"list timed out after {self._deadlines.page:.0f} s") from None

    async def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """
        An empty line once the server has agreed, then lines as they come.

        UnreachableError after so long a silence, MalformedError beyond `MAX_EVENT_BYTES`.
        """
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(idle_seconds):
                    answer = await stack.enter_async_context(self._get(path, query))
                yield b""
                rest = bytearray()
                while True:
                    async with asyncio.timeout(idle_seconds):
                        chunk = await answer.content.readany()
                    if not chunk:
                        return
                    for line in _split(rest, chunk):
                        yield line
        except TimeoutError:
            raise UnreachableError(f"watch received nothing for {idle_seconds:.0f} s") from None

    @contextlib.asynccontextmanager
    async def _get(self, path: str, query: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._asked("GET", path, params=query) as (line, answer):
            if answer.status >= _OK_BELOW:
                raise self._refusal(line, answer, await _bounded(answer, _LONGEST_ANSWER))
            yield answer

    # Everything else.

    async def send(
        self, method: str, path: str, body: object = None, kind: str = "json", seconds: float | None = None
    ) -> bytes:
        """
        One request: its answer, RefusedError, or UnreachableError (outcome unknown).

        A write carries its deadline: the server drops it once the caller has given up, instead of doing it later.
        """
        seconds = self._deadlines.write if seconds is None else min(seconds, self._deadlines.write)
        if seconds <= 0:
            raise UnreachableError("no time left for the request")
        query = {} if method == "GET" else {"timeout": f"{max(1, int(seconds * 1000))}ms"}
        headers = {"Content-Type": "application/json" if kind == "json" else f"application/{kind}+json"}
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(seconds),
                self._asked(method, path, params=query, data=data, headers=headers, timeout=_patience(seconds)) as (
                    line,
                    answer,
                ),
            ):
                text = await _bounded(answer, _LONGEST_ANSWER)
        except TimeoutError:
            raise UnreachableError(f"request timed out after {seconds:.1f} s") from None
        if answer.status >= _OK_BELOW:
            raise self._refusal(line, answer, text)
        return text

    @contextlib.asynccontextmanager
    async def _asked(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> AsyncIterator[tuple[_Line, aiohttp.ClientResponse]]:
        """One request as who we are; errors of the network are translated."""
        line = await self._current()
        with self._translated(line):
            name = line.identity.server_name
            extra: dict[str, Any] = {"server_hostname": name} if name else {}
            whole = CIMultiDict({**await line.identity.headers(), **(headers or {})})
            whole.extend(self._impersonated)
            url = line.identity.host + path
            async with line.session.request(
                method, url, headers=whole, allow_redirects=False, **extra, **more
            ) as answer:
                yield line, answer

    # Credentials.

    def _refusal(self, line: _Line, answer: aiohttp.ClientResponse, body: bytes) -> RefusedError:
        error = refusal(answer.status, body, answer.headers.get("Retry-After"))
        if isinstance(error, UnauthorizedError):
            self._distrust(line)
        return error

    def _distrust(self, line: _Line) -> None:
        """The next request reads the credentials again, if these are not brand-new."""
        if line is self._line and time.monotonic() - self._read_at > _RELOAD_SECONDS:
            self._read_at = _NEVER

    @contextlib.contextmanager
    def _translated(self, line: _Line) -> Iterator[None]:
        """Errors of the network as ours; an authority that does not fit may have been replaced."""
        try:
            yield
        except ClusterError:
            raise
        except (aiohttp.ClientSSLError, ssl.SSLError) as exc:
            self._distrust(line)
            raise UnreachableError(network_error(exc)) from exc
        except (aiohttp.ClientError, ConnectionError, socket.gaierror) as exc:
            raise UnreachableError(network_error(exc)) from exc
        except RuntimeError as exc:
            if not line.session.closed:
                raise
            raise UnreachableError("credentials were replaced during the request") from exc

    async def _current(self) -> _Line:
        async with self._lock:
            if self._line is None or self._read_at == _NEVER:
                await self._renew()
            if self._line is None:
                raise CredentialsError("no credentials")
            return self._line

    async def _renew(self) -> None:
        """Read the credentials; the old connections may finish what they are at."""
        self._read_at = time.monotonic()
        try:
            async with asyncio.timeout(_PLUGIN_SECONDS):
                identity = await read_credentials(self._kubeconfig, self._context)
            secure = True if identity.host.startswith("http://") else identity.tls()
        except (CredentialsError, OSError, ValueError) as exc:
            if self._line is None:
                raise _unusable(exc) from exc
            log.warning("cannot reload credentials, keeping the previous ones: %s", exc)
            return
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_connect=_CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=secure, socket_factory=_keepalive)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout, proxy=identity.proxy)
        if self._retired is not None:
            await self._retired.close()
        self._retired, self._line = self._line, _Line(identity, session)


def _unusable(exc: CredentialsError | OSError | ValueError) -> CredentialsError:
    """What is wrong with the credentials, and what to do."""
    if isinstance(exc, CredentialsError):
        return exc
    if isinstance(exc, TimeoutError):
        return CredentialsError(
            f"reading credentials timed out after {_PLUGIN_SECONDS:.0f} s: check the exec plugin in the kubeconfig"
        )
    why = certificate_error(exc)
    return CredentialsError(f"cannot use the certificates in the kubeconfig ({why}): generate the kubeconfig again")


def _patience(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, _CONNECT_SECONDS))


def _keepalive(address: Any) -> socket.socket:
    """A socket whose kernel notices within 30 s that the other machine is gone."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


async def _bounded(answer: aiohttp.ClientResponse, most: int) -> bytes:
    parts, size = [], 0
    async for chunk in answer.content.iter_any():
        size += len(chunk)
        if size > most:
            raise MalformedError(f"response is larger than {most} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _split(rest: bytearray, chunk: bytes) -> list[bytes]:
    """The lines that are whole now; the last piece stays in `rest`."""
    *whole, last = chunk.split(b"\n")
    lines = []
    for piece in whole:
        lines.append(bytes(rest) + piece)
        rest.clear()
    rest += last
    if len(rest) > MAX_EVENT_BYTES:
        raise MalformedError(f"watch event is larger than {MAX_EVENT_BYTES} bytes")
    return [line for line in lines if line.strip()]
