# SPDX-License-Identifier: Apache-2.0
"""
The stand-in as a program: real gRPC over mutual TLS, the real API server, a clock that runs faster than the wall's.

    STAND_IN_SPEED=40 STAND_IN_STATUS=S python -m e2e.cluster_autoscaler.process --cloud-provider=externalgrpc [flags]

Flags and cloud configuration are cluster-autoscaler's own (`flags`); as there, files are read once, at the start, and a
mistake ends the program. After each loop the file S says what has been done since then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import aiohttp
import grpc
import yaml
from e2e.apiclient import ApiClient, RefusedError
from e2e.cluster_autoscaler.cloud import Cloud
from e2e.cluster_autoscaler.flags import FlagError, Given
from e2e.cluster_autoscaler.flags import read as read_flags
from e2e.cluster_autoscaler.loop import Autoscaler, ClusterError
from e2e.cluster_autoscaler.objects import TO_BE_DELETED, budget_of, node_of, pod_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from e2e.cluster_autoscaler.objects import Budget, Node, Pod

_API_SECONDS = 30.0


class Fast:
    """The wall's clock, so many times as fast since the start."""

    def __init__(self, speed: float) -> None:
        self._speed, self._start = speed, time.time()

    def now(self) -> float:
        """Seconds."""
        return self.at(time.time())

    def at(self, wall: float) -> float:
        """What was before the start is as much longer ago."""
        return self._start + (wall - self._start) * self._speed

    async def sleep(self, seconds: float) -> None:
        """Of this clock."""
        await asyncio.sleep(seconds / self._speed)


class RealCluster:
    """The API server; eviction and taint as cluster-autoscaler writes them."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def nodes(self) -> list[Node]:
        """All of them, by name."""
        return sorted(map(node_of, (await _done(self._client.get("/api/v1/nodes")))["items"]), key=lambda n: n.name)

    async def pods(self) -> list[Pod]:
        """Those that have not ended."""
        alive = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        found = await _done(self._client.get("/api/v1/pods", **alive))
        return [pod_of(pod) for pod in found["items"]]

    async def budgets(self) -> list[Budget]:
        """All of them."""
        return [
            budget_of(one) for one in (await _done(self._client.get("/apis/policy/v1/poddisruptionbudgets")))["items"]
        ]

    async def mark(self, node: str, *, leaving: bool) -> None:
        """NoSchedule, its value the time; at the version that was read."""
        path = f"/api/v1/nodes/{node}"
        thing = await _done(self._client.get(path))
        taints = [taint for taint in thing["spec"].get("taints") or () if taint["key"] != TO_BE_DELETED]
        if leaving:
            taints.append({"key": TO_BE_DELETED, "value": str(int(time.time())), "effect": "NoSchedule"})
        version = {"resourceVersion": thing["metadata"]["resourceVersion"]}
        await _done(self._client.merge(path, {"metadata": version, "spec": {"taints": taints or None}}))

    async def evict(self, pod: Pod, grace: float) -> None:
        """One that is gone already is evicted."""
        meta = {"name": pod.name, "namespace": pod.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        try:
            await self._client.call("POST", path, body | {"deleteOptions": {"gracePeriodSeconds": int(grace)}})
        except RefusedError as exc:
            if exc.status != 404:
                raise ClusterError(str(exc)) from exc


async def _done(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except (RefusedError, aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise ClusterError(str(exc)) from exc


@contextlib.asynccontextmanager
async def connected(config: Mapping[str, Any]) -> AsyncIterator[ApiClient]:
    """A client by certificate, of a kubeconfig as the tests write it."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    context.load_cert_chain(user["client-certificate"], user["client-key"])
    timeout = aiohttp.ClientTimeout(total=_API_SECONDS)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(cluster["server"], connector=connector, timeout=timeout) as session:
        yield ApiClient(session)


@dataclass(frozen=True, slots=True)
class Files:
    """What is read once, at the start."""

    kubeconfig: Mapping[str, Any]
    shown: Any
    """Credentials for the cloud provider; None: it is asked without."""
    expander: Any
    """The same for the expander, without a certificate of ours; None: it is not asked."""


def read(given: Given) -> Files:
    """All of them; FlagError."""
    try:
        cloud, shown = given.cloud, None
        if cloud.cert:
            authority, key, certificate = (Path(path).read_bytes() for path in (cloud.cacert, cloud.key, cloud.cert))
            ssl.create_default_context(cafile=cloud.cacert).load_cert_chain(cloud.cert, cloud.key)
            shown = grpc.ssl_channel_credentials(authority, key, certificate)
        expander = None
        if "grpc" in given.expanders:
            expander = grpc.ssl_channel_credentials(Path(given.expander_cert).read_bytes())
        return Files(yaml.safe_load(Path(given.kubeconfig).read_text()), shown, expander)
    except (OSError, yaml.YAMLError) as exc:  # ssl.SSLError is an OSError
        raise FlagError(f"Could not create gRPC client: {exc}") from exc


async def run(given: Given, files: Files, speed: float, status: Path) -> None:
    """Until it is killed."""
    clock = Fast(speed)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(files.kubeconfig))
        address, shown = given.cloud.address, files.shown
        opened = grpc.aio.secure_channel(address, shown) if shown else grpc.aio.insecure_channel(address)
        channel, expander = await stack.enter_async_context(opened), None
        if files.expander is not None:
            opened = grpc.aio.secure_channel(given.expander_url, files.expander)
            expander = await stack.enter_async_context(opened)
        cloud = Cloud(channel, expander, given.cloud.timeout)
        autoscaler = Autoscaler(RealCluster(client), cloud, clock, given.options)
        async with asyncio.TaskGroup() as group:
            group.create_task(autoscaler.run())
            group.create_task(_report(autoscaler, cloud, clock, status))


async def _report(autoscaler: Autoscaler, cloud: Cloud, clock: Fast, path: Path) -> None:
    began = clock.now()
    while True:
        environment = {
            "seconds": clock.now() - began,
            "count": dict(autoscaler.count),
            "bought": dict(autoscaler.bought),
            "asked": dict(cloud.asked),
            "kept": dict(autoscaler.findings.kept),
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(environment))
        fresh.replace(path)
        await clock.sleep(autoscaler.scan_interval)


def main() -> None:
    """From the command line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        given = read_flags(sys.argv[1:])
        files = read(given)
    except FlagError as exc:
        sys.exit(f"cluster-autoscaler: {exc}")
    speed, status = float(os.environ.get("STAND_IN_SPEED", "1")), Path(os.environ["STAND_IN_STATUS"])
    asyncio.run(run(given, files, speed, status))


if __name__ == "__main__":
    main()
