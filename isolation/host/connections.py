"""
A bounded number of connections in front of any asyncio HTTP protocol, such as aiohttp's.

Every phase of a connection has one deadline for the whole of it, so that a client that sends a byte now and then
gains nothing. When places run out the newcomer gets one: a half-read request goes first, then an idle connection,
in both cases of the address that has most, then an answer that its client has stopped reading. Nobody is refused
for an address, since a scraper and an attacker may share one behind NAT. Knows nothing of HTTP but how to say "busy"
and "too large": the handler tells when it answers (`answering`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

_log: Final = logging.getLogger(__name__)

_YOUNG_SECONDS: Final = 0.25
"""A request that takes longer to come is not one of a scraper nearby."""
_READ_BYTES: Final = 16 * 1024
"""Of one connection before the next gets its turn."""
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a listener; times in seconds."""

    connections: int = 256
    request_bytes: int = 64 * 1024
    """From a request's first byte until its handler begins."""
    request_seconds: float = 5.0
    """For a TLS handshake, and for a whole request."""
    idle_seconds: float = 120.0
    """Between two requests: longer than Prometheus' longest usual interval."""
    answer_seconds: float = 10.0
    """For a client to take an answer."""
    stalled_seconds: float = 1.0
    """An answer of which no byte could be sent for so long may make room for a newcomer."""


class Phase(Enum):
    """Of a connection."""

    SHAKING = "TLS handshake"
    READING = "request not whole"
    IDLE = "between two requests"
    ANSWERING = "request with its handler"
    CLOSED = "closed"


