# SPDX-License-Identifier: Apache-2.0
"""
A plugin of the container runtime: connected again within a moment, and never late with an answer.

The runtime starts a container as it is when a plugin is late, dies or is away; only an error refuses. So an answer
that takes too long becomes an error well before the runtime gives up, and calls that write files run in threads of
their own. Decides when to connect, what is subscribed to and how long an answer may take; what the answers are is the
handler's business. That a container was created while nobody was connected is found by the guard and at its start.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from isolation.contract import nri_api as api
from isolation.contract.text import printable
from isolation.node.nri.connection import Answer, Call, ClosedError, RuntimeConnection
from isolation.node.nri.model import Container, NriRefusedError, Sandbox, container_of, sandbox_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isolation.node.nri.model import Handler

    T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
CONNECT_SECONDS: Final = 0.05
"""Between two tries: a runtime that starts serves pods within 25 ms of its plugins' socket."""
ANSWER_PART: Final = 0.6
"""Of the runtime's deadline, 2 s unless it says otherwise."""
_RUNTIME_SECONDS: Final = 2.0
_WORKERS: Final = 8
"""Threads for answers: the runtime asks one at a time, more than one works only where a disk hangs."""
_REGISTER_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_LONGEST_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Subscription:
    """A plugin as the runtime knows it."""

    name: str
    index: str
    """Two digits; the runtime asks its plugins in this order, and a later one sees what earlier ones have changed."""
    events: tuple[api.NriEvent, ...]


AGENT: Final = Subscription("gpushare", "90", tuple(api.NriEvent))
"""Late among the plugins: what others have changed is seen. NVIDIA's own has 10."""


