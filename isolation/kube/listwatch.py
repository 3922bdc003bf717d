# SPDX-License-Identifier: Apache-2.0
"""
List and watch of one kind of object, without end, whatever happens to the connection (client-go calls it a reflector).

Decides when to list, when to resume a watch, when a silence is a dead connection, and how long to pause. What an object
means is the `Sink`'s business, how bytes travel the `Source`'s. While the server cannot be reached the sink keeps what
it has. Objects of a list count at once; objects that it does not name go with its last page: while a list is read a
card is rather counted twice than not at all.

Facts used: a bookmark comes about once a minute where asked for, if anything happened; a watch ends at the server's
`timeoutSeconds`; 410 means list again, also between two pages, when the first page's version was compacted away.
Source: Kubernetes, "API concepts" (efficient detection of changes; large results).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from isolation.kube.core.backoff import Pace, delay
from isolation.kube.core.errors import ClusterError, GoneError, MalformedError, RefusedError, refusal
from isolation.kube.core.wire import event_of, identity_of
from isolation.kube.paging import PAGE, PageSource, list_pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping

    import msgspec

log = logging.getLogger(__name__)
_PAGED_ATTEMPTS: Final = 2
"""After so many lists that outlived their version the next one comes in one piece."""
_YIELD_EVERY: Final = 50
"""Objects of a list that are read before others get their turn: some milliseconds."""
_SHORT_SECONDS: Final = 1.0


class Source(PageSource, Protocol):
    """How lists and watches reach us; both raise ClusterError."""

    def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """An empty line once the server has agreed, then lines as they come; UnreachableError after a silence."""


class Sink(Protocol):
    """Where objects go. Keys are whatever `put` returns; both may raise MalformedError."""

    def put(self, raw: msgspec.Raw) -> str:
        """An object as it is now."""

    def drop(self, raw: msgspec.Raw) -> None:
        """An object that is gone, as it was last."""

    def only(self, keys: frozenset[str]) -> None:
        """Every object but these is gone."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects."""

    path: str
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """The selectors, as the API server takes them."""
        given = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How often, how much, how long."""

    page: int = PAGE
    """Objects per page."""
    watch_seconds: float = 300.0
    """The server ends a watch after this, spread upwards by a half."""
    idle_seconds: float = 90.0
    """A silence longer than a bookmark's interval, one minute, may be a dead connection: the watch is restarted."""
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class WatchCounters:
    """What happened so far: for metrics and for tests."""

    lists: int = 0
    events: int = 0
    watches: int = 0
    failures: int = 0
    broken: int = 0
    """Objects of which not even the name could be read."""


