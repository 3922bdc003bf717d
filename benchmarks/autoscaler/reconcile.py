# SPDX-License-Identifier: Apache-2.0
"""
How long a cycle of the autoscaler takes on Kubernetes, and how long the rest of the process waits for it.

A cycle is an observation of the watched cluster, the decision, a second observation and the validation; nothing is
applied. The fleets are those of `decision`; each container's usage differs in every cycle. `cold` is the
first cycle of a process, `still` one on an unchanged fleet, `churn` one after one pod in a hundred has ended and
another was bound in its place. A cycle's parts are seconds of this process's threads: what the rest of the machine does
is not in them. By the clock are the longest stall of the event loop, the longest renewal of a Lease over HTTP, and the
longest call of gRPC by a client in another process, all while the cycle lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import multiprocessing
import resource
import tempfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from autoscaler.apis.metrics.core.readings import CardKey, LatestSnapshot, UseSample
from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.core.wire import cloud as wire
from autoscaler.apis.rpc.provider_groups import OfferedPool, ProviderGroups
from autoscaler.apis.rpc.server import GrpcPort, serve
from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.annotations import NodeNote, PodNote
from autoscaler.kube.app import YOUNG_OBJECTS
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.usage import Measured
from autoscaler.kube.watches import Sources
from autoscaler.providers.base import PoolState, ProviderInstance
from autoscaler.providers.registry import PoolSource, Providers
from benchmarks.autoscaler.decision import LARGEST_MIB, NOW, SIZES, Size, figures_of, observed
from isolation.contract.codec.cursor import At
from isolation.contract.model import Ask, Request
from isolation.contract.names import SCHEDULER
from isolation.kube.access import Access
from isolation.kube.core.lease import LeaseRecord
from isolation.kube.writes import LeaseClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from multiprocessing.connection import Connection

    from autoscaler.core.observation import Observation
    from autoscaler.providers.base import Provider

TURNS: Final = 5
CHURN: Final = 100
"""One pod in so many comes and goes between two turns."""
STALL_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 1.0
"""For a renewal of the Lease, and for a call of gRPC."""
_TICK_SECONDS: Final = 0.001
_ASK_SECONDS: Final = 0.02
_LIMITS: Final = ScalingLimits(action_validation_delay_seconds=1.0)
_NOBODY: Final = cast("Any", None)
"""Who is not asked for anything here: the API server, whose objects are put into the store directly."""


class Machines:
    """Every node of the fleet, by its pool."""

    name = "memory"

    def __init__(self, seen: Observation) -> None:
        by_pool: dict[str, list[ProviderInstance]] = {name: [] for name in seen.pools}
        for node in seen.engine.nodes.values():
            by_pool[node.pool].append(ProviderInstance(f"id-{node.name}", node.name))
        self._states = tuple(PoolState(name, len(nodes), tuple(nodes)) for name, nodes in by_pool.items())

    async def pools(self) -> tuple[PoolState, ...]:
        """All of them."""
        return self._states

    async def template(self, _: str) -> None:
        """It is learnt from the nodes."""


class Exporters:
    """Everybody's use, as of the latest measurement."""

    def __init__(self) -> None:
        self.latest = Measured()

    async def read(self, _: Mapping[str, str]) -> Measured:
        """As measured."""
        return self.latest


