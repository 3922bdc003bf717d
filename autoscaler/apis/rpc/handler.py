# SPDX-License-Identifier: Apache-2.0
"""
How a gRPC call becomes a reply or an error: which clients may call, the deadline, the status code of a failure.

What is replied is decided by each service. A call that has begun is finished even if its client disconnects or its
deadline passes: half an action would be worse than a reply that is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is loaded; else it writes into our log
import grpc

from autoscaler.apis.rpc.core.node_groups import NodeGroupError, NoStockError, OutcomeUnknownError
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Answer = Callable[[Any], Awaitable[Any] | Any]
    """May be synchronous where it only reads memory: a task for each call would cost more than the reply."""

log = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 4.0
"""cluster-autoscaler gives up after 5 s, and then gets no reason."""
_MAX_CHARACTERS: Final = 500
_NAMES: Final = ("x509_common_name", "x509_subject_alternative_name")

NOT_FOUND: Final = grpc.StatusCode.NOT_FOUND
INVALID: Final = grpc.StatusCode.INVALID_ARGUMENT
REFUSED: Final = grpc.StatusCode.FAILED_PRECONDITION
UNIMPLEMENTED: Final = grpc.StatusCode.UNIMPLEMENTED
UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


class StatusError(Exception):
    """The call ends with this status."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class CallCounter(Protocol):
    """Counts calls."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        """One call, by the name of its status."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The rules for calls of one service."""

    seconds: float = ANSWER_SECONDS
    callers: frozenset[str] | None = None
    """Names in client certificates that may call; None: every client."""
    tally: CallCounter | None = None

    def allows(self, callers: Mapping[str, Any]) -> bool:
        """Whether the peer with this authentication may call."""
        if self.callers is None:
            return True
        found = (name for key in _NAMES for name in callers.get(key, ()))
        return any(name.decode(errors="replace") in self.callers for name in found)


class MethodHandlers:
    """The methods of one service by name, each with its message types, under a `CallPolicy`."""

    def __init__(self, name: str, methods: Mapping[str, tuple[Any, Any]], policy: CallPolicy) -> None:
        self.name, self._methods, self._policy = name, methods, policy
        self._under_way: set[asyncio.Task[Any]] = set()

    def handler(self, answers: Mapping[str, Answer], streams: Mapping[str, Callable[[Any], Any]] | None = None) -> Any:
        """For the server; a method without an implementation is UNIMPLEMENTED."""
        handlers = {}
        for name, (asked, _) in self._methods.items():
            if streams and name in streams:
                handlers[name] = grpc.unary_stream_rpc_method_handler(
                    self._stream(name, streams[name]), asked.FromString, _serialize
                )
            elif name in answers:
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._call(name, answers[name]), asked.FromString, _serialize
                )
        return grpc.method_handlers_generic_handler(self.name, handlers)

    async def finish(self, seconds: float) -> None:
        """Wait at most so long for the calls that have begun."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)

    def _call(self, name: str, answer: Answer) -> Callable[[Any, Any], Awaitable[Any]]:
        async def run(request: Any, context: Any) -> Any:
            began = time.monotonic()
            code, why, said = grpc.StatusCode.OK, "", None
            try:
                self._check(context)
                said = answer(request)
                if asyncio.iscoroutine(said):
                    said = await self._within(said, context.time_remaining())
            except Exception as exc:  # noqa: BLE001 (whatever it is becomes a status; `_status` logs what is a fault)
                code, why = _status(name, exc)
            if self._policy.tally is not None:
                self._policy.tally.answered(f"{self.name}/{name}", code.name, time.monotonic() - began)
            if code is not grpc.StatusCode.OK:
                await context.abort(code, why)
            return said

        return run

    def _stream(self, name: str, answer: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any, Any], Any]:
        async def run(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                self._check(context)
                async for reply in answer(request):
                    yield reply
            except Exception as exc:  # noqa: BLE001 (likewise)
                await context.abort(*_status(name, exc))

        return run

    def _check(self, context: Any) -> None:
        if not self._policy.allows(context.auth_context()):
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                "the client certificate has no name that is allowed to call this method",
            )

    async def _within(self, answer: Awaitable[Any], left: float | None) -> Any:
        """The reply, if it comes in time; a client that disconnects ends the waiting, not the action."""
        task = asyncio.ensure_future(answer)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.wait_for(asyncio.shield(task), min(self._policy.seconds, left or self._policy.seconds))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it; a waiting call raises it too


def _status(name: str, exc: Exception) -> tuple[grpc.StatusCode, str]:
    """The status of a failure; the details of an internal error go to the log only."""
    # a provider's text may be anything, and ends up in logs and Events of other programs
    why = printable(str(exc), _MAX_CHARACTERS, " ")
    match exc:
        case StatusError():
            return exc.code, why
        case NoStockError():
            return grpc.StatusCode.RESOURCE_EXHAUSTED, why
        case OutcomeUnknownError():
            return UNAVAILABLE, why
        case NodeGroupError():
            return REFUSED, why
        case TimeoutError():
            return grpc.StatusCode.DEADLINE_EXCEEDED, f"{name}: timed out; the operation may still complete"
        case _:
            log.error("gRPC call failed: method=%s", name, exc_info=exc)
            return grpc.StatusCode.INTERNAL, f"{name} failed; see the log of the autoscaler"


def _serialize(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text
