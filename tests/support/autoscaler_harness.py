# SPDX-License-Identifier: Apache-2.0
"""A world of the autoscaler over an API server and a provider in memory, which answer as a test wants."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from support.waiting import PATIENCE_SECONDS

from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import Drain
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.usage import Nothing
from autoscaler.kube.watches import Sources
from autoscaler.providers.base import (
    ChangedError,
    InstanceState,
    PoolState,
    ProviderInstance,
)
from autoscaler.providers.core.profile import make_template
from autoscaler.providers.registry import PoolSource, Providers
from isolation.contract.codec import encode_allocation, encode_cards
from isolation.contract.codec.cursor import At
from isolation.contract.codec.node import node_of
from isolation.contract.model import Ask, Card, Placement, Request, Slice
from isolation.contract.names import ALLOCATION, CARDS, SCHEDULER
from isolation.contract.quantity import GIB
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from autoscaler.core.observation import Observation

START = 1_800_000_000.0
T = TypeVar("T")
LIMITS = ScalingLimits(action_validation_delay_seconds=0.0)


def a_node(name: str, **spec: Any) -> dict[str, Any]:
    """One card of 8 GiB."""
    room = {"cpu": "8", "memory": "64Gi", "pods": "50", "aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "1"}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"ack.node.gpu.schedule": "cgpu"},
            "annotations": {CARDS: encode_cards([Card(f"GPU-{name}", 0, 8 * GIB)])},
        },
        "spec": spec,
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_pod(
    name: str, node: str = "", units: int = 2, app: str = "web", selector: dict[str, str] | None = None
) -> dict[str, Any]:
    """A replica on a node's card; without a node it waits."""
    request = Request(1, units * GIB, asks=(Ask("main", units * GIB),))
    record = {}
    if node:
        record = {
            ALLOCATION: encode_allocation(name, request, Placement(node, (Slice(f"GPU-{node}", 0, units * GIB),)))
        }
    owner = {"kind": "ReplicaSet", "name": app, "uid": f"rs-{app}", "controller": True, "apiVersion": "apps/v1"}
    limits = {"aliyun.com/gpu-mem": str(units)}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "namespace": "default",
            "resourceVersion": "1",
            "labels": {"app": app},
            "annotations": record,
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeSelector": selector or {},
            "schedulerName": SCHEDULER,
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


