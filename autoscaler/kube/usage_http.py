# SPDX-License-Identifier: Apache-2.0
"""
Figures over HTTP: from each node's exporter, or from Prometheus; bounded in number, size and time.

Decides how much is asked at once and what is kept of an answer. Whatever goes wrong costs one node its figures (or all
of them, where Prometheus is asked) and is named; it is never an error.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import aiohttp

from autoscaler.kube.usage import WANTED, WINDOW_SCRAPES, Measured, MeasurementAges, Row, uses_of
from isolation.contract import metrics
from isolation.contract.exposition import ExpositionError, parse_page, parse_query_answer
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from autoscaler.apis.metrics.core.readings import CardKey
    from autoscaler.kube.usage import ContainerUse

Past: TypeAlias = "AsyncIterator[tuple[float, dict[CardKey, ContainerUse]]]"
"""What containers used, by moments in seconds since the epoch, the oldest first."""
SECONDS: Final = 5.0
"""Deadline of one answer."""
WHOLE_SECONDS: Final = 10.0
"""Deadline of all of them together: a cycle does not wait for a thousand nodes that are silent one after another."""
AT_ONCE: Final = 64
MAX_BYTES: Final = 8 << 20
_NAMES: Final = frozenset(spec.name for spec in WANTED)
_OK: Final = 200
PAST_HOURS: Final = 7 * 24
"""Load repeats by the week, and right-sizing asks for days of it."""
_LAST: Final = (
    metrics.CONTAINER_MEMORY_PEAK,
    metrics.DENIED_ALLOCATIONS,
    metrics.CONTAINER_COMPUTE_SECONDS,
    metrics.CONTAINER_MEMORY_ALLOCATED,
)
_PAST: Final = (
    (metrics.CONTAINER_MEMORY_USED.name, f"max_over_time({metrics.CONTAINER_MEMORY_USED.name}[1h])"),
    *((spec.name, f"last_over_time({spec.name}[1h])") for spec in _LAST),
)
"""What is asked of each hour, and how: the most that was used in it, of all else the last that was measured."""


class TellError(Exception):
    """There are no figures, and why."""


class _Http:
    """One session, made when it is needed."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._seconds, self._most = seconds, most_bytes
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str, **query: str) -> bytes:
        """A whole answer; TellError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=True)
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._session.get(url, params=query, allow_redirects=False) as answer,
            ):
                if answer.status != _OK:
                    raise TellError(f"returned HTTP {answer.status}")
                return await self._bounded(answer)
        except TimeoutError:
            raise TellError(f"timed out after {self._seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise TellError(f"is unreachable: {type(exc).__name__}") from None

    async def _bounded(self, answer: aiohttp.ClientResponse) -> bytes:
        found = bytearray()
        async for chunk in answer.content.iter_any():
            found += chunk
            if len(found) > self._most:
                raise TellError(f"returned more than {self._most} bytes")
        return bytes(found)

    async def close(self) -> None:
        """Let connections go."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class _Reader(ABC):
    """What both ways have in common: one reading serves whoever asks again soon after."""

    def __init__(
        self, scrape_interval_seconds: float, steady: Callable[[], float], wall: Callable[[], float], most_bytes: int
    ) -> None:
        self._http = _Http(SECONDS, most_bytes)
        self._ages = MeasurementAges(3 * scrape_interval_seconds, WINDOW_SCRAPES * scrape_interval_seconds)
        self._pause, self._steady, self._wall = scrape_interval_seconds / 3, steady, wall
        self._latest: tuple[float, Measured] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def read(self, addresses: Mapping[str, str]) -> Measured:
        """The latest of these nodes."""
        now = self._steady()
        if self._latest is None or now - self._latest[0] >= self._pause:
            answers, failed = await self._fetch(addresses)
            self._latest = now, self._ages.joined(answers, failed, self._steady(), self._wall())
        return self._latest[1]

    @abstractmethod
    async def _fetch(self, addresses: Mapping[str, str]) -> tuple[dict[str, list[Row]], dict[str, str]]:
        """The samples by node, and by node why there are none; never an error."""


class Exporters(_Reader):
    """Each node's own exporter."""

    def __init__(
        self,
        port: int,
        scrape_interval_seconds: float,
        steady: Callable[[], float] = boottime,
        whole_seconds: float = WHOLE_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(scrape_interval_seconds, steady, wall, MAX_BYTES)
        self._port, self._whole = port, whole_seconds
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def _fetch(self, addresses: Mapping[str, str]) -> tuple[dict[str, list[Row]], dict[str, str]]:
        asked = {node: asyncio.create_task(self._one(address)) for node, address in addresses.items()}
        if asked:
            await asyncio.wait(asked.values(), timeout=self._whole)
        answers: dict[str, list[Row]] = {}
        failed: dict[str, str] = {}
        for node, task in asked.items():
            answer = task.result() if task.done() else "did not respond in time"
            task.cancel()
            if isinstance(answer, str):
                failed[node] = f"its exporter {answer}"
            else:
                answers[node] = answer
        await asyncio.gather(*asked.values(), return_exceptions=True)
        return answers, failed

    async def _one(self, address: str) -> list[Row] | str:
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._gate:
                return rows_of(await self._http.get(f"http://{host}:{self._port}/metrics"))
        except TellError as exc:
            return str(exc)


class Prometheus(_Reader):
    """A Prometheus that scrapes the exporters."""

    def __init__(
        self,
        url: str,
        scrape_interval_seconds: float,
        steady: Callable[[], float] = boottime,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(scrape_interval_seconds, steady, wall, 8 * MAX_BYTES)
        self._url = url.rstrip("/")

    async def _fetch(self, addresses: Mapping[str, str]) -> tuple[dict[str, list[Row]], dict[str, str]]:
        answers: dict[str, list[Row]] = {}
        try:
            bodies = await asyncio.gather(*(self._http.get(f"{self._url}/api/v1/query", query=s.name) for s in WANTED))
            for spec, body in zip(WANTED, bodies, strict=True):
                for row in vector_of(body, spec.name):
                    answers.setdefault(row.labels.get("node") or row.labels.get("instance", ""), []).append(row)
        except TellError as exc:
            return {}, dict.fromkeys(addresses, f"Prometheus {exc}")
        known = {node: rows for node, rows in answers.items() if node in addresses}
        return known, {node: "Prometheus has no measurements of it" for node in addresses if node not in known}

    async def past(self, now: float) -> Past:
        """
        What containers used in each hour of the last `PAST_HOURS`, the oldest first; seconds since the epoch.

        One question after the other, so that a Prometheus is not loaded. Raises TellError.
        """
        for hours in range(PAST_HOURS, 0, -1):
            # whole seconds: hours that are a little longer would be gaps in the history
            at, rows = float(int(now) - 3600 * hours), list[Row]()
            for name, query in _PAST:
                body = await self._http.get(f"{self._url}/api/v1/query", query=query, time=f"{at:.3f}")
                rows += vector_of(body, name)
            yield at, uses_of(rows)


def rows_of(page: bytes) -> list[Row]:
    """The wanted samples of a page; TellError for one that is too large."""
    try:
        return [Row(sample.name, sample.labels, sample.value) for sample in parse_page(page, _NAMES)]
    except ExpositionError as exc:
        raise TellError(str(exc)) from None


def vector_of(body: bytes, name: str) -> list[Row]:
    """An instant query's answer; TellError."""
    try:
        return [Row(name, sample.labels, sample.value) for sample in parse_query_answer(body)]
    except ExpositionError as exc:
        raise TellError(f"returned something other than an instant vector: {exc}") from None
