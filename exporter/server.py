"""
The HTTP edge: one thread that serves every connection, whatever the others do.

Scrapes are answered from memory, so that one thread with a selector is enough; what may take long (a
password) is done elsewhere and comes back. A client that is slow, silent or too talkative costs a buffer
until its deadline and nothing else. Knows connections, deadlines and how to say that a port is taken;
nothing of paths (`exporter.site`) and of who may come (`exporter.web`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import time
from collections import deque
from dataclasses import replace
from http import HTTPStatus
from threading import Thread
from typing import TYPE_CHECKING, Final

from exporter.connection import Connection, Later, Open, State
from exporter.message import plain, write
from exporter.site import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from exporter.connection import Gate
    from exporter.message import Answer, Request
    from exporter.site import Pages

_log: Final = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 256
"""More are refused, unless one is idle: then that one makes room."""
_BACKLOG: Final = 128
_LOOK_SECONDS: Final = 1.0
"""How often deadlines are looked at while nothing happens."""
_STOP_SECONDS: Final = 1.0
_REST_SECONDS: Final = 0.1
"""Pause after the process ran out of descriptors."""


class PortError(OSError):
    """The address cannot be served on; the message says what to change."""


class MetricsServer:
    """Serves a site from a thread; a context manager that frees the port when it is left."""

    def __init__(self, site: Site | Pages, port: int, host: str = "127.0.0.1", gate: Gate | None = None) -> None:
        self._listener = _listen(host, port)
        self._loop = _Loop(self._listener, site if isinstance(site, Site) else Site(site), gate or Open())
        self._thread = Thread(target=self._loop.run, name="http", daemon=True)
        self._scheme = "https" if gate is not None and gate.secure else "http"

    @property
    def port(self) -> int:
        """The port that was asked for, or the one that was free."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = str(self._listener.getsockname()[0])
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    @property
    def connections(self) -> int:
        """How many are open now."""
        return self._loop.size

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        self._listener.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], found[1], found[2])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if found[0] == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host in {"::", ""} else 1)
            listener.bind(found[4])
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OverflowError as exc:
        raise PortError(f"port {port} is out of range: use 0 (any free port) to 65535") from exc
    except OSError as exc:
        raise PortError(_advice(host, port, exc)) from exc
    return listener


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another port, or 0 for any free port"
    if error.errno == errno.EACCES:
        return f"port {port} requires privileges: choose a port above 1023, or 0 for any free port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: use 0.0.0.0 for all addresses"
    return f"cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 for any free port"


class _Loop:
    """Who is connected, and what they wait for."""

    def __init__(self, listener: socket.socket, site: Site, gate: Gate) -> None:
        self._listener, self._site, self._gate = listener, site, gate
        self._selector = selectors.DefaultSelector()
        self._open: dict[int, Connection] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._judged: deque[tuple[Connection, Request, Answer | None]] = deque()
        self._stopping = False
        self._resting_until = 0.0

    @property
    def size(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        """From another thread: end soon."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def run(self) -> None:
        """Serve until `stop`."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        looked = 0.0
        try:
            while not self._stopping:
                events = self._selector.select(_LOOK_SECONDS)
                now = time.monotonic()
                for key, _ in events:
                    if key.fileobj is self._listener:
                        self._accept(now)
                    elif key.fileobj == self._wake_read:
                        self._deliver(now)
                    else:
                        self._serve(key.data, now)
                if now - looked >= _LOOK_SECONDS:
                    looked = now
                    self._look(now)
        finally:
            for connection in list(self._open.values()):
                self._drop(connection)
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _accept(self, now: float) -> None:
        """Everybody who waits at the door."""
        while True:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    self._rest(now)
                    return
                continue  # they hung up before we came
            if len(self._open) >= MOST_CONNECTIONS and not self._make_room():
                self._turn_away(sock)
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = Connection(sock, str(address[0]), self._gate, now)
            except (OSError, ValueError):
                sock.close()
                continue
            self._open[connection.sock.fileno()] = connection
            self._selector.register(connection.sock, connection.interest, connection)
            self._serve(connection, now)

    def _rest(self, now: float) -> None:
        """Out of descriptors: without a pause the listener would be ready again at once, for ever."""
        _log.warning("cannot accept connections: out of file descriptors; retrying in %s s", _REST_SECONDS)
        self._selector.unregister(self._listener)
        self._resting_until = now + _REST_SECONDS
        self._make_room()

    def _make_room(self) -> bool:
        """End the connection that has been idle longest; False where none is."""
        idle = [one for one in self._open.values() if one.state is State.IDLE]
        if not idle:
            return False
        self._drop(min(idle, key=lambda one: one.deadline))
        return True

    def _turn_away(self, sock: socket.socket) -> None:
        """Too many: say so as far as it can be said without waiting."""
        with contextlib.suppress(OSError):
            if not self._gate.secure:
                sock.setblocking(False)
                busy = plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", ("Retry-After", "1"))
                sock.send(write(busy, keeps=False)[0])
        sock.close()

    def _look(self, now: float) -> None:
        """Deadlines."""
        for connection in [one for one in self._open.values() if now >= one.deadline]:
            self._drop(connection)
        if self._resting_until and now >= self._resting_until:
            self._resting_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _serve(self, connection: Connection, now: float, judged: tuple[Request, Answer | None] | None = None) -> None:
        """Go on with a connection for as long as it does not wait; with the verdict that it waited for."""
        try:
            if judged is not None:
                self._answer(connection, *judged, now)
            while (request := connection.turn(now)) is not None:
                verdict = self._gate.judge(
                    connection.sock, connection.address, request, self._later(connection, request)
                )
                if verdict is Later.LATER:
                    connection.wait(now)
                    break
                self._answer(connection, request, verdict, now)
        except (OSError, ValueError):
            self._drop(connection)
        except Exception:  # noqa: BLE001 (whatever it was, the other connections go on)
            _log.exception("cannot answer request from %s", connection.address)
            self._drop(connection)
        else:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Come back when the connection can go on."""
        if connection.state is State.CLOSED:
            self._drop(connection)
        elif connection.interest:
            watched = connection.sock.fileno() in self._selector.get_map()
            (self._selector.modify if watched else self._selector.register)(
                connection.sock, connection.interest, connection
            )
        else:
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection.sock)

    def _answer(self, connection: Connection, request: Request, refusal: Answer | None, now: float) -> None:
        answer = refusal or self._site(request)
        fields = self._gate.fields()
        connection.answer(replace(answer, fields=answer.fields + fields) if fields else answer, request, now)

    def _later(self, connection: Connection, request: Request) -> Callable[[Answer | None], None]:
        def done(refusal: Answer | None) -> None:
            self._judged.append((connection, request, refusal))
            self._wake()

        return done

    def _deliver(self, now: float) -> None:
        """Verdicts that have come."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
        while self._judged:
            connection, request, refusal = self._judged.popleft()
            if connection.state is State.WAITING:
                self._serve(connection, now, (request, refusal))

    def _drop(self, connection: Connection) -> None:
        for fd, one in list(self._open.items()):
            if one is connection:
                del self._open[fd]
                with contextlib.suppress(KeyError, ValueError, OSError):
                    self._selector.unregister(fd)
        connection.close()
