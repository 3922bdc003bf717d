# SPDX-License-Identifier: Apache-2.0
"""
One watch as one client has it: every change that a selector shows, each late in its own way.

A watch is cut, ends, falls silent; which of these, is `Weather`'s. In a shuffled run the changes of one
object come in order and some of them twice, those of different objects in any order: its versions are
opaque then, so that no client can put it right, and nothing can be resumed. Selectors are read as far as
ours use them: equality and inequality.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, Final

import msgspec
from interleave.loop import PROCESS

from isolation.kube.core.errors import GoneError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from interleave.server import Happened, Thing
    from interleave.wire import Net

_ENCODE: Final = msgspec.json.Encoder().encode
BOOKMARK_SECONDS: Final = 10.0
OPAQUE: Final = "v"
"""Before a version that is no number: clients must not compare it."""


class Stream:
    """One watch."""

    def __init__(self, net: Net, kind: str, query: Mapping[str, str]) -> None:
        self._net, self._kind, self._chosen = net, kind, chosen_by(query)
        self._due: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._last: dict[str, float] = {}
        """When the last line arrives, by object in a shuffled run; else under one key."""
        self._mute = False
        self._ends = net.loop.time() + float(query.get("timeoutSeconds", "300"))
        self._woken = asyncio.Event()
        self._over = False
        self._fault: Exception | None = None
        version = query.get("resourceVersion") or "0"
        if version.startswith(OPAQUE):
            raise GoneError(410, "Expired", "nothing is resumed in a shuffled run")
        missed = net.server.since(kind, int(version))
        net.server.watchers.append(self._saw)
        net.cuts.append(self.break_off)
        for happened in missed:
            self._saw(happened)
        self._mark = net.loop.later(BOOKMARK_SECONDS, self._bookmark)
        process = PROCESS.get()
        if process is not None:
            process.mourners.append(self.close)

    def break_off(self, why: Exception | None) -> None:
        """What is on its way is lost."""
        self._over, self._fault = True, why
        self._due.clear()
        self._woken.set()

    def close(self) -> None:
        """Nobody listens any more."""
        self._mark.cancel()
        if self._saw in self._net.server.watchers:
            self._net.server.watchers.remove(self._saw)
        if self.break_off in self._net.cuts:
            self._net.cuts.remove(self.break_off)

    async def next(self, idle_seconds: float) -> bytes | None:
        """The next line; None at the end."""
        loop = self._net.loop
        quiet = loop.time() + idle_seconds
        while not self._over:
            now = loop.time()
            if self._due and self._due[0][0] <= now:
                return heapq.heappop(self._due)[2]
            if now >= self._ends:
                return None
            if now >= quiet:
                raise UnreachableError(f"silent for {idle_seconds:.0f} s")
            until = min(quiet, self._ends, self._due[0][0] if self._due else quiet)
            self._woken.clear()
            waker = loop.call_later(max(0.0, until - now) + 1e-9, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                waker.cancel()
        if self._fault is not None:
            raise self._fault
        return None

    def _saw(self, happened: Happened) -> None:
        if happened.kind != self._kind or self._over:
            return
        event = selected(happened, self._chosen)
        if event is None:
            return
        draw = self._net.draw
        if draw.random() < self._net.weather.cut:
            self._mute = draw.random() < 0.3  # half open: nobody says that it is broken
            if not self._mute:
                self.break_off(draw.choice((None, UnreachableError("connection reset"))))
        if self._over or self._mute:
            return
        kind, thing = event
        if not self._net.shuffled:
            self._put("", kind, thing)
            return
        version = f"{OPAQUE}{happened.version}"
        thing = {**thing, "metadata": {**thing["metadata"], "resourceVersion": version}}
        for _ in range(2 if draw.random() < 0.15 else 1):
            self._put(thing["metadata"].get("uid", ""), kind, thing)

    def _put(self, about: str, kind: str, thing: Thing) -> None:
        self._last[about] = max(self._last.get(about, 0.0), self._net.loop.time() + self._net.travel())
        self._serial += 1
        heapq.heappush(self._due, (self._last[about], self._serial, _ENCODE({"type": kind, "object": thing})))
        self._woken.set()

    def _bookmark(self) -> None:
        if self._over or self._mute or self._net.shuffled:
            return
        self._put("", "BOOKMARK", {"metadata": {"resourceVersion": str(self._net.server.version)}})
        self._mark = self._net.loop.later(BOOKMARK_SECONDS, self._bookmark)


def selected(happened: Happened, chosen: Callable[[Thing], bool]) -> tuple[str, Thing] | None:
    """A change as a selector shows it; None where it does not."""
    before, after = happened.before, happened.after
    was = before is not None and chosen(before)
    if after is not None and chosen(after):
        return ("MODIFIED" if was else "ADDED"), after
    if not was or before is None:
        return None
    version = {"resourceVersion": str(happened.version)}
    return "DELETED", {**before, "metadata": {**before["metadata"], **version}}


def chosen_by(query: Mapping[str, str]) -> Callable[[Thing], bool]:
    """The selectors of a request; only equality and inequality, as we use them."""
    labels = [_term(term) for term in query.get("labelSelector", "").split(",") if term]
    fields = [_term(term) for term in query.get("fieldSelector", "").split(",") if term]

    def chosen(thing: Thing) -> bool:
        own = thing["metadata"].get("labels", {})
        return all((own.get(key, "") == value) is same for key, same, value in labels) and all(
            (_field(thing, key) == value) is same for key, same, value in fields
        )

    return chosen


def _term(term: str) -> tuple[str, bool, str]:
    if "!=" in term:
        key, value = term.split("!=", 1)
        return key, False, value
    key, value = term.replace("==", "=").split("=", 1)
    return key, True, value


def _field(thing: Thing, path: str) -> str:
    at: Any = thing
    for word in path.split("."):
        at = at.get(word, {}) if isinstance(at, dict) else {}
    return at if isinstance(at, str) else ""
