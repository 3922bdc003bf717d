# SPDX-License-Identifier: Apache-2.0
"""
The run's time and threads in the place of the machine's, for the modules that have them by themselves.

Most of ours take time as an argument; those that watch connections and leases read the monotonic clock.
For the length of a run they read the loop's. The decisions made from it stay theirs.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING
from unittest.mock import patch

from interleave import strands
from interleave.agent import Root
from interleave.server import EPOCH

from isolation.kube import listwatch
from isolation.kube.election import Election
from isolation.node import containers, watch
from isolation.scheduler import informers, leader

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from interleave.loop import VirtualLoop


class LoopTime:
    """What is used of the module `time`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return self._loop.time()

    def time(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self._loop.time()


@contextlib.contextmanager
def run_time(loop: VirtualLoop, draw: random.Random) -> Iterator[None]:
    """Every clock is the loop's, every draw the seed's."""
    clock = LoopTime(loop)
    election = functools.partial(Election, clock=loop.time, draw=draw.random)
    follower = functools.partial(listwatch.Reflector, draw=draw.random)
    with contextlib.ExitStack() as stack:
        for module in (listwatch, watch, informers, containers):
            stack.enter_context(patch.object(module, "time", clock))
        for module in (watch, informers):
            stack.enter_context(patch.object(module, "Reflector", follower))
        stack.enter_context(patch.object(containers, "threading", strands))
        stack.enter_context(patch.object(containers, "Root", Root))
        stack.enter_context(patch("isolation.kube.informer.Reflector", follower))
        stack.enter_context(patch.object(leader, "Election", election))
        # Its looks at its own fence cost steps and decide nothing.
        stack.enter_context(patch.object(leader, "_TICK_SECONDS", 0.5))
        yield