class Connections:
    """
    Those of one listener.

    `protocol` makes the HTTP protocol of a connection; `tls` gives the context that is in force now, None for plain
    text; `admits` looks at the client's certificate (`getpeercert`) once the handshake is over.
    """

    def __init__(
        self,
        bounds: Bounds,
        protocol: Callable[[], asyncio.Protocol],
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        admits: Callable[[object], bool] = lambda _certificate: True,
    ) -> None:
        self.bounds, self.protocol, self.tls, self.admits = bounds, protocol, tls, admits
        self.buffer: Final = memoryview(bytearray(_READ_BYTES))
        self._open: dict[_Connection, None] = {}
        self._closed = False
        self._by_transport: dict[int, _Connection] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol for the event loop's `create_server`."""
        return _Connection(self)

    @contextlib.contextmanager
    def answering(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """While a request of this connection is with its handler, which is until its answer is on its way."""
        connection = self._by_transport.get(id(transport))
        if connection is None:  # the client has gone
            yield
            return
        connection.enter(Phase.ANSWERING)
        try:
            yield
        finally:
            connection.answered()

    def close(self) -> None:
        """End every connection at once, and those that come after."""
        self._closed = True
        for connection in list(self._open):
            connection.drop()

    def add(self, connection: _Connection) -> bool:
        """Take a newcomer in; False where every place is being answered."""
        if self._closed:
            return False
        if len(self._open) >= self.bounds.connections and not self._make_room():
            return False
        self._open[connection] = None
        return True

    def name(self, connection: _Connection, transport: asyncio.BaseTransport) -> None:
        """By what `answering` will know it."""
        self._by_transport[id(transport)] = connection

    def remove(self, connection: _Connection, transport: asyncio.BaseTransport | None) -> None:
        """It has ended."""
        self._open.pop(connection, None)
        self._by_transport.pop(id(transport), None)

    def _make_room(self) -> bool:
        now = asyncio.get_running_loop().time()
        half = [one for one in self._open if one.phase in {Phase.SHAKING, Phase.READING}]
        idle = [one for one in self._open if one.phase is Phase.IDLE]
        # one that has just begun is most likely honest, as long as they are few
        slow = half if 2 * len(half) > len(self._open) else [one for one in half if now - one.since >= _YOUNG_SECONDS]
        found = slow or idle or half or [one for one in self._open if one.stalled]
        if not found:
            return False
        crowd = Counter(one.address for one in self._open)
        max(found, key=lambda one: (crowd[one.address], -one.since)).drop()
        return True


class _Connection(asyncio.BufferedProtocol):
    """One client; hands what it sends on to the HTTP protocol."""

    def __init__(self, owner: Connections) -> None:
        self._owner, self._bounds = owner, owner.bounds
        self._loop = asyncio.get_running_loop()
        self._inner: asyncio.Protocol | None = None
        self._raw: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        self._shaking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._early = b""
        self._received = 0
        self._full_since: float | None = None
        self.address = ""
        self.phase = Phase.CLOSED
        self.since = 0.0

    @property
    def stalled(self) -> bool:
        """Whether its client has stopped taking the answer."""
        full = self._full_since
        return full is not None and self._loop.time() - full >= self._bounds.stalled_seconds

    # Phases.

    def enter(self, phase: Phase) -> None:
        """Begin a phase and its deadline."""
        self.phase, self.since = phase, self._loop.time()
        self._received = 0
        if self._timer is not None:
            self._timer.cancel()
        # an answer's time is its handler's to watch: it may have to wait for more than the client
        seconds = {Phase.IDLE: self._bounds.idle_seconds, Phase.ANSWERING: None}.get(
            phase, self._bounds.request_seconds
        )
        self._timer = self._loop.call_later(seconds, self.drop) if seconds is not None else None

    def answered(self) -> None:
        """Bytes that came meanwhile belong to the next request."""
        if self.phase is Phase.ANSWERING:
            self.enter(Phase.READING if self._received else Phase.IDLE)

    def drop(self) -> None:
        """End it now, whatever it does."""
        self._ended()
        if self._raw is not None:
            self._raw.abort()

    def _ended(self) -> None:
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        if self._shaking is not None:
            self._shaking.cancel()
        self._owner.remove(self, self._transport)

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 (for types; TCP's is)
        peer = transport.get_extra_info("peername")
        self._raw, self.address = transport, str(peer[0]) if peer else ""
        context = self._owner.tls()
        if not self._owner.add(self):
            if context is None:
                transport.write(_BUSY)
            transport.close()
            return
        if context is None:
            self._begin(transport)
            return
        self.enter(Phase.SHAKING)
        self._shaking = self._loop.create_task(self._shake(transport, context))

    async def _shake(self, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            made = await self._loop.start_tls(
                raw, self, context, server_side=True, ssl_handshake_timeout=self._bounds.request_seconds
            )
            if made is None or not self._owner.admits(made.get_extra_info("peercert")):
                self.drop()
                return
        except OSError as exc:  # of TLS, or the client went
            _log.debug("TLS handshake with %s failed: %s", self.address, exc)
            self.drop()
            return
        self._shaking = None
        if self.phase is not Phase.CLOSED:
            self._begin(made)

    def _begin(self, transport: asyncio.Transport) -> None:
        """Requests may come; a client may have sent one together with the end of its handshake."""
        self._transport = transport
        self._owner.name(self, transport)
        transport.set_write_buffer_limits(high=0)  # written is what the kernel took
        self._inner = self._owner.protocol()
        self.enter(Phase.READING)
        self._inner.connection_made(transport)
        if self._early:
            early, self._early = self._early, b""
            self._feed(early)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (the event loop's shape)
        """One buffer for all: what is in it is handed on before the next read."""
        return self._owner.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        data = bytes(self._owner.buffer[:nbytes])
        if self._inner is None:
            self._early += data
            if len(self._early) > self._bounds.request_bytes:
                self.drop()
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        if self.phase is Phase.IDLE:
            self.enter(Phase.READING)
        if self.phase is Phase.READING and self._received > self._bounds.request_bytes and self._transport is not None:
            self._transport.write(_TOO_LARGE)
            self._transport.close()
            self._ended()
        elif self.phase is not Phase.CLOSED and self._inner is not None:
            self._received += len(data)
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._inner.eof_received() if self._inner is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._ended()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes nothing for now."""
        self._full_since = self._loop.time()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """All of the answer is with the kernel."""
        self._full_since = None
        if self._inner is not None:
            self._inner.resume_writing()
