# SPDX-License-Identifier: Apache-2.0
"""
What one loop of a cluster-autoscaler costs the autoscaler's process at 5,000 nodes, call by call.

The calls are those of 1.36.1's externalgrpc client, one after the other: groups and the group of a pool's node are kept
until the next Refresh, a node of no pool is asked about nine times. `answering` is the servicer alone: what is done
between a decoded question and the answer's bytes. `whole` is all that the server's process computes, `bare` the same
number of calls of the same size answered by an empty function: gRPC's own part. Seconds of processor time of all
threads; the client is another process.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import grpc

from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.core.wire import cloud as wire
from autoscaler.apis.rpc.handler import CallPolicy
from autoscaler.apis.rpc.provider_groups import OfferedPool, ProviderGroups
from autoscaler.apis.rpc.server import GrpcPort, serve
from autoscaler.providers.base import PoolState, ProviderInstance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

NODES: Final = 5_000
POOLS: Final = 10
ASKED_OF_NOBODYS: Final = 9
BAR_SECONDS: Final = 0.2
RUNS: Final = 3
_LABELS: Final = {f"node.example.com/label-{number}": f"value-{number}" for number in range(20)}
_NOTES: Final = {f"node.example.com/annotation-{number}": "x" * 60 for number in range(10)}
"""As many as a cloud's nodes have."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many of the nodes are in a pool."""

    name: str
    pooled: int

    def provider_pools(self) -> tuple[PoolState, ...]:
        """Evenly over the pools."""
        found = []
        for number in range(POOLS):
            mine = range(number, self.pooled, POOLS)
            nodes = tuple(ProviderInstance(f"cloud:///zone/i-{at:017x}", f"node-{at}.example.com") for at in mine)
            found.append(PoolState(f"pool-{number}", len(nodes), nodes))
        return tuple(found)

    def calls(self) -> Iterator[tuple[str, Any]]:
        """One loop's, method by method."""
        yield "GPULabel", {}
        yield "Refresh", {}
        yield "NodeGroups", {}
        for number in range(POOLS):
            for method in ("NodeGroupNodes", "NodeGroupTargetSize", "NodeGroupTargetSize"):
                yield method, {"id": f"pool-{number}"}
        for at in range(NODES):
            ident, name = f"cloud:///zone/i-{at:017x}", f"node-{at}.example.com"
            node = {"providerID": ident, "name": name, "labels": _LABELS, "annotations": _NOTES}
            for _ in range(1 if at < self.pooled else ASKED_OF_NOBODYS):
                yield "NodeGroupForNode", {"node": node}


