# SPDX-License-Identifier: Apache-2.0
"""
Connections of one listening socket, bounded: how many there are, and how long each of their phases may take.

Decides who goes when places run out: a request that is incomplete, then an idle connection, in both cases of the
address that has most, then an answer that its client has stopped reading; never one that is being answered, and no one
is refused for an address, since a well-behaved client and an attacker may share one behind NAT. While no one can
go, new connections wait in the kernel's queue. A phase has one deadline for the whole of it, so that a byte now and
then gains nothing; TLS handshakes count from the first byte. Knows of HTTP only how a request without a body ends: the
server above tells it when one is complete and when it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)
YOUNG_SECONDS: Final = 0.25
"""An incomplete request younger than this is spared while they are few: well-behaved clients send theirs in one go."""
_HEAD_END: Final = b"\r\n\r\n"
_SWEEP_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.1
"""Before the next accept, when there are no more file descriptors, or the client has gone already."""
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What the connections of one socket may use; times in seconds."""

    connections: int = 256
    request_seconds: float = 5.0
    """From the first byte of a request, or of the TLS handshake, until it is complete."""
    request_bytes: int | None = None
    """Until a request is complete; None: the server above has its own limit."""
    bodies: bool = True
    """Requests have bodies; where they have none, one whose head has come is not incomplete any more."""
    idle_seconds: float = 120.0
    """Between two requests: longer than Prometheus' longest usual interval, and than Go's clients keep a connection."""
    stalled_seconds: float = 1.0
    """An answer of which nothing could be sent for so long may make room."""


class Connection(asyncio.Protocol):
    """One connection: passes everything on to the protocol of the server above, and keeps the time."""

    def __init__(self, inner: asyncio.Protocol, address: str, owner: Bounded) -> None:
        self.inner, self.address, self._owner = inner, address, owner
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.since = time.monotonic()
        self.incomplete = True
        """Whether a request, or the handshake, is on its way; since `since`."""
        self.answering = False
        self.whole = False
        """What came last looks like the end of a request, which the server above has not taken up yet."""
        self.full_since: float | None = None
        """Since when the client takes nothing of what is to be sent."""
        self._more = 0
        self._received = 0

    def complete(self) -> None:
        """The request is here as a whole; from now on the time is ours."""
        self.incomplete, self.answering, self._more = False, True, 0

    def answered(self) -> None:
        """Idle, unless bytes of the next request are here already."""
        self.incomplete, self.answering, self.since = self._more > 0, False, time.monotonic()
        self._received = self._more

    def drop(self) -> None:
        """End it at once, without an answer."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()
        self._owner.closed(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """After the handshake, where there is one."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)  # what is written is with the kernel
        self.inner.connection_made(transport)
        if not self._owner.admits(transport.get_extra_info("peercert")):
            self.drop()

    def data_received(self, data: bytes) -> None:
        """The first bytes of a request start its time."""
        most = self._owner.limits.request_bytes
        if self.answering:
            self._more += len(data)
        elif not self.incomplete:
            self.incomplete, self.since, self._received = True, time.monotonic(), len(data)
        elif most is not None and self._received > most:
            self._owner.dropped["bytes"] += 1
            self.drop()
            return
        else:
            self._received += len(data)
        self.whole = not self._owner.limits.bodies and data.endswith(_HEAD_END)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The caller sends no more."""
        return self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its place is free."""
        self._owner.closed(self)
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller does not read."""
        self.full_since = time.monotonic()
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self.full_since = None
        self.inner.resume_writing()


class Bounded:
    """Accepts for one server; `run` until cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        server: Callable[[], asyncio.Protocol],
        limits: ConnectionLimits,
        context: Callable[[], ssl.SSLContext | None] | None = None,
        admits: Callable[[object], bool] = lambda _certificate: True,
    ) -> None:
        """
        `context` is asked at every connection, so that a new certificate needs no new listener; None: plain text.

        `admits` is asked with the certificate of each client (`getpeercert`) after its handshake.
        """
        listener.setblocking(False)
        self._listener, self._server, self._context = listener, server, context
        self.limits, self.admits = limits, admits
        self._open: dict[asyncio.Protocol, Connection] = {}
        self._freed = asyncio.Event()
        self.dropped: Counter[str] = Counter()
        """Connections that were ended before they were answered, by reason: `timeout`, `evicted`, `bytes`."""

    def __len__(self) -> int:
        return len(self._open)

    def of(self, inner: object) -> Connection | None:
        """The connection of a protocol of the server's; None: it is gone."""
        return self._open.get(inner)  # type: ignore[call-overload, no-any-return]

    @contextlib.contextmanager
    def answering(self, inner: object) -> Iterator[None]:
        """While a complete request is answered."""
        connection = self.of(inner)
        if connection is not None:
            connection.complete()
        try:
            yield
        finally:
            if connection is not None:
                connection.answered()

    async def run(self) -> None:
        """Accept, and drop what is too slow. May be run again where it broke: what is open stays."""
        works = asyncio.create_task(self._sweep()), asyncio.create_task(self._accept())
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    def close(self) -> None:
        """Drop what is not being answered."""
        for connection in list(self._open.values()):
            if not connection.answering:
                connection.drop()

    def closed(self, connection: Connection) -> None:
        """Its place is free."""
        if self._open.pop(connection.inner, None) is not None:
            self._freed.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._listener)
            except OSError as exc:
                if exc.errno not in _PASSING:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            while len(self._open) >= self.limits.connections and not self._evict():
                self._freed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SWEEP_SECONDS):
                        await self._freed.wait()
            connection = Connection(self._server(), str(address[0]) if address else "", self)
            self._open[connection.inner] = connection
            connection.opening = asyncio.create_task(self._establish(sock, connection))
            await asyncio.sleep(0)  # while others wait, accepting them would never let what this one has sent be read

    async def _establish(self, sock: socket.socket, connection: Connection) -> None:
        """The handshake, which `_sweep` bounds; a connection that fails in it was never one."""
        context = self._context() if self._context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, ssl=context)
        except OSError:  # TimeoutError and ssl.SSLError are
            pass
        except Exception:
            log.exception("cannot open an accepted connection")
        finally:
            if connection.transport is None:
                self.closed(connection)
                sock.close()

    def _evict(self) -> bool:
        """Free a place; whether there was one to free."""
        now, everybody = time.monotonic(), self._open.values()
        begun = [one for one in everybody if one.incomplete and not one.whole]
        slow = begun if 2 * len(begun) > len(everybody) else [one for one in begun if now - one.since >= YOUNG_SECONDS]
        idle = [one for one in everybody if not one.incomplete and not one.answering]
        stalled = [one for one in everybody if one.full_since is not None]
        stalled = [one for one in stalled if now - (one.full_since or now) >= self.limits.stalled_seconds]
        victims = slow or idle or begun or stalled
        if victims:
            crowd = Counter(one.address for one in everybody)
            self.dropped["evicted"] += 1
            max(victims, key=lambda one: (crowd[one.address], -one.since)).drop()
        return bool(victims)

    async def _sweep(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            # While this process did something else it could not read: that time is not the callers'.
            late, last = max(0.0, now - last - 2 * _SWEEP_SECONDS), now
            for connection in list(self._open.values()):
                if connection.answering:
                    continue
                connection.since += late
                most = self.limits.request_seconds if connection.incomplete else self.limits.idle_seconds
                if now - connection.since > most:
                    self.dropped["timeout"] += connection.incomplete
                    connection.drop()