class Stand:
    """A world over a synthetic fleet."""

    def __init__(self, size: Size) -> None:
        seen = observed(size, churned=False)
        self.sources, self.figures, self._round = Sources(_NOBODY), Exporters(), 0
        notes, asked = self.sources.notes, dict[int, Request]()
        for node in seen.engine.nodes.values():
            notes.nodes[node.name] = node
            notes.of_node[node.name] = NodeNote(f"uid-{node.name}", 1.0, f"id-{node.name}", "10.0.0.1")
        for pod in seen.pods.values():
            labels, owner = {"app": pod.request.owner}, f"uid-{pod.request.owner}"
            request = asked.setdefault(id(pod.request), _with_container(pod.request))
            notes.pods[pod.uid] = replace(pod, request=request, owner_uid=owner, labels=labels)
            notes.of_pod[pod.uid] = PodNote(SCHEDULER)
        for one in self.sources.followers.values():
            one.synced.set()
            one.heard = time.monotonic()
        machines = cast("Provider", Machines(seen))
        configs = [
            PoolConfig(pool.name, PoolSource(pool.name, "memory", At({})), max_nodes=pool.max_nodes, price=pool.price)
            for pool in seen.pools.values()
        ]
        parts = ClusterParts(
            access=_NOBODY,
            sources=self.sources,
            providers=Providers({one.name: machines for one in configs}),
            usage=self.figures,
            events=_NOBODY,
            fence=lambda: "",
            now=lambda: NOW,
            steady=lambda: float(self._round),
            sleep=self._settled,
            board=LatestSnapshot(),
        )
        self.world = KubeCluster(parts, configs, _LIMITS)

    async def _settled(self, _: float) -> None:
        """No time needs to pass."""

    def measure(self) -> None:
        """Exporters tell again, and watches have been heard."""
        self._round += 1
        used = 0.3 + self._round % 10 / 100
        samples, heat = {}, {}
        for pod in self.sources.notes.pods.values():
            for hold in pod.holds:
                samples[CardKey(hold.pod.split("/")[0], pod.name, hold.container, hold.uuid)] = UseSample(
                    hold.bytes, used
                )
                heat[hold.uuid] = used
        self.figures.latest = Measured(samples, dict.fromkeys(self.sources.notes.nodes, float(self._round)), heat)
        for one in self.sources.followers.values():
            one.heard = time.monotonic()

    def churn(self) -> None:
        """Some pods end, and others are bound in their place."""
        notes = self.sources.notes
        for pod in [pod for pod in notes.pods.values() if pod.placement is not None][self._round :: CHURN]:
            name = f"{pod.uid.split('+')[0]}+{self._round}"
            notes.pods[name] = replace(pod, uid=name, name=name)
            notes.of_pod[name] = PodNote(SCHEDULER)
            notes.pod_gone(pod.uid)

    async def turn(self) -> dict[str, float]:
        """One turn in which nothing is done: seconds of each part."""
        began = time.process_time()
        seen = await self.world.observe()
        read = time.process_time()
        plan, _ = await asyncio.to_thread(decide, seen, _LIMITS, AutoscalerState())
        decided = time.process_time()
        await self.world.settle(_LIMITS.action_validation_delay_seconds)
        plan.still_valid(await self.world.observe())
        done = time.process_time()
        return {"observe": read - began, "decide": decided - read, "recheck": done - decided, "turn": done - began}


def _with_container(request: Request) -> Request:
    """One container asks for all of it."""
    if request.whole or not request.cards:
        return request
    ask = Ask("main", request.cards * request.card_bytes, request.cards * request.card_core)
    return replace(request, asks=(ask,))


class _LeaseServer(BaseHTTPRequestHandler):
    """An API server that has one Lease, and takes whatever is written."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """The Lease as it was written, under another version."""
        lease = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lease["metadata"]["resourceVersion"] = str(time.monotonic_ns())
        body = json.dumps(lease).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def _outside(pipe: Connection) -> None:
    """In another process: the API server of the Lease, and a client of gRPC whose longest call is asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _LeaseServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_port)
    asked, _ = wire.METHODS["NodeGroups"]
    with grpc.insecure_channel(f"127.0.0.1:{pipe.recv()}") as channel:
        call, longest = channel.unary_unary(f"/{wire.SERVICE}/NodeGroups"), 0.0
        while True:
            began = time.monotonic()
            call(asked().SerializeToString(), timeout=30.0)
            longest = max(longest, time.monotonic() - began)
            if pipe.poll(_ASK_SECONDS):
                if pipe.recv() == "end":
                    return
                pipe.send(longest)
                longest = 0.0