class Api:
    """Objects in memory, listed and watched; writes are kept, and answered as a test wants."""

    def __init__(
        self,
        nodes: Iterable[dict[str, Any]],
        pods: Iterable[dict[str, Any]] = (),
        budgets: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.kinds: dict[str, dict[str, dict[str, Any]]] = {
            "/api/v1/nodes": {thing["metadata"]["name"]: thing for thing in nodes},
            "/api/v1/pods": {thing["metadata"]["name"]: thing for thing in pods},
            "/apis/policy/v1/poddisruptionbudgets": {thing["metadata"]["name"]: thing for thing in budgets},
            RESERVATIONS_PATH: {},
        }
        self.writes: list[tuple[str, str]] = []
        self.failed: list[tuple[str, str]] = []
        self.watched: set[str] = set()
        self.fails: dict[str, Exception] = {}
        self._news: dict[str, asyncio.Queue[bytes]] = {path: asyncio.Queue() for path in self.kinds}
        self._version = 1

    async def page(self, path: str, query: Mapping[str, str]) -> bytes:
        """As `Access.page`: what is stored, which the watches may not have told of yet."""
        items = list(self.kinds[path].values())
        if "spec.nodeName=" in query.get("fieldSelector", ""):
            node = query["fieldSelector"].rpartition("=")[2]
            items = [item for item in items if item["spec"].get("nodeName") == node]
            items = [item for item in items if item["status"]["phase"] not in ("Succeeded", "Failed")]
        return json.dumps({"metadata": {"resourceVersion": str(self._version)}, "items": items}).encode()

    async def lines(self, path: str, *_: object) -> AsyncIterator[bytes]:
        """As `Access.lines`."""
        self.watched.add(path)
        yield b""
        while True:
            yield await self._news[path].get()
            self._news[path].task_done()

    async def delivered(self) -> None:
        """Until the watches have taken in whatever was written."""
        for path, news in self._news.items():
            if path in self.watched:
                await asyncio.wait_for(news.join(), PATIENCE_SECONDS)

    def put(self, path: str, thing: dict[str, Any], kind: str = "MODIFIED") -> None:
        """As if somebody had written it."""
        name = thing["metadata"]["name"]
        if kind == "DELETED":
            self.kinds[path].pop(name, None)
        else:
            self.kinds[path][name] = thing
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._news[path].put_nowait(json.dumps({"type": kind, "object": thing}).encode())

    async def send(self, method: str, path: str, body: Any = None, *_more: object, **_options: object) -> bytes:
        """As `Access.send`."""
        for part, exc in self.fails.items():
            if part in f"{method} {path}":
                self.failed.append((method, path))
                raise exc
        where, _, name = path.rpartition("/")
        if method == "GET":
            if name not in self.kinds.get(where, {}):
                raise RefusedError(404, "NotFound", "not found")
            return json.dumps(self.kinds[where][name]).encode()
        self.writes.append((method, path))
        if method == "POST" and path == RESERVATIONS_PATH:
            thing = {**body, "metadata": {**body["metadata"], "creationTimestamp": "2027-01-15T08:00:00Z"}}
            self.kinds[path][body["metadata"]["name"]] = thing
            self.put(path, thing, "ADDED")
        elif method == "DELETE":
            gone = self.kinds[where].pop(name, None)
            if gone is None:
                raise RefusedError(404, "NotFound", "not found")
            self.put(where, gone, "DELETED")
        elif method == "PATCH":
            node = self.kinds[where][name]
            node["metadata"]["annotations"] |= body["metadata"]["annotations"]
            node["metadata"]["annotations"] = {
                k: v for k, v in node["metadata"]["annotations"].items() if v is not None
            }
            node["spec"] |= body["spec"]
            self.put(where, node)
        return b"{}"


class Machines:
    """A provider in memory, of one pool."""

    name = "memory"

    def __init__(self, *nodes: str, target: int | None = None, trouble: Exception | None = None) -> None:
        self.nodes, self.trouble = list(nodes), trouble
        self.target = len(nodes) if target is None else target
        self.failed: set[str] = set()

    async def pools(self) -> tuple[PoolState, ...]:
        """As a provider."""
        nodes = tuple(ProviderInstance(f"id-{name}", name, self._state(name)) for name in self.nodes)
        return (PoolState("a", self.target, nodes),)

    def _state(self, name: str) -> InstanceState:
        return InstanceState.FAILED if name in self.failed else InstanceState.RUNNING

    async def grow(self, _: object, by: int, seen: int | None = None) -> int:
        """As a provider."""
        if self.trouble is not None:
            raise self.trouble
        if seen != self.target:
            raise ChangedError("somebody else")
        self.target += by
        return self.target

    async def remove(self, _: object, names: Sequence[str]) -> tuple[str, ...]:
        """As a provider."""
        if self.trouble is not None:
            raise self.trouble
        gone = [name for name in names if name in self.nodes or name.removeprefix("id-") in self.nodes]
        self.nodes = [name for name in self.nodes if name not in names]
        self.target -= len(gone)
        return tuple(gone)

    async def cancel(self, _: object, by: int) -> int:
        """As a provider."""
        self.target -= by
        return self.target

    async def template(self, _: object) -> None:
        """Cannot tell."""
        return

    async def close(self) -> None:
        """Nothing is open."""
        return


class Silent:
    """Events that nobody reads."""

    async def node(self, *_: object, **__: object) -> None:
        """Nothing."""
        return

    async def pod(self, *_: object, **__: object) -> None:
        """Nothing."""
        return


class Stand:
    """A world over it all."""

    def __init__(self, api: Any, machines: Any, **more: Any) -> None:
        self.api, self.machines = api, machines
        self.fenced, self.seconds, self.ahead = "", 0.0, 0.0
        self.sources = Sources(api)
        described = a_node("any")
        described["metadata"]["labels"]["disk"] = "fast"
        profile = make_template(node_of(described))
        config = PoolConfig("a", PoolSource("a", "memory", At({})), max_nodes=5, profile=profile)
        providers = Providers({"a": machines})
        parts = ClusterParts(
            api,
            self.sources,
            providers,
            Nothing(),
            Silent(),
            lambda: self.fenced,
            lambda: START + self.seconds + self.ahead,
            steady=lambda: self.seconds,
        )
        self.world = KubeCluster(replace(parts, **more), (config,), LIMITS)

    async def __aenter__(self) -> Self:
        self._following = self.sources.following()
        await self._following.__aenter__()
        await self.sources.synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._following.__aexit__(None, None, None)

    async def heard(self) -> Observation:
        """Let the watches deliver what was written."""
        await self.api.delivered()
        return await self.world.observe()


def home(pod: str, to: str, units: int = 2) -> SuccessorReservation:
    """A place for it."""
    request = Request(1, units * GIB)
    place = Placement(to, (Slice(f"GPU-{to}", 0, units * GIB),))
    return SuccessorReservation(pod, request, place, START, START + 900)


def drained(node: str = "n1", pod: str = "p1", to: str = "n2") -> Drain:
    """A node that goes, and its one pod's home."""
    return Drain(node, (home(pod, to),), "idle")


def run(api: Api, machines: Machines, story: Callable[[Stand], Awaitable[T]], **more: Any) -> T:
    """A story on a stand."""

    async def play() -> T:
        async with Stand(api, machines, **more) as stand:
            return await story(stand)

    return asyncio.run(play())


def two() -> Api:
    """Two nodes, one pod on the first."""
    return Api([a_node("n1"), a_node("n2")], [a_pod("p1", "n1"), a_pod("p2", "n2", app="other")])
