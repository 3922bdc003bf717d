# SPDX-License-Identifier: Apache-2.0
"""
One program calls another on the same machine: a moment each way, and nothing of it survives the other's death.

Knows no protocol. Whoever is called runs the work in its own process; what it means to say as an error is a SaidError,
any other exception is a defect of ours and is noted as one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from interleave.loop import Process
    from interleave.wire import Net

_WAY_SECONDS = 0.002


class SaidError(RuntimeError):
    """The other side's answer is an error."""


class AwayError(RuntimeError):
    """Nobody answers, or whoever was about to died."""


async def call(net: Net, process: Process, work: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The answer; SaidError, AwayError. A caller that gives up does not stop the work."""
    if not process.alive:
        raise AwayError("connection refused")
    loop = net.loop
    answer: asyncio.Future[Any] = loop.create_future()

    async def serve() -> None:
        try:
            said: Any = await work()
        except SaidError as exc:
            said = exc
        except Exception as exc:  # noqa: BLE001 (every request gets an answer: this is a defect)
            loop.broken.append(f"{what} raised {exc!r} at {loop.time():.2f}")
            said = SaidError(f"internal error: {exc!r}")
        loop.later(net.draw.random() * _WAY_SECONDS, _settle, answer, said)

    def mourner() -> None:
        _settle(answer, AwayError("connection reset"))

    process.mourners.append(mourner)
    try:
        await asyncio.sleep(net.draw.random() * _WAY_SECONDS)
        if not answer.done():
            loop.spawn(process, serve(), f"{what} at {process.name}")
        return await answer
    finally:
        if mourner in process.mourners:
            process.mourners.remove(mourner)


def _settle(future: asyncio.Future[Any], said: Any) -> None:
    if future.done():
        return
    if isinstance(said, Exception):
        future.set_exception(said)
    else:
        future.set_result(said)
