# SPDX-License-Identifier: Apache-2.0
"""
Another plugin of the container runtime, before or after the agent's: it stops time at a moment of a container's way.

The runtime asks its plugins one after the other. What a test does while this one is asked happens after the kubelet's
admission and before (index below the agent's) or after (above it) the agent's answer.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from isolation.contract.nri_api import NriEvent
from isolation.node.nri.session import NriSession, Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from isolation.node.nri.model import Adjustment, Container

    Then = Callable[[Container], Adjustment | None]

BEFORE, AFTER = "10", "95"


class _Handler:
    """Calls back once, for one container of a pod; `asked` is set when that has returned."""

    def __init__(self, pod: str, then: Then) -> None:
        self._pod, self._then = pod, then
        self._begun = False
        self.asked = threading.Event()

    def synchronize(self, sandboxes, containers) -> None:
        """Nothing."""

    def create(self, container: Container) -> Adjustment | None:
        """The moment."""
        if container.sandbox.name != self._pod or self._begun:
            return None
        self._begun = True
        found = self._then(container)
        self.asked.set()
        return found

    def start(self, container) -> None:
        """Nothing."""

    def gone(self, container, *, removed) -> None:
        """Nothing."""


@contextlib.contextmanager
def neighbour(socket: Path, index: str, pod: str, then: Then) -> Iterator[threading.Event]:
    """While the block lasts; the event is set when the moment has come."""
    handler = _Handler(pod, then)
    session = NriSession(socket, handler, plugin=Subscription("neighbour", index, tuple(NriEvent)))
    over = threading.Event()

    def forever() -> None:
        while not over.is_set():
            over.wait(session.cycle())

    thread = threading.Thread(target=forever)
    thread.start()
    try:
        while not session.in_force and thread.is_alive():
            over.wait(0.01)
        yield handler.asked
    finally:
        over.set()
        thread.join()
        session.close()
