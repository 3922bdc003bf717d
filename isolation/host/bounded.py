"""
Connections of one listening socket, bounded: how many there are, and how long one may take to send a request.

Decides who goes when places run out: the request that has been incomplete for longest, then the connection that has
been idle for longest; never one that is being answered. While there is neither, new connections wait in the kernel's
queue. TLS handshakes count from the first byte. Knows nothing of HTTP: the server above tells it when a request is
complete and when it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

log = logging.getLogger(__name__)
SLOW_SECONDS: Final = 0.5
"""An incomplete request younger than this is never dropped for a newer one: API servers send theirs in one go."""
_SWEEP_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.1
"""Before the next accept, when the process has no more file descriptors."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the connections of one socket may use."""

    connections: int
    request_seconds: float
    """From the first byte of a request, or of the TLS handshake, to the last byte of its body."""


class Connection(asyncio.Protocol):
    """One connection: passes everything on to the protocol of the server above, and keeps the time."""

    def __init__(self, inner: asyncio.Protocol, closed: Callable[[Connection], None]) -> None:
        self.inner, self._closed = inner, closed
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.since = time.monotonic()
        self.incomplete = True
        """Whether a request, or the handshake, is on its way; since `since`."""
        self.answering = False
        self._more = False

    def complete(self) -> None:
        """The request is here as a whole; from now on the time is ours."""
        self.incomplete, self.answering, self._more = False, True, False

    def answered(self) -> None:
        """Idle, unless bytes of the next request are here already."""
        self.incomplete, self.answering, self.since = self._more, False, time.monotonic()

    def drop(self) -> None:
        """End it at once, without an answer."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()
        self._closed(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """After the handshake, where there is one."""
        self.transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """The first bytes of a request start its time."""
        if self.answering:
            self._more = True
        elif not self.incomplete:
            self.incomplete, self.since = True, time.monotonic()
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The caller sends no more."""
        return self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its place is free."""
        self._closed(self)
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller does not read."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self.inner.resume_writing()


class Bounded:
    """Accepts for one server; `run` until cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        server: Callable[[], asyncio.Protocol],
        limits: Limits,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`context` is asked at every connection, so that a new certificate needs no new listener."""
        listener.setblocking(False)
        self._listener, self._server, self._limits, self._context = listener, server, limits, context
        self._open: dict[asyncio.Protocol, Connection] = {}
        self._freed = asyncio.Event()
        self.dropped: Counter[str] = Counter()
        """Connections that were ended before they were answered, by reason: `timeout`, `evicted`."""

    def __len__(self) -> int:
        return len(self._open)

    def of(self, inner: object) -> Connection | None:
        """The connection of a protocol of the server's; None: it is gone."""
        return self._open.get(inner)  # type: ignore[call-overload, no-any-return]

    async def run(self) -> None:
        """Accept, and drop what is too slow."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            group.create_task(self._accept(group))

    def close(self) -> None:
        """Drop what is not being answered."""
        for connection in list(self._open.values()):
            if not connection.answering:
                connection.drop()

    async def _accept(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            while len(self._open) >= self._limits.connections and not self._evict():
                self._freed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SWEEP_SECONDS):
                        await self._freed.wait()
            connection = Connection(self._server(), self._close)
            self._open[connection.inner] = connection
            connection.opening = group.create_task(self._establish(sock, connection))

    async def _establish(self, sock: socket.socket, connection: Connection) -> None:
        """The handshake; a connection that fails in it was never one."""
        context = self._context() if self._context is not None else None
        timeout = self._limits.request_seconds if context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=context, ssl_handshake_timeout=timeout
            )
        except OSError:  # TimeoutError and ssl.SSLError are
            pass
        except Exception:
            log.exception("cannot open an accepted connection")
        finally:
            if connection.transport is None:
                self._close(connection)
                sock.close()

    def _close(self, connection: Connection) -> None:
        if self._open.pop(connection.inner, None) is not None:
            self._freed.set()

    def _evict(self) -> bool:
        """Free a place; whether there was one to free."""
        slow = time.monotonic() - SLOW_SECONDS
        for victims in (
            [one for one in self._open.values() if one.incomplete and one.since < slow],
            [one for one in self._open.values() if not one.incomplete and not one.answering],
        ):
            if victims:
                self.dropped["evicted"] += 1
                min(victims, key=lambda one: one.since).drop()
                return True
        return False

    async def _sweep(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            # While this process did something else it could not read: that time is not the callers'.
            late, last = max(0.0, now - last - 2 * _SWEEP_SECONDS), now
            for connection in list(self._open.values()):
                if not connection.incomplete:
                    continue
                connection.since += late
                if now - connection.since > self._limits.request_seconds:
                    self.dropped["timeout"] += 1
                    connection.drop()