class Reflector:
    """Keeps a sink up to date; `run` ends only by cancellation."""

    def __init__(
        self,
        source: Source,
        selection: Selection,
        sink: Sink,
        options: WatchOptions | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._source, self._selection, self._sink, self._draw = source, selection, sink, draw
        self._options = options or WatchOptions()
        self._version: str | None = None
        self._outlived = 0
        self.synced = asyncio.Event()
        """Set once the first list is complete; stays set."""
        self.heard: float | None = None
        """When the server last said anything about this, on the monotonic clock."""
        self.count = WatchCounters()

    @property
    def version(self) -> int | None:
        """Everything up to this version was received; None before the first list, or where versions are no numbers."""
        return int(self._version) if self._version is not None and _is_number(self._version) else None

    async def run(self) -> None:
        """List, watch, resume; pause after failures."""
        failures = forgotten = 0
        while True:
            began, asked = time.monotonic(), None
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                failures += 1
            except GoneError:
                log.info("relisting %s: resource version %s has expired", self._selection.path, self._version)
                self._version = None
                # The server answers again: what came before it forgot us counts no more.
                failures = forgotten = forgotten + 1
            except ClusterError as exc:
                failures, forgotten = self._count_failures(failures, began), 0
                asked = exc.retry_after if isinstance(exc, RefusedError) else None
                level = logging.WARNING if failures else logging.INFO
                log.log(
                    level, "cannot list or watch %s: %s (consecutive_failures=%d)", self._selection.path, exc, failures
                )
            else:
                # A watch that ends at once is a failure too: without a pause it would be a storm.
                failures = 0 if time.monotonic() - began >= _SHORT_SECONDS else failures
                forgotten = 0
            self.count.failures += failures > 0
            await asyncio.sleep(delay(failures, self._draw(), self._options.pace, asked))

    def _count_failures(self, so_far: int, began: float) -> int:
        """
        Failures in a row, from 1 again where the server was heard for a while in between.

        A watch to which it agreed and of which nothing came may be dead or only quiet (a server whose store moves no
        version on sends no bookmarks either): looking again at once tells.
        """
        if self.heard is not None and self.heard >= began and time.monotonic() - began >= self._options.idle_seconds:
            return 0
        return 1 if self.heard is not None and self.heard - began >= _SHORT_SECONDS else so_far + 1

    async def _list(self) -> None:
        """Every page; then what none of them named is gone."""
        self.count.lists += 1
        query = self._selection.query()
        if self._outlived < _PAGED_ATTEMPTS:
            query["limit"] = str(self._options.page)
        keys: set[str] = set()
        version = ""
        try:
            async with aclosing(list_pages(self._source, self._selection.path, query)) as pages:
                async for page in pages:
                    self.heard = time.monotonic()
                    version = page.metadata.resourceVersion
                    for i, raw in enumerate(page.items or ()):
                        key = self._put(raw)
                        if key is not None:
                            keys.add(key)
                        if i % _YIELD_EVERY == 0:
                            await asyncio.sleep(0)
        except GoneError:
            self._outlived += 1
            raise
        # Only a whole list can say what is gone: a failed one has removed nothing.
        self._sink.only(frozenset(keys))
        self._outlived = 0
        self._version = version
        self.synced.set()

    async def _watch(self) -> None:
        """Until the server ends it."""
        self.count.watches += 1
        # spread, or all watches of a restarted server would end and begin again together
        seconds = self._options.watch_seconds * (1.0 + 0.5 * self._draw())
        query = self._selection.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        async with aclosing(self._source.lines(self._selection.path, query, self._options.idle_seconds)) as lines:
            async for line in lines:
                self.heard = time.monotonic()
                if line:
                    self._apply_event(line)

    def _apply_event(self, line: bytes) -> None:
        event = event_of(line)
        if event.type == "ERROR":
            raise refusal(0, event.object)
        who = identity_of(event.object)
        if event.type == "BOOKMARK":
            self._version = who.resourceVersion or self._version
            return
        # A resumed watch may repeat events; one that was applied twice would undo a newer one.
        if not self._is_new(who.resourceVersion):
            return
        self.count.events += 1
        if event.type == "DELETED":
            self._sink.drop(event.object)
        elif event.type in ("ADDED", "MODIFIED"):
            self._put(event.object)
        else:
            raise MalformedError(f"unknown type of watch event: {event.type[:40]!r}")
        self._version = who.resourceVersion or self._version

    def _is_new(self, version: str) -> bool:
        """Versions of one kind grow with every event; one not above the last was already told."""
        last = self._version or ""
        if not (_is_number(version) and _is_number(last)):
            return True
        return int(version) > int(last)

    def _put(self, raw: msgspec.Raw) -> str | None:
        """The object's key; None for one that has none, which is counted and left out."""
        try:
            return self._sink.put(raw)
        except MalformedError as exc:
            self.count.broken += 1
            log.error("cannot read object of %s: %s", self._selection.path, exc)  # noqa: TRY400 (no stack: the input is at fault)
            return None


@asynccontextmanager
async def running(reflectors: Iterable[Reflector]) -> AsyncIterator[None]:
    """Follow in the background of the block; what breaks a reflector for good breaks the block, as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.run()) for one in reflectors]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as exc:
        raise exc.exceptions[0] from None


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdigit() and len(version) <= 20  # noqa: PLR2004 (64 bits in decimal)
