# SPDX-License-Identifier: Apache-2.0
"""
The way of one client to the server, with everything that goes wrong on it.

Stands where `isolation.kube.access.Access` stands: the same three methods, the same errors. A
request is lost on the way there, or its answer on the way back, or it arrives after its sender has
given up; a watch is late, is cut, falls silent or begins anew after 410. Which of these, is drawn
from the seed at the rates of `Weather`; nothing here knows who asks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from interleave.loop import touch_world
from interleave.server import route_of
from interleave.stream import Stream, chosen_by

from isolation.kube.core.errors import RefusedError, UnreachableError

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Callable, Mapping

    from interleave.loop import VirtualLoop
    from interleave.server import Server

_ENCODE: Final = msgspec.json.Encoder().encode
LONGEST_SECONDS: Final = 5.0
"""Of a write, as `Deadlines` has it."""


@dataclass(slots=True)
class Weather:
    """How bad it is; rates are per request or per watch event."""

    lost: float = 0.0
    """Requests that never arrive."""
    unanswered: float = 0.0
    """Requests that take effect and whose answer is lost."""
    belated: float = 0.0
    """Requests that take effect only after their sender has given up."""
    refused: float = 0.0
    """429 and 5xx."""
    slow: float = 0.0
    """Requests and events that take up to a second or two."""
    cut: float = 0.0
    """Watch events instead of which the connection breaks."""
    spoilt: float = 0.0
    """Containers that a runtime cannot make, for reasons of its own."""
    lag: float = 0.01
    """Most seconds of an ordinary way."""
    down: bool = False
    """Nothing arrives, watches are cut."""

    def rates(self) -> tuple[float, float, float, float]:
        """Of what happens to requests, in order."""
        return (self.lost, self.unanswered, self.belated, self.refused)


@dataclass(slots=True)
class Net:
    """All that clients of one server share."""

    loop: VirtualLoop
    server: Server
    draw: random.Random
    weather: Weather
    shuffled: bool = False
    """Whether watches show different objects in any order, and some changes twice."""
    cuts: list[Callable[[Exception | None], None]] = field(default_factory=list)
    """One per open watch: break it with this error, or end it."""

    def travel(self) -> float:
        """Seconds one way."""
        if self.draw.random() < self.weather.slow:
            return self.draw.random() * 2.0
        return 0.001 + self.draw.random() * self.weather.lag

    def cut_all(self, why: Exception | None = None) -> None:
        """Every open watch ends."""
        for cut in list(self.cuts):
            cut(why)


class Wire:
    """One client; `who` stands in the server's count of writes."""

    def __init__(self, net: Net, who: str) -> None:
        self._net, self._who = net, who

    async def send(
        self, method: str, path: str, body: object = None, kind: str = "json", seconds: float | None = None
    ) -> bytes:
        """One request: its answer, RefusedError, or UnreachableError (outcome unknown)."""
        touch_world()
        seconds = LONGEST_SECONDS if seconds is None else min(seconds, LONGEST_SECONDS)
        if seconds <= 0:
            raise UnreachableError("no time left for the request")
        net = self._net
        future: asyncio.Future[bytes] = net.loop.create_future()
        fate = self._fate()
        if fate == "refused":
            await asyncio.sleep(net.travel())
            touch_world()
            status = net.draw.choice((429, 500, 503, 504))
            raise RefusedError(status, "Trouble", "the server has trouble", net.draw.choice((None, 1.0)))
        if fate != "lost":
            wait = net.travel() if fate != "belated" else seconds + net.draw.random() * 3.0
            net.loop.later(wait, self._arrive, future, (method, path, body, kind), fate)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise UnreachableError(f"request timed out after {seconds:.1f} s") from None
        finally:
            touch_world()

    def _fate(self) -> str:
        if self._net.weather.down:
            return "lost"
        at = self._net.draw.random()
        for name, rate in zip(("lost", "unanswered", "belated", "refused"), self._net.weather.rates(), strict=True):
            if at < rate:
                return name
            at -= rate
        return ""

    def _arrive(self, future: asyncio.Future[bytes], request: tuple[str, str, Any, str], fate: str) -> None:
        net = self._net
        method, path, body, kind = request
        result: bytes | RefusedError
        try:
            result = _ENCODE(net.server.handle(self._who, method, path, body, kind))
        except RefusedError as exc:
            result = exc
        if not fate:
            net.loop.later(net.travel(), _deliver, future, result)

    # Lists and watches.

    async def page(self, path: str, query: Mapping[str, str]) -> bytes:
        """A whole list, as it stood at one moment on the way."""
        touch_world()
        net, kind = self._net, route_of(path).kind
        if self._fate():
            await asyncio.sleep(net.travel())
            raise UnreachableError("list timed out")
        await asyncio.sleep(net.travel())
        body = _ENCODE(net.server.all(kind, chosen_by(query)))
        await asyncio.sleep(net.travel())
        touch_world()
        return body

    async def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """An empty line once the server has agreed, then lines as they come."""
        touch_world()
        if self._fate():
            await asyncio.sleep(self._net.travel())
            raise UnreachableError("no connection")
        await asyncio.sleep(self._net.travel())
        stream = Stream(self._net, route_of(path).kind, query)
        try:
            yield b""
            while (line := await stream.next(idle_seconds)) is not None:
                touch_world()
                yield line
        finally:
            stream.close()


def _deliver(future: asyncio.Future[bytes], result: bytes | RefusedError) -> None:
    if future.done():
        return
    if isinstance(result, RefusedError):
        future.set_exception(result)
    else:
        future.set_result(result)
