# SPDX-License-Identifier: Apache-2.0
"""
The process with the port, which is not root, apart from the one that reads the machine, which has no network.

Reading needs root: the kubelet's socket and the containers' ledgers belong to it, and root that shares the host's
process ids may read every process. So the exporter forks before it reads anything: the child (the front) gives up
root, keeps the listening socket and hands out pages; the parent (the reader) gives up the network and sends the front
its pages, once per cycle, in the forms that are asked for. What the front can send back is one byte: the form that
somebody wants. Knows nothing of what is read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final

from exporter.http.pages import Form, FreshPages, MetricsPage, Silent
from isolation.host import drop_privileges

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from exporter.http.pages import Exposition
    from exporter.http.webconfig import WebConfig
    from exporter.http.webfile import WebFile

_log: Final = logging.getLogger(__name__)

_FORMS: Final = tuple(Form(openmetrics, gzip) for openmetrics in (False, True) for gzip in (False, True))
"""One byte stands for each."""
_REMIND_SECONDS: Final = 10.0
"""How often the reader learns that a form is still requested: well below what makes it forget one."""
_PATIENCE_SECONDS: Final = 5.0
"""For a form that is not rendered yet."""
_END_SECONDS, _END_STEP_SECONDS = 2.0, 0.01
"""For the front to end; it is killed with the reader otherwise."""
_LOOK_SECONDS: Final = 1.0
"""How often the web configuration is looked at."""


@dataclass(frozen=True, slots=True)
class Edition:
    """What the reader sends: everything there is to show, and what has changed beside it."""

    pages: Mapping[Form, MetricsPage]
    documents: Mapping[str, bytes]
    renews: bool
    """It is of now, and not another form of what was sent before."""


class Front:
    """
    The reader's side. `fork` makes both processes.

    `ended` is called once, from a thread, when the front has gone.
    """

    def __init__(self, pid: int, out: Connection, wishes: int, web: WebFile | None) -> None:
        self.pid = pid
        self._out, self._wishes, self._web = out, wishes, web
        self._changed = Condition()
        self._next: Edition | None = None
        self._documents: Mapping[str, bytes] = {}

    @classmethod
    def fork(cls, listener: socket.socket, web: WebFile | None, stale_seconds: float) -> Front:
        """
        Part. The child serves and never returns; the parent has the listener no more.

        Raises ConfineError, in the parent too, where the child may not give up root. For a process without threads.
        """
        pages_read, pages_write = os.pipe()
        wishes_read, wishes_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            # each side closes the other's ends: a pipe ends only once no process holds its writing end
            os.close(pages_write)
            os.close(wishes_read)
            _front(listener, Connection(pages_read, writable=False), wishes_write, web, stale_seconds)
        os.close(pages_read)
        os.close(wishes_write)
        listener.close()
        if os.read(wishes_read, 1) != _READY:
            _, status = os.waitpid(pid, 0)
            raise drop_privileges.ConfineError(
                f"the HTTP process ended with {os.waitstatus_to_exitcode(status)}: see above"
            )
        return cls(pid, Connection(pages_write, readable=False), wishes_read, web)

    def start(self, pages: Exposition[Any], ended: Callable[[], None]) -> None:
        """Begin to send and to listen."""
        Thread(target=self._send, name="front out", daemon=True).start()
        Thread(target=self._listen, args=(pages, ended), name="front in", daemon=True).start()

    def publish(self, pages: Mapping[Form, MetricsPage], documents: Mapping[str, bytes]) -> None:
        """Show this from now on; never waits."""
        with self._changed:
            self._next = Edition(pages, documents, renews=True)
            self._documents = documents
            self._changed.notify()

    def close(self) -> None:
        """Let the front end, so that its port is free."""
        self._out.close()
        end = time.monotonic() + _END_SECONDS
        with contextlib.suppress(ChildProcessError):  # somebody has collected it
            while time.monotonic() < end and os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                time.sleep(_END_STEP_SECONDS)

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # `_listen` learns of it too
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._next is not None, _LOOK_SECONDS)
                    edition, self._next = self._next, None
                config = self._web.changed() if self._web is not None else None
                if edition is not None or config is not None:
                    self._out.send((edition, config))

    def _listen(self, pages: Exposition[Any], ended: Callable[[], None]) -> None:
        while said := os.read(self._wishes, len(_FORMS)):
            for form in {_FORMS[byte] for byte in said if byte < len(_FORMS)}:
                with contextlib.suppress(Silent):
                    pages.page(form)
            with self._changed:
                renews = self._next is not None and self._next.renews
                self._next = Edition(pages.pages, self._documents, renews)
                self._changed.notify()
        ended()


_READY: Final = b"+"


def _front(listener: socket.socket, pages: Connection, wishes: int, web: WebFile | None, stale_seconds: float) -> None:
    """The child: until the reader has gone, or somebody ends it."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # sent to all of us; the reader decides
            signal.signal(number, signal.SIG_IGN)
        # loaded while there is somebody who may read it
        from exporter.http.router import MetricsRouter  # noqa: PLC0415 (as above)
        from exporter.http.server import MetricsServer  # noqa: PLC0415 (not in the reader)

        authenticator = None
        shown = ReceivedPages(wishes)
        if web is not None:
            from exporter.http.authenticator import Authenticator  # noqa: PLC0415 (as above)

            authenticator = Authenticator(web.config, shown.config)
        drop_privileges.give_up_root()
        # after the change of user: the kernel clears a parent-death signal when credentials change
        drop_privileges.end_with_parent()
        fresh = FreshPages(shown, stale_seconds, time.monotonic)
        router = MetricsRouter(fresh, documents={path: partial(shown.document, path) for path in DOCUMENTS})
        with MetricsServer(router, authenticator=authenticator, listener=listener):
            os.write(wishes, _READY)
            shown.follow(pages, fresh.renew)
        status = 0
    except drop_privileges.ConfineError as exc:
        _log.error("%s", exc.strerror)
    except BaseException:  # noqa: BLE001 (a fork never returns)
        _log.exception("the HTTP process failed")
    finally:
        os._exit(status)