class Waits:
    """How long others of the process waited since they were last asked, in seconds by the clock."""

    def __init__(self, leases: LeaseClient, pipe: Connection) -> None:
        self._leases, self._pipe = leases, pipe
        self._stall = self._lease = 0.0

    async def beat(self) -> None:
        """Want to run every millisecond, until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self._stall, last = max(self._stall, now - last), now

    async def renew(self) -> None:
        """Renew the Lease again and again, until cancelled."""
        record: LeaseRecord | None = LeaseRecord("1", "me", 8.0, 1)
        while record is not None:
            began = time.monotonic()
            record = await self._leases.write(record, 30.0)
            self._lease = max(self._lease, time.monotonic() - began)
            await asyncio.sleep(_ASK_SECONDS)

    async def take(self) -> dict[str, float]:
        """What was longest; from now on again."""
        await asyncio.to_thread(self._pipe.send, "longest")
        found = {"stall": self._stall, "lease": self._lease, "grpc": await asyncio.to_thread(self._pipe.recv)}
        self._stall = self._lease = 0.0
        return found


@contextlib.asynccontextmanager
async def _waiting() -> AsyncIterator[Waits]:
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    outside = context.Process(target=_outside, args=(far,), daemon=True)
    outside.start()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        server = f"http://127.0.0.1:{pipe.recv()}"
        named = {"clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "c", "user": {}}]}
        context_ = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}], "current-context": "c"}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | named | context_), encoding="utf-8")
        service = CloudProvider(
            ProviderGroups([OfferedPool("pool", cast("Provider", Machines(observed(SIZES[0], churned=False))))])
        )
        async with Access(kubeconfig) as access, serve(GrpcPort("127.0.0.1", 0), [service]) as number:
            pipe.send(number)
            waits = Waits(LeaseClient(access, "default", "lease"), pipe)
            tasks = [asyncio.create_task(waits.beat()), asyncio.create_task(waits.renew())]
            try:
                yield waits
            finally:
                for task in tasks:
                    task.cancel()
                pipe.send("end")
                await asyncio.to_thread(outside.join, 10.0)


async def _measure_cycle(stand: Stand, waits: Waits) -> dict[str, float]:
    """One cycle's figures."""
    await asyncio.sleep(10 * _ASK_SECONDS)
    await waits.take()
    taken = await stand.turn()
    await asyncio.sleep(10 * _ASK_SECONDS)
    return taken | await waits.take()


def measure(name: str) -> None:
    """One size in this process; its figures as one line of JSON."""
    size = next(each for each in SIZES if each.name == name)
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])  # as the process does
    print(json.dumps(asyncio.run(_measured(Stand(size)))))


async def _measured(stand: Stand) -> dict[str, Any]:
    found: dict[str, Any] = {}
    stand.measure()
    async with _waiting() as waits:
        found["cold"] = _middle([await _measure_cycle(stand, waits)])
        for kind in ("still", "churn"):
            taken = []
            for _ in range(TURNS):
                stand.measure()
                if kind == "churn":
                    stand.churn()
                taken.append(await _measure_cycle(stand, waits))
            found[kind] = _middle(taken)
    return {
        "nodes": len(stand.sources.notes.nodes),
        "pods": len(stand.sources.notes.pods),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "turns": found,
    }


def _middle(taken: list[dict[str, float]]) -> dict[str, float]:
    return {part: median(one[part] for one in taken) for part in taken[0]} | {
        "worst": max(one["turn"] for one in taken),
        **{f"worst_{wait}": max(one[wait] for one in taken) for wait in ("stall", "lease", "grpc")},
    }


def compared(json_out: Path | None) -> bool:
    """Every figure beside its bar; whether all were met."""
    met, document = True, {}
    for size in SIZES:
        found = document[size.name] = figures_of("kube", size)
        print(f"{size.name}: {found['nodes']} nodes, {found['pods']} pods")
        for kind, times in found["turns"].items():
            answered = max(times["worst_lease"], times["worst_grpc"]) <= ANSWER_SECONDS
            good = times["worst"] <= size.seconds and times["worst_stall"] <= STALL_SECONDS and answered
            met &= good
            parts = ", ".join(f"{part} {times[part]:.3f}" for part in ("observe", "decide", "recheck"))
            took = f"median {times['turn']:.3f} s ({parts}), worst {times['worst']:.3f} s (bar {size.seconds:g} s)"
            stall = f"longest stall {times['worst_stall']:.3f} s (bar {STALL_SECONDS:g} s)"
            waits = f"Lease {times['worst_lease']:.3f} s, gRPC {times['worst_grpc']:.3f} s (bar {ANSWER_SECONDS:g} s)"
            print(f"  {kind} cycle: {took}; {stall}; {waits}: {'met' if good else 'MISSED'}")
        light = found["peak_mib"] <= LARGEST_MIB
        met &= light
        print(f"  peak memory {found['peak_mib']} MiB (bar {LARGEST_MIB} MiB: {'met' if light else 'MISSED'})")
    if json_out:
        json_out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return met
