# SPDX-License-Identifier: Apache-2.0
"""
How a question on a gRPC port becomes an answer or an error: who may ask, for how long, what a failure is called.

Decides the status code; what is answered is the service's business. Whatever was begun is carried to its end
when its caller hangs up or its time is over: half an action would be worse than an answer that nobody hears.
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Answer = Callable[[Any], Awaitable[Any] | Any]
    """What comes from memory may come at once: a task for each call would cost more than the answer."""

log = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 4.0
"""cluster-autoscaler hangs up after 5 s and then learns no reason."""
_LONGEST_SAID: Final = 500
_NAMES: Final = ("x509_common_name", "x509_subject_alternative_name")

NOT_FOUND: Final = grpc.StatusCode.NOT_FOUND
INVALID: Final = grpc.StatusCode.INVALID_ARGUMENT
REFUSED: Final = grpc.StatusCode.FAILED_PRECONDITION
UNIMPLEMENTED: Final = grpc.StatusCode.UNIMPLEMENTED
UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


class StatusError(Exception):
    """The answer is this status."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class CallCounter(Protocol):
    """Where it is noted how questions were answered."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        """One answer, by the name of its status."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How a port answers."""

    seconds: float = ANSWER_SECONDS
    callers: frozenset[str] | None = None
    """Names in client certificates that may ask; None: whoever reaches the port."""
    tally: CallCounter | None = None

    def serves(self, callers: Mapping[str, Any]) -> bool:
        """Whether the peer with this authentication may ask."""
        if self.callers is None:
            return True
        found = (name for key in _NAMES for name in callers.get(key, ()))
        return any(name.decode(errors="replace") in self.callers for name in found)


class MethodHandlers:
    """One service: methods by name, each with what it takes; answers through `CallPolicy`."""

    def __init__(self, name: str, methods: Mapping[str, tuple[Any, Any]], manners: CallPolicy) -> None:
        self.name, self._methods, self._manners = name, methods, manners
        self._under_way: set[asyncio.Task[Any]] = set()

    def handler(self, answers: Mapping[str, Answer], streams: Mapping[str, Callable[[Any], Any]] | None = None) -> Any:
        """For the server; a method without an answer says UNIMPLEMENTED."""
        handlers = {}
        for name, (asked, _) in self._methods.items():
            if streams and name in streams:
                handlers[name] = grpc.unary_stream_rpc_method_handler(
                    self._streamed(name, streams[name]), asked.FromString, _serialize
                )
            elif name in answers:
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._answered(name, answers[name]), asked.FromString, _serialize
                )
        return grpc.method_handlers_generic_handler(self.name, handlers)

    async def finish(self, seconds: float) -> None:
        """Let what was begun come to its end, for so long."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)

    def _answered(self, name: str, answer: Answer) -> Callable[[Any, Any], Awaitable[Any]]:
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
            if self._manners.tally is not None:
                self._manners.tally.answered(f"{self.name}/{name}", code.name, time.monotonic() - began)
            if code is not grpc.StatusCode.OK:
                await context.abort(code, why)
            return said

        return run

    def _streamed(self, name: str, answer: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any, Any], Any]:
        async def run(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                self._check(context)
                async for one in answer(request):
                    yield one
            except Exception as exc:  # noqa: BLE001 (likewise)
                await context.abort(*_status(name, exc))

        return run

    def _check(self, context: Any) -> None:
        if not self._manners.serves(context.auth_context()):
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                "the client certificate has no name that is allowed to call this method",
            )

    async def _within(self, answer: Awaitable[Any], left: float | None) -> Any:
        """The answer, if it comes in time; a caller that hangs up ends the waiting, not the doing."""
        task = asyncio.ensure_future(answer)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.wait_for(asyncio.shield(task), min(self._manners.seconds, left or self._manners.seconds))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the waiter, if there still is one, has it too


def _status(name: str, exc: Exception) -> tuple[grpc.StatusCode, str]:
    """What a failure is called on the wire; a fault of ours is told to the log alone."""
    # what a provider said may be anything: it ends up in logs and Events of others
    why = "".join(letter if letter.isprintable() else " " for letter in str(exc)[:_LONGEST_SAID])
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
            log.error("gRPC method %s failed", name, exc_info=exc)
            return grpc.StatusCode.INTERNAL, f"{name} failed; see the log of the autoscaler"


def _serialize(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text
