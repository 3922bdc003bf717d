# SPDX-License-Identifier: Apache-2.0
"""
Waiting for something to come true: as long as no slow machine explains, and at once where it is true.

    until(lambda: pod.phase == "Running", lambda: vars(pod))
    await soon(lambda: world.nodes)
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 120.0
"""What has not happened by now never will. A test that passes does not wait so long."""


def until(check: Callable[[], Any], state: Callable[[], object] | None = None, every: float = 0.02) -> Any:
    """What `check` says, as soon as it says something; AssertionError with `state`, or what it said last."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := check()):
        assert time.monotonic() < end, _late(found, state)
        time.sleep(every)
    return found


async def soon(check: Callable[[], Any], state: Callable[[], object] | None = None, every: float = 0.01) -> Any:
    """As `until`, while the others of this event loop go on; `check` may be a coroutine function."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := await said if inspect.isawaitable(said := check()) else said):
        assert time.monotonic() < end, _late(found, state)
        await asyncio.sleep(every)
    return found


def _late(found: object, state: Callable[[], object] | None) -> str:
    return f"not within {PATIENCE_SECONDS:.0f} s: {found if state is None else state()!r}"
