"""
The stand-in as a program: real gRPC over mutual TLS, the real API server, a clock that runs faster than the wall's.

    python -m e2e.cluster_autoscaler.process --kubeconfig=K --cloud-config=C --speed=40 --status-file=S [flags]

C is externalgrpc's configuration (address, cert, key, cacert). As there, certificates are read once, at the start.
After each loop S says what has been done since then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import aiohttp
import grpc
from e2e.apiclient import ApiClient, RefusedError
from e2e.cluster_autoscaler.cloud import Cloud
from e2e.cluster_autoscaler.loop import Autoscaler, ClusterError
from e2e.cluster_autoscaler.objects import TO_BE_DELETED, budget_of, node_of, pod_of
from e2e.cluster_autoscaler.options import Options

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
    address: str
    shown: Any
    """Credentials for the cloud provider."""
    expander: Any
    """The same for the expander, without a certificate of ours; None: it is not asked."""


def read(given: argparse.Namespace) -> Files:
    """All of them."""
    config = json.loads(given.cloud_config.read_text())
    authority, key, certificate = (Path(config[name]).read_bytes() for name in ("cacert", "key", "cert"))
    expander = None
    if given.grpc_expander_url:
        expander = grpc.ssl_channel_credentials(given.grpc_expander_cert.read_bytes())
    shown = grpc.ssl_channel_credentials(authority, key, certificate)
    return Files(json.loads(given.kubeconfig.read_text()), config["address"], shown, expander)


async def run(given: argparse.Namespace, files: Files) -> None:
    """Until it is killed."""
    names = frozenset(given.allowed_scheduler_names.split(",")) - {""}
    options = Options(
        allowed_scheduler_names=names,
        enforce_node_group_min_size=given.enforce_node_group_min_size,
        scale_down_enabled=not given.no_scale_down,
    )
    clock = Fast(given.speed)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(files.kubeconfig))
        channel = await stack.enter_async_context(grpc.aio.secure_channel(files.address, files.shown))
        expander = None
        if files.expander is not None:
            opened = grpc.aio.secure_channel(given.grpc_expander_url, files.expander)
            expander = await stack.enter_async_context(opened)
        autoscaler = Autoscaler(RealCluster(client), cloud := Cloud(channel, expander), clock, options)
        async with asyncio.TaskGroup() as group:
            group.create_task(autoscaler.run())
            group.create_task(_report(autoscaler, cloud, clock, given.status_file))


async def _report(autoscaler: Autoscaler, cloud: Cloud, clock: Fast, path: Path) -> None:
    began = clock.now()
    while True:
        told = {
            "seconds": clock.now() - began,
            "count": dict(autoscaler.count),
            "bought": dict(autoscaler.bought),
            "asked": dict(cloud.asked),
            "kept": dict(autoscaler.findings.kept),
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(told))
        fresh.replace(path)
        await clock.sleep(autoscaler.scan_interval)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser()
    for name in ("kubeconfig", "cloud-config", "status-file"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--allowed-scheduler-names", default="")
    parser.add_argument("--enforce-node-group-min-size", action="store_true")
    parser.add_argument("--no-scale-down", action="store_true")
    parser.add_argument("--grpc-expander-url", default="")
    parser.add_argument("--grpc-expander-cert", type=Path)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    given = parser.parse_args()
    asyncio.run(run(given, read(given)))


if __name__ == "__main__":
    main()
