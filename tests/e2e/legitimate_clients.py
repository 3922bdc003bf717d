# SPDX-License-Identifier: Apache-2.0
"""
Those whom our scheduler serves while strangers are at its port: what each answer took.

One pod after another is created, asked for with filter and bound, as kube-scheduler does it; in between come the API
server's review and the kubelet's probe. Each review and probe comes on a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import aiohttp
from e2e.kubelets import share_pod
from e2e.sharing import our_pod
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from e2e.apiclient import ApiClient
    from e2e.sharing import Replica

REVIEW = {
    "uid": "u-1",
    "operation": "CREATE",
    "namespace": "default",
    "userInfo": {"username": "x"},
    "resource": {"group": "", "version": "v1", "resource": "pods"},
    "object": share_pod("clients"),
}


class LegitimateClients:
    """Seconds by who asked: `filter`, `bind`, `review`, `probe`."""

    def __init__(self, ours: Replica, admission: int, context: ssl.SSLContext) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._ours, self._admission, self._context = ours, admission, context

    async def ask(self, client: ApiClient, prefix: str, number: int, node: str) -> None:
        """So many pods onto a node that has the room."""
        fresh = aiohttp.TCPConnector(force_close=True)
        patience = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        async with aiohttp.ClientSession() as kube, aiohttp.ClientSession(connector=fresh, timeout=patience) as others:
            for i in range(number):
                pod = await client.create(our_pod(f"{prefix}-{i}", 1, schedulerName="nobody"))
                await self._pod(kube, pod, node)
                await self._others(others)

    async def _pod(self, session: aiohttp.ClientSession, pod: dict, node: str) -> None:
        url, meta = f"http://127.0.0.1:{self._ours.sidecar}/extender", pod["metadata"]
        with self._timed("filter"):
            body = {"Pod": pod, "Nodes": None, "NodeNames": [node]}
            said = await _asked(session, f"{url}/filter", body)
            assert [node] == said["NodeNames"], said
        with self._timed("bind"):
            body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
            said = await _asked(session, f"{url}/bind", body)
            assert not said["Error"], said

    async def _others(self, session: aiohttp.ClientSession) -> None:
        body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": REVIEW}
        url = f"https://127.0.0.1:{self._admission}/admit/pods"
        with self._timed("review"):
            async with session.post(url, json=body, ssl=self._context) as answer:
                assert json.loads(await answer.text())["response"]["allowed"]
        with self._timed("probe"):
            async with session.get(f"http://127.0.0.1:{self._ours.metrics}/healthz") as answer:
                assert 200 == answer.status

    @contextlib.contextmanager
    def _timed(self, who: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[who].append(time.perf_counter() - began)


async def _asked(session: aiohttp.ClientSession, url: str, body: dict) -> dict:
    """What it says in the end: kube-scheduler, too, asks again while the API server keeps our process waiting."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with session.post(url, json=body) as answer:
                said = json.loads(await answer.text())
            if "will retry the pod" not in (said.get("Error") or ""):
                return said
            await asyncio.sleep(0.05)
