# SPDX-License-Identifier: Apache-2.0
"""
A kube-scheduler with our extender beside it: queue, node sums, verbs over the loopback, back-off.

Kept of the stock one: only nodes whose sum of shared memory suffices are asked about; a pod that is refused
sleeps until an event of the cluster or for five minutes; an error comes back after 1 s, doubling to 10;
a bind runs beside the next decision, is given up after 5 s, and is then tried anew whatever became of it.
Its Lease is kept by the same rules as ours, and a `stubborn` one goes on without it for a while.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from interleave.informer import Informer
from interleave.loop import Process
from interleave.wire import Wire

from isolation.contract.names import ACK, SCHEDULER
from isolation.kube.core.lease import LeaseTiming
from isolation.kube.election import Election
from isolation.kube.writes import LeaseClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.server import Thing
    from interleave.wire import Net

VERB_SECONDS: Final = 5.0
ASLEEP_SECONDS: Final = 300.0
TERMS: Final = LeaseTiming(duration=5.0, act=3.0, retry=1.0, request=1.5)
LEASE: Final = ("kube-system", "kube-scheduler")


class Verbs(Protocol):
    """The extender beside it."""

    async def call(self, verb: str, body: bytes) -> bytes:
        """One request over the loopback; RuntimeError where nobody answers."""


@dataclass(slots=True)
class Waiting:
    """One pod that is to be scheduled."""

    pod: Thing
    ready: float = 0.0
    tried: int = 0
    asleep: bool = False
    binding: bool = False


class KubeScheduler:
    """See the module."""

    def __init__(self, net: Net, name: str, verbs: Verbs, say: Callable[[str], None]) -> None:
        self._net, self.name, self._verbs, self._say = net, name, verbs, say
        self.process = Process(f"kube-scheduler {name}")
        self.process.alive = False
        self.stubborn = 0.0
        """Until this moment it schedules without its Lease."""
        self.filters = "filter"
        """Or shortlist, as our own is configured to ask."""
        self._waiting: dict[str, Waiting] = {}
        self._assigned: dict[str, tuple[str, int]] = {}
        self._nodes: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._informers: list[Informer] = []
        self._news = asyncio.Event()
        self._events = 0
        """Who is being decided about when one comes is tried again, as kube-scheduler's events in flight see to."""
        self._election: Election | None = None

    def start(self) -> None:
        """With empty hands."""
        self.process = Process(f"kube-scheduler {self.name}")
        self._waiting, self._assigned, self._nodes, self._news = {}, {}, {}, asyncio.Event()
        self._net.loop.spawn(self.process, self._live(), self.process.name)

    def stop(self) -> None:
        """It dies."""
        self.process.die()
        for informer in self._informers:
            informer.close()
        self._informers.clear()

    async def _live(self) -> None:
        loop, draw = self._net.loop, self._net.draw
        desk = LeaseClient(Wire(self._net, self.process.name), *LEASE)  # type: ignore[arg-type]
        me = f"{self.name}_{draw.getrandbits(32):08x}"
        election = self._election = Election(desk, me, TERMS, clock=loop.time, draw=draw.random)
        loop.spawn(self.process, election.run(), f"lease of {self.process.name}")
        self._informers = [
            Informer(self._net, "nodes", lambda _: True, self._saw_node, lag=0.1),
            Informer(self._net, "pods", lambda _: True, self._saw_pod, lag=0.1),
        ]
        while True:
            chosen = self._next() if self._leads() else None
            if chosen is None:
                await self._pause()
            else:
                await self._schedule(chosen)

    def _leads(self) -> bool:
        now = self._net.loop.time()
        return now < self.stubborn or (self._election is not None and self._election.fence() is not None)

    async def _pause(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(0.5):
                await self._news.wait()
        except TimeoutError:
            return

    # What it sees.

    def _saw_node(self, node: Thing | None, uid: str) -> None:
        if node is not None:
            name = node["metadata"]["name"]
            units = int(node["status"]["allocatable"].get(ACK.memory, "0"))
            if self._nodes.get(name) == units:
                return
            self._nodes[name] = units
            self._names[uid] = name
        else:
            self._nodes.pop(self._names.pop(uid, ""), None)
        self._wake()

    def _saw_pod(self, pod: Thing | None, uid: str) -> None:
        if pod is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._waiting.pop(uid, None)
            if self._assigned.pop(uid, None) is not None:
                self._wake()
            return
        if pod["spec"].get("nodeName"):
            self._waiting.pop(uid, None)
            self._assigned[uid] = (pod["spec"]["nodeName"], units_of(pod))
            return
        if pod["spec"].get("schedulerName") != SCHEDULER or "deletionTimestamp" in pod["metadata"]:
            return
        known = self._waiting.get(uid)
        if known is None:
            self._waiting[uid] = Waiting(pod, self._net.loop.time())
        else:
            known.pod, known.asleep = pod, False
        self._news.set()

    def _wake(self) -> None:
        """An event of the cluster: everybody may try again."""
        self._events += 1
        for waiting in self._waiting.values():
            waiting.asleep = False
        self._news.set()

    # What it does.

    def _next(self) -> Waiting | None:
        now = self._net.loop.time()
        ready = [
            one
            for one in self._waiting.values()
            if not one.binding and one.ready <= now and (not one.asleep or now >= one.ready + ASLEEP_SECONDS)
        ]
        return min(ready, key=lambda one: (-one.pod["spec"]["priority"], one.tried, one.ready), default=None)

    async def _schedule(self, one: Waiting) -> None:
        units, before = units_of(one.pod), self._events
        used: dict[str, int] = {}
        for node, taken in self._assigned.values():
            used[node] = used.get(node, 0) + taken
        names = [name for name, room in self._nodes.items() if room - used.get(name, 0) >= units]
        self._net.draw.shuffle(names)
        try:
            node = await self._choose(one, names) if names else ""
        except RuntimeError as exc:
            self._say(f"{one.pod['metadata']['name']} is not scheduled by {self.name}: {exc}")
            self._later(one)
            return
        if not node:
            self._later(one, asleep=self._events == before)
            return
        uid = one.pod["metadata"]["uid"]
        if self._waiting.get(uid) is not one:
            return
        one.binding = True
        self._assigned[uid] = (node, units)
        self._net.loop.spawn(self.process, self._bind(one, node), f"binding of {one.pod['metadata']['name']}")

    async def _choose(self, one: Waiting, names: list[str]) -> str:
        said = await self._ask(self.filters, {"Pod": one.pod, "Nodes": None, "NodeNames": names})
        if said.get("Error"):
            raise RuntimeError(said["Error"])
        fit = [name for name in said.get("NodeNames") or () if name in names]
        if not fit:
            why = {**(said.get("FailedNodes") or {}), **(said.get("FailedAndUnresolvableNodes") or {})}
            self._say(f"{one.pod['metadata']['name']} is refused at {self.name}: {why}")
        if len(fit) < 2:
            return fit[0] if fit else ""
        scores = await self._ask("prioritize", {"Pod": one.pod, "Nodes": None, "NodeNames": fit})
        best = max(score["Score"] for score in scores)
        return str(self._net.draw.choice([score["Host"] for score in scores if score["Score"] == best]))

    async def _bind(self, one: Waiting, node: str) -> None:
        meta = one.pod["metadata"]
        ask = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        try:
            said = await self._ask("bind", ask)
            error = said.get("Error")
        except RuntimeError as exc:
            error = str(exc)
        one.binding = False
        if error:
            self._say(f"{meta['name']} is not bound by {self.name}: {error}")
            if self._waiting.get(meta["uid"]) is one:
                self._assigned.pop(meta["uid"], None)
            self._later(one)
            self._wake()

    async def _ask(self, verb: str, body: Any) -> Any:
        try:
            async with asyncio.timeout(VERB_SECONDS):
                return json.loads(await self._verbs.call(verb, json.dumps(body).encode()))
        except TimeoutError:
            raise RuntimeError(f"{verb}: deadline exceeded") from None

    def _later(self, one: Waiting, *, asleep: bool = False) -> None:
        one.tried += 1
        one.asleep = asleep
        one.ready = self._net.loop.time() + min(10.0, 2.0 ** (one.tried - 1))


def units_of(pod: Thing) -> int:
    """What the in-tree filter counts: the larger of the running sum and each init with the sidecars before it."""
    sidecars = most = 0
    for container in pod["spec"]["initContainers"]:
        units = _units(container)
        most = max(most, sidecars + units)
        if container.get("restartPolicy") == "Always":
            sidecars += units
    return max(most, sidecars + sum(_units(container) for container in pod["spec"]["containers"]))


def _units(container: Thing) -> int:
    return int(container["resources"]["limits"].get(ACK.memory, "0"))
