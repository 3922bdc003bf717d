# SPDX-License-Identifier: Apache-2.0
"""
How Kubernetes' own programs see objects: a watch that is late but never wrong.

They are not under test; what is kept of the truth is that each sees at its own time, that an outage
stops all of them, and that what was missed arrives as the latest state.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.server import Happened, Thing
    from interleave.wire import Net


class Informer:
    """One kind, chosen by a predicate; `saw(object or None, uid)` is called in order."""

    def __init__(
        self,
        net: Net,
        kind: str,
        chosen: Callable[[Thing], bool],
        saw: Callable[[Thing | None, str], None],
        lag: float = 0.05,
    ) -> None:
        self._net, self._kind, self._chosen, self._saw, self._lag = net, kind, chosen, saw, lag
        self._last = net.loop.time()
        self._open = True
        self._coming: deque[tuple[Thing | None, str]] = deque()
        self.synced = False
        net.server.watchers.append(self._happened)
        for thing in list(net.server.things[kind].values()):
            if chosen(thing):
                self._push(thing, thing["metadata"]["uid"])
        self._push(None, "")

    def close(self) -> None:
        """Nobody listens any more."""
        self._open = False
        if self._happened in self._net.server.watchers:
            self._net.server.watchers.remove(self._happened)

    def _happened(self, happened: Happened) -> None:
        if happened.kind != self._kind:
            return
        before, after = happened.before, happened.after
        if after is not None and self._chosen(after):
            self._push(after, after["metadata"]["uid"])
        elif before is not None and self._chosen(before):
            self._push(None, before["metadata"]["uid"])

    def _push(self, thing: Thing | None, uid: str) -> None:
        now = self._net.loop.time()
        self._last = max(self._last, now + self._net.draw.random() * self._lag)
        self._coming.append((thing, uid))
        self._net.loop.later(self._last - now, self._arrive)

    def _arrive(self) -> None:
        if not self._open:
            return
        if self._net.weather.down:
            self._net.loop.later(0.5, self._arrive)
            return
        thing, uid = self._coming.popleft()
        if not uid:
            self.synced = True
        else:
            self._saw(thing, uid)
