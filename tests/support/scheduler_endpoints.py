# SPDX-License-Identifier: Apache-2.0
"""A whole scheduler without Kubernetes: the real wiring over an API server that is a dictionary."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec import encode_cards
from isolation.contract.model import Card
from isolation.contract.names import ACK, CARDS, SHARED
from isolation.contract.quantity import GIB
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.errors import RefusedError
from isolation.kube.core.lease import LeaseRecord, LeaseTiming
from isolation.kube.store import Store
from isolation.kube.writes import Outcome, PodLocation, WriteResult
from isolation.scheduler.binder import Binder
from isolation.scheduler.core.cache import SchedulerCache
from isolation.scheduler.core.unschedulable import UnschedulableQueue
from isolation.scheduler.extender import Extender, SchedulerContext
from isolation.scheduler.informers import Informers
from isolation.scheduler.leader import Leadership
from isolation.scheduler.live_read import LiveRead

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

TERMS = LeaseTiming(duration=400.0, act=300.0, retry=0.2, request=50.0)


@dataclass
class Server:
    """Objects by path, watches that can be fed, and bindings as they arrive."""

    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    bindings: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    version: int = 1
    pages: int = 0
    feeds: dict[str, asyncio.Queue[bytes]] = field(default_factory=dict)

    async def page(self, path: str, query: Mapping[str, str]) -> bytes:
        """A whole list; by node where that is asked for."""
        self.pages += 1
        items = self.objects.get(path, [])
        node = dict(
            part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if "!=" not in part and part
        )
        if "spec.nodeName" in node:
            items = [one for one in items if one["spec"].get("nodeName") == node["spec.nodeName"]]
        if path == RESERVATIONS_PATH and path not in self.objects:
            raise RefusedError(404, "NotFound")
        return json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": items}).encode()

    async def lines(self, path: str, _query: Mapping[str, str], _idle: float) -> AsyncGenerator[bytes, None]:
        """What the test feeds, without end."""
        feed = self.feeds.setdefault(path, asyncio.Queue())
        yield b""
        while True:
            yield await feed.get()
            feed.task_done()

    async def tell(self, path: str, kind: str, thing: dict[str, Any]) -> None:
        """One event of a watch, until whoever watches has taken it in."""
        self.version += 1
        thing = thing | {"metadata": thing["metadata"] | {"resourceVersion": str(self.version)}}
        feed = self.feeds.setdefault(path, asyncio.Queue())
        await feed.put(json.dumps({"type": kind, "object": thing}).encode())
        await asyncio.wait_for(feed.join(), PATIENCE_SECONDS)

    async def bind(
        self, pod: Any, node: str, annotations: Mapping[str, str], _seconds: float | None = None
    ) -> WriteResult:
        """Always well."""
        self.bindings.append((pod.uid, node, annotations))
        return WriteResult(Outcome.DONE)

    async def placed(self, _pod: Any, _seconds: float | None = None) -> PodLocation | None:
        """Nobody asks where answers never fail."""
        return None


@dataclass
class Desk:
    """A Lease in memory."""

    record: LeaseRecord | None = None

    async def read(self, _seconds: float) -> LeaseRecord | None:
        """As it is."""
        return self.record

    async def write(self, wish: LeaseRecord, _seconds: float) -> LeaseRecord | None:
        """Under its version."""
        if (self.record.version if self.record else "") != wish.version:
            return None
        self.record = replace(wish, version=str(int(wish.version or "0") + 1))
        return self.record


@contextlib.asynccontextmanager
async def extending(
    server: Server, desk: Desk | None = None, *, leads: bool = True, clock: Callable[[], float] = time.time
) -> AsyncIterator[tuple[Extender, SchedulerContext]]:
    """The verbs over this server, synced and leading."""
    cache, store = SchedulerCache(), Store()
    informers = Informers(server, cache, store)
    leadership = Leadership(desk or Desk(LeaseRecord("1", "", 0.4, 0)), "me", terms=TERMS)
    binder = Binder(cache, server, leadership.fence)
    world = SchedulerContext(
        informers, leadership, binder, LiveRead(server, informers), UnschedulableQueue(), GIB, clock
    )
    async with informers.following():
        running = asyncio.create_task(leadership.run())
        try:
            await asyncio.wait_for(informers.synced(), PATIENCE_SECONDS)
            if leads:
                assert await leadership.wait(PATIENCE_SECONDS)
            yield Extender(world), world
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def node(name: str, cards: int = 2, gib: int = 15) -> dict[str, Any]:
    """A node whose agent is alive."""
    amounts = {ACK.memory: str(cards * gib), ACK.card_count: str(cards), "cpu": "8", "memory": "64Gi", "pods": "110"}
    named = [Card(f"GPU-{name}-{i}", i, gib * GIB, model="Tesla-T4") for i in range(cards)]
    meta = {"name": name, "uid": name, "labels": {ACK.mode_label: "cgpu"}, "annotations": {CARDS: encode_cards(named)}}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    return {"metadata": meta, "spec": {}, "status": status}


def pod(uid: str, units: int | str = 4, *, label: bool = True, **spec: Any) -> dict[str, Any]:
    """A pod as it is sent to the extender."""
    meta = {"name": f"pod-{uid}", "namespace": "default", "uid": uid, "labels": {SHARED: "true"} if label else {}}
    limits = {ACK.memory: str(units)} if units else {}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}, "status": {"phase": "Pending"}}


def args(what: dict[str, Any], *names: str) -> bytes:
    """A body for filter and prioritize."""
    return json.dumps({"Pod": what, "Nodes": None, "NodeNames": list(names)}).encode()


def bind_args(uid: str, node_name: str, name: str = "") -> bytes:
    """A body for bind."""
    return json.dumps(
        {"PodName": name or f"pod-{uid}", "PodNamespace": "default", "PodUID": uid, "Node": node_name}
    ).encode()
