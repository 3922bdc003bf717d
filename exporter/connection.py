"""
One client: what it has sent, what it still gets, and until when that may take.

Never waits: a turn goes as far as the socket lets it. Each phase has one deadline for the whole of it, so
that a client that sends a byte now and then gains nothing. Knows TLS only as sockets that may want to
write in order to read.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from exporter.message import BadRequest, plain, split, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.message import Answer, Request

READ_SECONDS: Final = 5.0
"""For a whole request, and for a TLS handshake."""
WRITE_SECONDS: Final = 10.0
"""For a whole answer."""
IDLE_SECONDS: Final = 120.0
"""Between two requests: longer than Prometheus' longest usual interval."""
WAIT_SECONDS: Final = 15.0
"""For a password to be checked."""
_LINGER_SECONDS: Final = 1.0
"""Closing with bytes unread would take away the answer that is on its way."""
_CHUNK: Final = 16 * 1024


class State(Enum):
    """Phases of a connection."""

    HANDSHAKE = "handshake"
    IDLE = "idle"
    READING = "reading"
    WAITING = "waiting"
    WRITING = "writing"
    LINGERING = "lingering"
    CLOSED = "closed"


class Later(Enum):
    """A verdict that is not there yet."""

    LATER = "later"


class Gate(Protocol):
    """Who may come, and what every answer carries."""

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        ...

    def wrap(self, sock: socket.socket) -> socket.socket:
        """The socket as it is to be spoken through; OSError or ValueError: hang up."""
        ...

    def judge(
        self, sock: socket.socket, address: str, request: Request, done: Callable[[Answer | None], None]
    ) -> Answer | Later | None:
        """A refusal, None to let them in, or LATER: `done` is then called with either, from another thread."""
        ...

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Header fields of every answer."""
        ...

    def shake(self, sock: socket.socket) -> None:
        """Go on with the handshake; an error that `wants` knows: not done yet."""
        ...

    def wants(self, error: OSError) -> int:
        """The event (selectors) for which a socket waits that failed so; 0: none, it is broken."""
        ...


class Open:
    """No TLS, no passwords."""

    secure = False

    def wrap(self, sock: socket.socket) -> socket.socket:
        """As it is."""
        return sock

    def judge(self, *_: object) -> None:
        """Everybody may come."""
        return

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Nothing."""
        return ()

    def shake(self, sock: socket.socket) -> None:
        """None is needed."""

    def wants(self, error: OSError) -> int:  # noqa: ARG002 (the gate's shape)
        """Plain sockets say BlockingIOError."""
        return 0


class Connection:
    """See the module."""

    __slots__ = ("_gate", "_in", "_keeps", "_out", "address", "deadline", "interest", "sock", "state")

    def __init__(self, sock: socket.socket, address: str, gate: Gate, now: float) -> None:
        self.sock, self.address, self._gate = gate.wrap(sock), address, gate
        self.state = State.HANDSHAKE if gate.secure else State.IDLE
        self.deadline = now + READ_SECONDS
        self.interest = selectors.EVENT_READ
        self._in = bytearray()
        self._out: list[memoryview] = []
        """What is still to be sent, the last piece first."""
        self._keeps = True

    def turn(self, now: float) -> Request | None:
        """Go on as far as the socket lets us; a request that is whole comes out. OSError: they are gone."""
        try:
            if self.state is State.HANDSHAKE:
                self._shake(now)
            if self.state is State.WRITING:
                self._send(now)
            if self.state in {State.IDLE, State.READING}:
                return self._receive(now)
            if self.state is State.LINGERING:
                self._discard()
        except BlockingIOError:
            pass  # each phase has said what it waits for
        except OSError as exc:
            self.interest = self._gate.wants(exc)
            if not self.interest:
                raise
        return None

    def _shake(self, now: float) -> None:
        self._gate.shake(self.sock)
        self.state, self.deadline = State.IDLE, now + READ_SECONDS

    def _receive(self, now: float) -> Request | None:
        """The next request; asked again for as long as there may be one in what was read already."""
        while True:
            try:
                found = split(self._in) if self._in else None
            except BadRequest as exc:
                self._refuse(exc, now)
                return None
            if found is not None:
                request, length = found
                del self._in[:length]
                return request
            self.interest = selectors.EVENT_READ
            got = self.sock.recv(_CHUNK)
            if not got:
                self.state = State.CLOSED
                return None
            if self.state is State.IDLE:
                self.state, self.deadline = State.READING, now + READ_SECONDS
            self._in += got

    def wait(self, now: float) -> None:
        """For a verdict: what they send meanwhile is not read, only whether they hang up."""
        self.state, self.deadline, self.interest = State.WAITING, now + WAIT_SECONDS, 0

    def _refuse(self, why: BadRequest, now: float) -> None:
        self._begin(write(plain(why.status, str(why)), keeps=False), keeps=False, now=now)
        self._send(now)

    def answer(self, answer: Answer, request: Request, now: float) -> None:
        """Begin to send; `turn` goes on."""
        keeps = request.keeps and answer.status is not HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        self._begin(write(answer, body=request.method != "HEAD", keeps=keeps), keeps=keeps, now=now)

    def _begin(self, pieces: tuple[bytes, ...], *, keeps: bool, now: float) -> None:
        self._out, self._keeps = [memoryview(piece) for piece in reversed(pieces)], keeps
        self.state, self.deadline, self.interest = State.WRITING, now + WRITE_SECONDS, selectors.EVENT_WRITE

    def _send(self, now: float) -> None:
        while self._out:
            self.interest = selectors.EVENT_WRITE
            rest = self._out[-1][self.sock.send(self._out[-1]) :]
            if rest:
                self._out[-1] = rest
            else:
                self._out.pop()
        self.interest = selectors.EVENT_READ
        if self._keeps:
            self.state, self.deadline = State.IDLE, now + IDLE_SECONDS
            if self._in:
                self.state, self.deadline = State.READING, now + READ_SECONDS
            return
        self.state, self.deadline = State.LINGERING, now + _LINGER_SECONDS
        # below TLS as well: its own goodbye would have to be waited for
        socket.socket.shutdown(self.sock, socket.SHUT_WR)

    def _discard(self) -> None:
        while True:
            if not self.sock.recv(_CHUNK):
                self.state = State.CLOSED
                return

    def close(self) -> None:
        """Let the socket go; never waits."""
        self.state = State.CLOSED
        with contextlib.suppress(OSError):
            self.sock.close()
