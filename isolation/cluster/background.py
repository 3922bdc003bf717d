"""
Tasks that last as long as their process.

Decides that a process with a broken part ends, and says with which error; knows nothing of what the tasks do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Background:
    """The first task that breaks, or ends, stops the process; its error is raised at the end."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    def keep(self, *works: Coroutine[Any, Any, None]) -> None:
        """Begin them."""
        for work in works:
            task = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._stop.set())
            self._tasks.append(task)

    async def __aexit__(self, *_: object) -> None:
        broken = [task.exception() for task in self._tasks if task.done() and not task.cancelled()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for exc in broken:
            if exc is not None:
                raise exc