class NriSession:
    """See the module. `cycle` is called over and over by one thread; the rest may be read from any."""

    def __init__(
        self,
        path: Path,
        handler: Handler,
        took: Callable[[str, float, str], None] = lambda *_: None,
        plugin: Subscription = AGENT,
        changed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """
        Not connected yet.

        `took` receives method, seconds and outcome (ok, refused, timeout, error) of each answer; `changed` is told,
        at once and in the thread of `cycle`, whether we are in force now.
        """
        self._path, self._handler, self._took, self._plugin, self._changed = path, handler, took, plugin, changed
        self._socket: socket.socket | None = None
        self._connection: RuntimeConnection | None = None
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="nri")
        self._answer_seconds = _RUNTIME_SECONDS * ANSWER_PART
        self._parts: tuple[list[Any], list[Any]] = ([], [])
        self._synchronized = False
        self.in_force = False
        """Whether every container that is created now is shown to us."""
        self.times = 0
        """How often we have been in force."""
        self.trouble = "not connected to the container runtime yet"
        """Why not, for people; empty while in force."""
        self.runtime = ""
        """Name and version."""

    def cycle(self) -> float:
        """Connect, or answer what comes; seconds until the next time."""
        try:
            if self._connection is None:
                self._connect()
            self._serve()
        except ClosedError as exc:
            self._lost(str(exc))
            return CONNECT_SECONDS
        return 0.0

    def close(self) -> None:
        """The runtime is told nothing: for it we are gone."""
        self._lost("shutting down")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _connect(self) -> None:
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.settimeout(_REGISTER_SECONDS)
        try:
            raw.connect(str(self._path))
        except OSError as exc:
            raw.close()
            raise ClosedError(
                f"cannot connect to {self._path}: {exc.strerror or exc}: NRI must be enabled in the container runtime "
                "(containerd 2.1 or newer has it on by default)"
            ) from None
        raw.settimeout(_LOOK_SECONDS)
        self._socket, self._connection = raw, RuntimeConnection(raw)
        self._parts = ([], [])
        self._connection.ask(
            "RegisterPlugin", api.RegisterPluginRequest(plugin_name=self._plugin.name, plugin_idx=self._plugin.index)
        )
        end = time.monotonic() + _REGISTER_SECONDS
        while not self.in_force:
            self._serve()
            if time.monotonic() > end:
                raise ClosedError("the container runtime did not take the plugin into service")

    def _serve(self) -> None:
        """One message, or none for a while."""
        connection = self._connection
        if connection is None:
            return
        try:
            message = connection.receive()
        except TimeoutError:
            return
        if isinstance(message, Answer):
            if message.code:
                raise ClosedError(f"the container runtime refused the plugin: {printable(message.text, _LONGEST_TEXT)}")
            return
        self._answer(connection, message)

    def _answer(self, connection: RuntimeConnection, call: Call) -> None:
        began, outcome = time.monotonic(), "ok"
        try:
            connection.answer(call, self._result(call))
        except NriRefusedError as exc:
            outcome = "refused"
            connection.refuse(call, printable(str(exc), _LONGEST_TEXT))
        except LateError:
            outcome = "timeout"
            text = f"the node agent had no answer within {self._answer_seconds:.1f} s: the kubelet will retry"
            _log.error("%s: %s", call.method, text)
            connection.refuse(call, text)
        except _UnknownError:
            outcome = "error"
            connection.refuse(call, f"method {printable(call.method, 64)} is not implemented", api.UNIMPLEMENTED)
        except ClosedError:
            raise
        except Exception:  # noqa: BLE001 (an error refuses; silence would start the container as it is)
            outcome = "error"
            _log.exception("%s failed", call.method)
            connection.refuse(call, "the node agent failed (see its log): the kubelet will retry", api.INTERNAL)
        finally:
            self._took(call.method, time.monotonic() - began, outcome)
        if self._synchronized and not self.in_force:
            self.times += 1
            self.in_force, self.trouble = True, ""
            _log.info("connected to the container runtime: %s", self.runtime)
            self._changed(True)

    def _result(self, call: Call) -> Any:
        if call.method == "Configure":
            return self._configure(api.ConfigureRequest.FromString(call.payload))
        if call.method == "Synchronize":
            return self._synchronize(api.SynchronizeRequest.FromString(call.payload))
        if call.method == "CreateContainer":
            container = _container(api.ContainerRequest.FromString(call.payload))
            adjustment = self._in_time(self._handler.create, container)
            return api.CreateContainerResponse(adjust=adjustment.message() if adjustment is not None else None)
        if call.method == "StateChange":
            event = api.StateChangeEvent.FromString(call.payload)
            self._event(event.event, event)
        elif call.method in api.METHODS:
            self._event(api.METHODS[call.method], api.ContainerRequest.FromString(call.payload))
        elif call.method != "Shutdown":
            raise _UnknownError
        return api.Empty()

    def _configure(self, request: Any) -> Any:
        self.runtime = printable(f"{request.runtime_name} {request.runtime_version}", 64)
        if request.request_timeout > 0:  # milliseconds
            self._answer_seconds = request.request_timeout / 1000 * ANSWER_PART
        events = sum(1 << (event - 1) for event in self._plugin.events)
        # A runtime that knows the policy (NRI 0.12) refuses what it cannot ask us about.
        return api.ConfigureResponse(events=events, failure_policy={"fail_request": True})

    def _synchronize(self, request: Any) -> Any:
        """It comes in parts where it is large."""
        sandboxes, containers = self._parts
        sandboxes += request.pods
        containers += request.containers
        if not request.more:
            known = {one.id: sandbox_of(one) for one in sandboxes}
            found = [container_of(one, known[one.pod_sandbox_id]) for one in containers if one.pod_sandbox_id in known]
            self._parts = ([], [])
            self._handler.synchronize(tuple(known.values()), found)
            self._synchronized = True
        return api.SynchronizeResponse(more=request.more)

    def _event(self, event: int, message: Any) -> None:
        if event == api.NriEvent.START_CONTAINER:
            self._in_time(self._handler.start, _container(message))
        elif event in {api.NriEvent.STOP_CONTAINER, api.NriEvent.REMOVE_CONTAINER}:
            self._handler.gone(_container(message), removed=event == api.NriEvent.REMOVE_CONTAINER)

    def _in_time(self, what: Callable[[Container], T], container: Container) -> T:
        """
        In a thread. LateError; what is still done then is worth nothing: its nonce is not in the container.

        What no thread has begun by then is never done: the runtime may have reported the container's end before.
        """
        answer = self._pool.submit(what, container)
        try:
            return answer.result(self._answer_seconds)
        except LateError:
            answer.cancel()
            raise

    def _lost(self, why: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = self._connection = None
        was, self._synchronized, self.in_force = self.in_force, False, False
        if was:
            self._changed(False)
        if why != self.trouble:
            self.trouble = why
            _log.warning("not connected to the container runtime: %s", why)


class _UnknownError(Exception):
    """A method that is not subscribed to."""


def _container(message: Any) -> Container:
    sandbox: Sandbox = sandbox_of(message.pod)
    return container_of(message.container, sandbox)
