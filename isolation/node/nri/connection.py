# SPDX-License-Identifier: Apache-2.0
"""
One connection with the container runtime: several streams of bytes on one socket, and calls on these.

The runtime calls the plugin on one stream and is called by it on another; both stand on the one Unix socket in frames
of at most 4,096 bytes (a larger one makes the runtime drop the plugin). One reader: whoever wants an answer and whoever
serves takes messages from the same queue. Decides nothing about what is said.

Formats: NRI's multiplexer (pkg/net/multiplex/mux.go: connection id and length, big-endian, 4 bytes each) and ttrpc
(PROTOCOL.md: length, stream id, type, flags; at most 4 MiB).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract import nri_api as api

if TYPE_CHECKING:
    import socket

PLUGIN_STREAM: Final = 1
"""The runtime calls us."""
RUNTIME_STREAM: Final = 2
"""We call the runtime."""
MAX_MESSAGE: Final = 4 << 20
_FRAME: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">IIBB")
_FRAME_BYTES: Final = 4096 - _FRAME.size
_REQUEST, _RESPONSE = 1, 2
_READ: Final = 1 << 16
_STREAMS: Final = (PLUGIN_STREAM, RUNTIME_STREAM)


class ClosedError(Exception):
    """The connection has ended, or what came on it is not NRI; the text says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """The runtime asks something."""

    stream: int
    method: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The runtime answers what we asked; `code` 0: it agrees."""

    code: int
    text: str


class RuntimeConnection:
    """See the module. For one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._raw = bytearray()
        self._streams = {one: bytearray() for one in _STREAMS}
        self._ready: deque[Call | Answer] = deque()

    def receive(self) -> Call | Answer:
        """The next message. ClosedError; TimeoutError by the socket's timeout, after which it may be called again."""
        while not self._ready:
            data = self._read()
            if not data:
                raise ClosedError("the container runtime closed the connection")
            self._raw += data
            self._take_frames()
        return self._ready.popleft()

    def ask(self, method: str, message: Any) -> None:
        """Call the runtime's service; the answer comes by `receive`. One at a time. ClosedError."""
        request = api.Request(service=api.RUNTIME, method=method, payload=message.SerializeToString())
        self._send(RUNTIME_STREAM, 1, _REQUEST, request.SerializeToString())

    def answer(self, call: Call, message: Any) -> None:
        """The answer to a call. ClosedError."""
        self._respond(call, api.Response(payload=message.SerializeToString()))

    def refuse(self, call: Call, text: str, code: int = api.FAILED_PRECONDITION) -> None:
        """An error as the answer: the text reaches the pod's events. ClosedError."""
        self._respond(call, api.Response(status={"code": code, "message": text}))

    def _respond(self, call: Call, response: Any) -> None:
        self._send(PLUGIN_STREAM, call.stream, _RESPONSE, response.SerializeToString())

    def _send(self, stream: int, number: int, kind: int, payload: bytes) -> None:
        message = _HEAD.pack(len(payload), number, kind, 0) + payload
        frames = bytearray()
        for at in range(0, len(message), _FRAME_BYTES):
            part = message[at : at + _FRAME_BYTES]
            frames += _FRAME.pack(stream, len(part)) + part
        try:
            self._socket.sendall(frames)
        except OSError as exc:
            raise ClosedError(f"cannot write to the container runtime: {exc.strerror or exc}") from None

    def _read(self) -> bytes:
        try:
            return self._socket.recv(_READ)
        except TimeoutError:
            raise
        except OSError as exc:
            raise ClosedError(f"cannot read from the container runtime: {exc.strerror}") from None

    def _take_frames(self) -> None:
        while len(self._raw) >= _FRAME.size:
            stream, length = _FRAME.unpack_from(self._raw)
            if stream not in self._streams or length > MAX_MESSAGE + _HEAD.size:
                raise ClosedError("the container runtime does not speak NRI: unknown frame")
            end = _FRAME.size + length
            if len(self._raw) < end:
                return
            self._streams[stream] += self._raw[_FRAME.size : end]
            del self._raw[:end]
            self._take_messages(self._streams[stream])

    def _take_messages(self, data: bytearray) -> None:
        while len(data) >= _HEAD.size:
            length, number, kind, _ = _HEAD.unpack_from(data)
            if length > MAX_MESSAGE:
                raise ClosedError(f"the container runtime sent a message of {length} bytes")
            end = _HEAD.size + length
            if len(data) < end:
                return
            payload = bytes(data[_HEAD.size : end])
            del data[:end]
            if kind == _REQUEST:
                request = _parsed(api.Request, payload)
                self._ready.append(Call(number, request.method, request.payload))
            elif kind == _RESPONSE:
                status = _parsed(api.Response, payload).status
                self._ready.append(Answer(status.code, status.message))


def _parsed(kind: Any, payload: bytes) -> Any:
    try:
        return kind.FromString(payload)
    except Exception:  # noqa: BLE001 (protobuf's implementations raise different kinds)
        raise ClosedError("the container runtime sent a message that is not ttrpc") from None
