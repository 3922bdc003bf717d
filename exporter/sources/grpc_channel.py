# SPDX-License-Identifier: Apache-2.0
"""
One gRPC connection to a Unix socket of the kubelet's, kept, and calls that always end.

Translates gRPC's errors into `NoAnswer`s and `SourceError`s; knows no message. A rejection by the rate
limit, which the kubelet applies to all callers together, is tried again for as long as the deadline lasts.
Imported only where there is a kubelet: gRPC is the largest thing in the process.
"""

from __future__ import annotations

import os
import time
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # read when gRPC is loaded; else it writes lines of its own into our log

import grpc

from exporter.sources.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES: Final = 16 << 20
"""Of one answer: some 500 pods with all their fields are a tenth of it."""
PAUSES: Final = (0.02, 0.05, 0.1, 0.2)
"""Seconds between tries at a limit of 100 a second."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the pause of the one that failed
    # no least back-off: gRPC takes it for the time of one attempt, and a kubelet may be slow to accept
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class NoAnswer(Enum):
    """Why there is no answer although there is a kubelet."""

    NOT_FOUND = "not found"
    REFUSED = "refused by the rate limit"
    UNKNOWN_METHOD = "unknown method"
    NOT_READY = "not ready yet"


class GrpcConnection:
    """See the module. `deadline`: seconds that one call may take, tries included."""

    def __init__(self, socket: Path, deadline: float) -> None:
        self.socket, self.deadline = socket, deadline
        self._channel: Any = None
        self._calls: dict[str, Any] = {}

    def call(self, method: str, request: Any, answer: Any, until: float) -> Any | NoAnswer:
        """The answer, or why not; `until`: monotonic seconds at which it must be over. SourceError: no kubelet."""
        pauses, kept = iter(PAUSES), self._channel is not None
        while True:
            left = min(until - time.monotonic(), self.deadline)
            if left <= 0:
                return NoAnswer.REFUSED
            try:
                return self._method(method, request, answer)(request, timeout=left)
            except grpc.RpcError as exc:
                if exc.code() is grpc.StatusCode.UNAVAILABLE:
                    self.close()
                    if kept:  # the kubelet may have been restarted since the last call
                        kept = False
                        continue
                why = self._why(exc)
            pause = next(pauses, None)
            if why is not NoAnswer.REFUSED or pause is None or time.monotonic() + pause >= until:
                return why
            time.sleep(pause)

    def close(self) -> None:
        """Let the connection go; the next call makes another."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._calls.clear()

    def _method(self, method: str, request: Any, answer: Any) -> Any:
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self.socket}", options=_OPTIONS)
        if method not in self._calls:
            self._calls[method] = self._channel.unary_unary(
                method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
            )
        return self._calls[method]

    def _why(self, exc: Any) -> NoAnswer:
        """For kubelets leave some errors without a code, in words only."""
        code, words = exc.code(), exc.details() or ""
        match code:
            case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" not in words:
                return NoAnswer.REFUSED
            case grpc.StatusCode.NOT_FOUND:
                return NoAnswer.NOT_FOUND
            case grpc.StatusCode.UNIMPLEMENTED:
                return NoAnswer.UNKNOWN_METHOD
            case grpc.StatusCode.FAILED_PRECONDITION:
                return NoAnswer.NOT_READY
            case grpc.StatusCode.UNKNOWN if words.endswith("not found"):
                return NoAnswer.NOT_FOUND
            case grpc.StatusCode.UNKNOWN if words.endswith("method disabled"):
                return NoAnswer.UNKNOWN_METHOD
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                raise SourceError(f"the kubelet on {self.socket} timed out after {self.deadline:g} s")
            case grpc.StatusCode.UNAVAILABLE:
                raise SourceError(
                    f"cannot connect to the kubelet on {self.socket} ({self._state()}): "
                    "check that it is running and that the directory is mounted"
                )
            case _:
                raise SourceError(f"the kubelet on {self.socket} returned {code.name}: {words[:200]}")

    def _state(self) -> str:
        try:
            self.socket.stat()
        except OSError as exc:
            return exc.strerror or "cannot access the socket"
        return "the socket exists but nothing listens on it"