FLEETS: Final = (Fleet("all in pools", NODES), Fleet("half in pools", NODES // 2), Fleet("none in pools", 0))


class Cloud:
    """A provider in memory."""

    name = "memory"

    def __init__(self, fleet: Fleet) -> None:
        self._pools = fleet.provider_pools()

    async def pools(self) -> tuple[PoolState, ...]:
        """All of them."""
        return self._pools


class _Nobody:
    """Who asks, where nobody is asked who it is."""

    def time_remaining(self) -> float:
        """As cluster-autoscaler gives us."""
        return 5.0

    def auth_context(self) -> dict[str, Any]:
        """Without TLS."""
        return {}


class _Bare:
    """Answers anything with a few bytes."""

    def handler(self) -> Any:
        """As `autoscaler.apis.rpc.server.GrpcService`."""
        answer = wire.METHODS["NodeGroupForNode"][1](
            nodeGroup=wire.NodeGroup(id="pool-0", maxSize=1000, debug="x" * 40)
        )

        async def run(_request: Any, _context: Any) -> Any:
            return answer

        kinds = {
            name: grpc.unary_unary_rpc_method_handler(run, asked.FromString, _bytes)
            for name, (asked, _) in wire.METHODS.items()
        }
        return grpc.method_handlers_generic_handler(wire.SERVICE, kinds)

    async def finish(self, _seconds: float) -> None:
        """Nothing was begun."""


def measure(name: str) -> None:
    """One fleet in this process; its figures as one line of JSON."""
    fleet = next(each for each in FLEETS if each.name == name)
    print(json.dumps(_measured(fleet)))


def _measured(fleet: Fleet) -> dict[str, Any]:
    calls = [(method, wire.METHODS[method][0](**fields)) for method, fields in fleet.calls()]
    answering = median(asyncio.run(_answering(_service(fleet), calls)) for _ in range(RUNS))
    whole, took = _through(_service(fleet), fleet)
    bare, _ = _through(_Bare(), fleet)
    return {
        "nodes": NODES,
        "pooled": fleet.pooled,
        "calls": len(calls),
        "answering_seconds": answering,
        "whole_seconds": whole,
        "bare_seconds": bare,
        "loop_seconds": took,
    }


def _service(fleet: Fleet) -> CloudProvider:
    provider: Any = Cloud(fleet)
    relay = ProviderGroups([OfferedPool(f"pool-{number}", provider) for number in range(POOLS)])
    return CloudProvider(relay, CallPolicy(tally=_Tally()))


class _Tally:
    """Who counts."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        """Nothing: the metrics' part is not ours to weigh here."""


async def _answering(service: CloudProvider, calls: list[tuple[str, Any]]) -> float:
    """The servicer's seconds, without gRPC."""
    found = {}
    for method in {method for method, _ in calls}:
        detail: Any = _Details(f"/{wire.SERVICE}/{method}")
        handler = service.handler().service(detail)
        found[method] = handler.unary_unary, handler.response_serializer
    nobody = _Nobody()
    began = time.process_time()
    for method, request in calls:
        run, serialize = found[method]
        serialize(await run(request, nobody))
    return time.process_time() - began


@dataclass(frozen=True, slots=True)
class _Details:
    """Of a call, as a generic handler is asked."""

    method: str
    invocation_metadata: tuple[()] = ()


def _through(service: Any, fleet: Fleet) -> tuple[float, float]:
    """Seconds that the server's process computes for one loop, and that the loop takes."""
    near, far = multiprocessing.get_context("spawn").Pipe()
    client = multiprocessing.get_context("spawn").Process(target=_client, args=(far, fleet.name), daemon=True)
    client.start()
    try:
        return asyncio.run(_serve(service, near))
    finally:
        client.join()


async def _serve(service: Any, pipe: Connection) -> tuple[float, float]:
    async with serve(GrpcPort("127.0.0.1", 0), [service]) as number:
        say = asyncio.to_thread
        await say(pipe.send, number)
        await say(pipe.recv)  # connected
        began, clock = time.process_time(), time.monotonic()
        await say(pipe.send, "go")
        await say(pipe.recv)
        return time.process_time() - began, time.monotonic() - clock


def _client(pipe: Connection, name: str) -> None:
    """One loop of calls, one after the other; everything is encoded before it begins."""
    fleet = next(each for each in FLEETS if each.name == name)
    calls = [(method, wire.METHODS[method][0](**fields).SerializeToString()) for method, fields in fleet.calls()]
    with grpc.insecure_channel(f"127.0.0.1:{pipe.recv()}") as channel:
        asks = {method: channel.unary_unary(f"/{wire.SERVICE}/{method}") for method in wire.METHODS}
        asks["GPULabel"](b"", timeout=5.0)
        pipe.send("connected")
        pipe.recv()
        for method, raw in calls:
            asks[method](raw, timeout=5.0)
        pipe.send("done")


def _bytes(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text


def compared(json_out: Path | None) -> bool:
    """Every figure beside its bar; whether all were met."""
    met, document = True, {}
    for fleet in FLEETS:
        found = document[fleet.name] = _measured(fleet)
        good = found["answering_seconds"] <= BAR_SECONDS
        met &= good
        print(f"{NODES} nodes, {fleet.name}: {found['calls']} calls in a loop of {found['loop_seconds']:.1f} s")
        print(
            f"  answering {found['answering_seconds']:.3f} s (bar {BAR_SECONDS:g} s): {'met' if good else 'MISSED'}; "
            f"with gRPC {found['whole_seconds']:.2f} s, of which gRPC alone {found['bare_seconds']:.2f} s"
        )
    if json_out:
        json_out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return met
