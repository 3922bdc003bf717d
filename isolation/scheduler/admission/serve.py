# SPDX-License-Identifier: Apache-2.0
"""
The admission process: answers AdmissionReviews, apart from the process that binds pods.

    python -m isolation.scheduler.admission.serve CONTROL LISTENER

Started by `supervise` with two open sockets: one to the scheduler, one that listens. Decides how many bytes may be in
flight, and the order of complete reviews: as they came, but a large one lets smaller ones pass for a while. Knows of
the cluster only what the scheduler has sent; ends when the scheduler does.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import gc
import itertools
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp import web

from isolation import logs
from isolation.contract.dialects import Offered
from isolation.contract.metrics.scheduler import BUCKETS
from isolation.contract.names import TIME_SLICES
from isolation.host.bounded_connections import Bounded, Connection, ConnectionLimits
from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, server_context
from isolation.scheduler.admission.core.admission_review import MAX_BYTES
from isolation.scheduler.admission.core.messages import (
    MAX_LINE,
    AdmissionConfiguration,
    ClusterUpdate,
    ClusterView,
    ProcessReport,
    decode,
    encode,
)
from isolation.scheduler.admission.core.webhook import SLICED, ReviewContext, review
from isolation.scheduler.http_server import connection_of, read_body, serve

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

log = logging.getLogger("isolation.scheduler.admission")  # this module runs as __main__
REQUEST_SECONDS: Final = 2.0
"""For the handshake, and for a request to arrive as a whole; the API server sends one in milliseconds."""
MAX_CONNECTIONS: Final = 256
"""An API server has at most 200 writes in flight by default; more connections wait in the kernel's queue."""
MAX_HELD_BYTES: Final = 16 << 20
"""Of bodies that are incomplete or wait for their decision."""
PASSED_BYTES_PER_SECOND: Final = 2 << 20
"""A review lets smaller ones pass for a second per so many bytes. If the smallest were always first, small ones without
end would keep all others from being answered."""
MAX_MEMORY_BYTES: Final = 640 << 20
"""Of this process, by the kernel: what all bounds together allow, and as much again."""
REPORT_SECONDS: Final = 1.0
_NICE: Final = 5
"""The scheduler goes first where both need the same core."""


@dataclass(slots=True, eq=False)
class _PendingReview:
    """One that is being received, or waits for its decision."""

    connection: Connection
    number: int
    name: str = ""
    """Last step of the path: which webhook sent it."""
    size: int = 0
    due: float = 0.0
    """When no smaller one passes it any more, on the loop's clock."""
    whole: bytes | None = None
    response: asyncio.Future[bytes] | None = None


class ReviewQueue:
    """Reviews from the first byte of the body to the answer."""

    def __init__(self, judge: Callable[[bytes, str], bytes], most_held: int = MAX_HELD_BYTES) -> None:
        self._judge, self._most_held = judge, most_held
        self._held: set[_PendingReview] = set()
        self._numbers = itertools.count()
        self._waiting = asyncio.Event()
        self.outcomes: Counter[str] = Counter()
        self.buckets, self.seconds = [0] * (len(BUCKETS) + 1), 0.0
        self.dropped: Counter[str] = Counter()

    def application(self) -> web.Application:
        """`/admit/*`, and nothing else."""
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_post("/admit/{name}", self._answer)
        return app

    async def run(self) -> None:
        """Decide complete reviews, one after another."""
        while True:
            waiting = [body for body in self._held if body.whole is not None]
            if not waiting:
                self._waiting.clear()
                await self._waiting.wait()
                continue
            body = min(waiting, key=lambda review: (review.due, review.number))
            self._held.discard(body)
            if body.response is not None and not body.response.done() and body.whole is not None:
                body.response.set_result(self._judge(body.whole, body.name))
            await asyncio.sleep(0)  # what arrived meanwhile is read, and may pass

    async def _answer(self, request: web.Request) -> web.Response:
        body = _PendingReview(connection_of(request), next(self._numbers), request.match_info["name"])
        self._held.add(body)
        try:
            whole = await read_body(request, MAX_BYTES, lambda size: self._limit_bytes(body, size))
            began = time.perf_counter()
            loop = asyncio.get_running_loop()
            body.response, body.due = loop.create_future(), loop.time() + len(whole) / PASSED_BYTES_PER_SECOND
            body.whole = whole
            del whole
            self._waiting.set()
            answer = await body.response
        except web.HTTPException as exc:
            self.outcomes[
                "too_large" if exc.status == web.HTTPRequestEntityTooLarge.status_code else "bad_request"
            ] += 1
            raise
        finally:
            self._held.discard(body)
            body.whole = None
        took = time.perf_counter() - began
        self.outcomes["done"] += 1
        self.buckets[bisect.bisect_left(BUCKETS, took)] += 1
        self.seconds += took
        return web.Response(body=answer, content_type="application/json")

    def _limit_bytes(self, body: _PendingReview, size: int) -> None:
        """Drop the largest body while all together are too large: a legitimate one is small."""
        body.size = size
        while sum(review.size for review in self._held) > self._most_held:
            largest = max(self._held, key=lambda review: (review.size, -review.number))
            self._held.discard(largest)
            self.dropped["bytes"] += 1
            largest.connection.drop()
            if largest.response is not None:
                largest.response.cancel()