DOCUMENTS: Final = ("/breaches", "/processes")
"""Paths of the JSON documents beside the metrics."""


@dataclass
class ReceivedPages:
    """The front's side: what the reader has sent last (`exporter.http.router.Pages`)."""

    wishes: int
    _edition: Edition | None = None
    _config: WebConfig | None = None
    _came: Condition = field(default_factory=Condition)
    _reminded: dict[Form, float] = field(default_factory=dict)

    def made(self, form: Form) -> MetricsPage | None:
        """The page where it was sent."""
        edition = self._edition
        if edition is None:
            raise Silent("no reading yet")
        page = edition.pages.get(form)
        now = time.monotonic()
        if page is None or now - self._reminded.get(form, float("-inf")) >= _REMIND_SECONDS:
            self._reminded[form] = now
            with contextlib.suppress(BlockingIOError):  # the pipe is full of reminders already
                os.write(self.wishes, bytes((_FORMS.index(form),)))
        return page

    def page(self, form: Form = Form()) -> MetricsPage:  # noqa: B008 (frozen)
        """The page as soon as the reader has rendered it."""
        end = time.monotonic() + _PATIENCE_SECONDS
        page = self.made(form)
        with self._came:
            while page is None:
                if not self._came.wait(end - time.monotonic()):
                    raise Silent(f"the page was not rendered within {_PATIENCE_SECONDS:g} s")
                page = self._edition.pages.get(form) if self._edition is not None else None
        return page

    def document(self, path: str) -> bytes:
        """What stands at that path."""
        edition = self._edition
        if edition is None or path not in edition.documents:
            raise Silent("no reading yet")
        return edition.documents[path]

    def config(self) -> WebConfig | None:
        """The web configuration, once for each that was sent."""
        config, self._config = self._config, None
        return config

    def follow(self, pages: Connection, renew: Callable[[], None]) -> None:
        """Take what the reader sends, until it has gone."""
        os.set_blocking(self.wishes, False)
        with contextlib.suppress(EOFError, OSError):
            while True:
                edition, config = pages.recv()
                if config is not None:
                    self._config = config
                if edition is not None:
                    if edition.renews:
                        renew()
                    with self._came:
                        self._edition = edition
                        self._came.notify_all()
