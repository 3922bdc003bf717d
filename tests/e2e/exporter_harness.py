# SPDX-License-Identifier: Apache-2.0
"""
Exporters of nodes that have no cards: each answers over HTTP at its node's own loopback address, with our families.

What pods use is the test's word; which pods there are, and on which cards, the API server's. An exporter may hang
(the same page for ever, its time with it), be told to forget pods, speak rubbish, be slow, or be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web
from e2e.apiclient import RefusedError
from e2e.sharing import cards_of
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS

from autoscaler.kube.usage_http import rows_of
from isolation.contract import metrics
from isolation.contract.names import ALLOCATION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from e2e.apiclient import ApiClient

    from isolation.contract.metrics import MetricSpec


class Exporters:
    """All the exporters of a test, on one port."""

    def __init__(self, client: ApiClient, cards: int = 2) -> None:
        self.port = free_port()
        self._cards = cards
        self.used: Callable[[str], float | None] = lambda _name: 0.0
        """Bytes that a pod uses, by its name; None: the pod is not named."""
        self.core: Callable[[str], float] = lambda _name: 0.0
        self.heat: Callable[[str, int], float] = lambda _uuid, _pods: 0.0
        """By card and the number of its pods: how busy it is."""
        self.hangs = False
        """Measures no more: its page stays as it is."""
        self.says: Callable[[], str] | None = None
        """What is answered instead of a page."""
        self.slow = 0.0
        self.asked = 0
        self._client = client
        self._seconds: Counter[tuple[str, ...]] = Counter()
        self._counted: dict[tuple[str, ...], float] = {}
        self._pages: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._runner: web.AppRunner | None = None

    async def of(self, *nodes: str) -> None:
        """Serve these; their objects say where."""
        for node in nodes:
            self._nodes.setdefault(node, f"127.77.0.{len(self._nodes) + 1}")
            address = {"type": "InternalIP", "address": self._nodes[node]}
            await self._client.merge(f"/api/v1/nodes/{node}/status", {"status": {"addresses": [address]}})
        if self._runner is not None:
            await self.leave()
            await self.come()

    async def come(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        for address in self._nodes.values():
            await web.TCPSite(self._runner, address, self.port, reuse_address=True).start()

    async def leave(self) -> None:
        """Nobody listens any more."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    def pages(self) -> dict[str, str]:
        """What each node's exporter says."""
        return {node: self._pages.get(address, "") for node, address in self._nodes.items()}

    async def measured(self) -> None:
        """Until all of them have measured once more."""
        self._pages = {}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(self.pages().values()):  # noqa: ASYNC110 (the measuring task tells nobody)
                await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Measure several times a second, until cancelled."""
        while True:
            with contextlib.suppress(RefusedError, OSError):
                pods = (await self._client.get("/api/v1/pods"))["items"]
                if not self.hangs:
                    self._pages = {self._nodes[node]: self._page(node, pods) for node in self._nodes}
            await asyncio.sleep(0.2)

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        await asyncio.sleep(self.slow)
        local = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        return web.Response(text=self.says() if self.says is not None else self._pages.get(local, ""))

    def _page(self, node: str, pods: list[dict[str, Any]]) -> str:
        lines = [_line(metrics.SAMPLE_TIMESTAMP, time.time())]
        on: Counter[str] = Counter()
        for pod in pods:
            if pod["spec"].get("nodeName") == node and ALLOCATION in pod["metadata"].get("annotations", {}):
                lines += self._pod(node, pod)
                on.update(cards_of(pod))
        for card in range(self._cards):
            uuid = f"GPU-{node}-{card}"
            busy = self._total(self.heat(uuid, on[uuid]), node, uuid)
            lines.append(_line(metrics.CARD_BUSY_SECONDS, busy, node=node, uuid=uuid, card=card))
        return "\n".join(lines) + "\n"

    def _total(self, part: float, *of: str) -> float:
        """A counter of seconds that has grown at that rate since it was last asked for."""
        now = time.time()
        self._seconds[of] += part * (now - self._counted.get(of, now))
        self._counted[of] = now
        return self._seconds[of]

    def _pod(self, node: str, pod: dict[str, Any]) -> Iterator[str]:
        meta = pod["metadata"]
        used = self.used(meta["name"])
        if used is None or pod["status"].get("phase") != "Running":
            return
        for uuid in cards_of(pod):
            labels = {
                "namespace": meta["namespace"],
                "pod": meta["name"],
                "container": "main",
                "node": node,
                "uuid": uuid,
                "card": uuid.rsplit("-", 1)[1],
                "mode": "shared",
            }
            yield _line(metrics.CONTAINER_MEMORY_USED, used, **labels)
            seconds = self._total(self.core(meta["name"]), meta["namespace"], meta["name"], uuid)
            yield _line(metrics.CONTAINER_COMPUTE_SECONDS, seconds, **labels)


class Asked:
    """A Prometheus that scrapes the exporters whenever it is asked; its bad days are the test's word."""

    def __init__(self, exporters: Exporters) -> None:
        self.port = 0
        self.says: str | None = None
        """What is answered instead of a vector."""
        self.slow = 0.0
        self._exporters = exporters

    async def answer(self, request: web.Request) -> web.Response:
        """One instant query for one metric."""
        await asyncio.sleep(self.slow)
        if self.says is not None:
            return web.Response(text=self.says)
        result = [
            {"metric": {"node": node, **row.labels}, "value": [time.time(), str(row.value)]}
            for node, page in self._exporters.pages().items()
            for row in rows_of(page.encode())
            if row.metric == request.query["query"]
        ]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


@contextlib.asynccontextmanager
async def prometheus(exporters: Exporters) -> AsyncIterator[Asked]:
    """One, as long as the block lasts."""
    made, app = Asked(exporters), web.Application()
    app.router.add_get("/api/v1/query", made.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        await runner.cleanup()


def _line(spec: MetricSpec, value: float, **labels: object) -> str:
    assert set(labels) == set(spec.labels), spec.name
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{spec.name}{{{shown}}} {value}"


@contextlib.asynccontextmanager
async def exporting(client: ApiClient, *nodes: str) -> AsyncIterator[Exporters]:
    """Exporters of these nodes, as long as the block lasts."""
    made = Exporters(client)
    await made.of(*nodes)
    await made.come()
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.leave()