class _ControlChannel:
    """The socket to the scheduler process: its updates, our reports."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.known = ClusterView()

    async def read_configuration(self) -> AdmissionConfiguration:
        """Read the first message."""
        return decode(await self._reader.readuntil(), AdmissionConfiguration)

    async def read_everything(self) -> None:
        """Read updates until the scheduler has sent everything once."""
        while not await self._update():
            pass

    async def run(self) -> None:
        """Read updates until the scheduler closes its end, which asks this process to stop."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._update()

    async def report(self, made: Callable[[], ProcessReport]) -> None:
        """Send a report every second until cancelled."""
        while True:
            self._writer.write(encode(made()))
            await self._writer.drain()
            await asyncio.sleep(REPORT_SECONDS)

    async def _update(self) -> bool:
        update = decode(await self._reader.readuntil(), ClusterUpdate)
        self.known.apply(update)
        return update.whole


async def run(control: socket.socket, listener: socket.socket) -> None:
    """The whole life of the process."""
    scheduler = _ControlChannel(*await asyncio.open_connection(sock=control, limit=MAX_LINE))
    configuration = await scheduler.read_configuration()
    logs.set_up(configuration.log_format, configuration.log_level)
    client_ca = Path(configuration.client_ca) if configuration.client_ca is not None else None
    files = CertificateFiles(Path(configuration.certificate), Path(configuration.key), client_ca)
    certificates = ReloadingTls(files, server_context, "admission")
    known = scheduler.known
    groups = dict(configuration.trust_groups)
    offered = Offered(configuration.dialects, known.card_sizes, configuration.unit_bytes, configuration.left)

    def judge(body: bytes, name: str) -> bytes:
        return review(
            body,
            ReviewContext(
                known.is_shared,
                known.fleet,
                known.handed,
                configuration.scheduler,
                growth=known.growth if known.synced else None,
                trust_groups=groups,
                recommended=known.recommended(time.time()),
                unit_bytes=configuration.unit_bytes,
                offered=replace(
                    offered,
                    owned=known.owned,
                    slices=known.labels_of(TIME_SLICES) if name == SLICED else None,
                ),
            ),
        )

    await scheduler.read_everything()
    gc.collect()
    gc.freeze()
    reviews, limits = ReviewQueue(judge), ConnectionLimits(MAX_CONNECTIONS, REQUEST_SECONDS)
    background: list[asyncio.Task[None]] = []
    async with serve(reviews.application(), listener, limits, log, lambda: certificates.current) as connections:
        works = (
            reviews.run(),
            certificates.run(),
            scheduler.report(lambda: _report(reviews, connections, certificates)),
        )
        background = [asyncio.create_task(work) for work in works]
        over = asyncio.create_task(scheduler.run())
        await asyncio.wait((over, *background), return_when=asyncio.FIRST_COMPLETED)
        for task in (over, *background):
            if task.done():
                task.result()
    for task in background:
        task.cancel()


def _report(reviews: ReviewQueue, connections: Bounded, certificates: ReloadingTls[ssl.SSLContext]) -> ProcessReport:
    return ProcessReport(
        outcomes=dict(reviews.outcomes),
        buckets=list(reviews.buckets),
        seconds=reviews.seconds,
        connections=len(connections),
        dropped=dict(connections.dropped + reviews.dropped),
        loaded=certificates.loaded,
        ends=certificates.end,
    )


def main(control: int, listener: int) -> None:
    """Descriptors of the two sockets."""
    import uvloop  # noqa: PLC0415 (for serving only)

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)  # of a terminal or a supervisor: the scheduler decides when we end
    os.nice(_NICE)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = MAX_MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    try:
        uvloop.run(run(socket.socket(fileno=control), socket.socket(fileno=listener)))
    except TlsError as exc:
        log.error("%s", exc)  # noqa: TRY400 (one line: the files are the operator's)
        sys.exit(1)


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
