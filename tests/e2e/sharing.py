# SPDX-License-Identifier: Apache-2.0
"""
The scheduler process beside a real kube-scheduler, for tests: replicas come, are killed and come again.

Every process dies with the test. Pods here carry what admission would have set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.admission_harness import until_tried
from e2e.apiclient import RefusedError, connected
from e2e.kubelets import share_pod, shared_node
from e2e.manifest_files import documents
from support.children import DIES_WITH_US
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS, until

from isolation.contract.codec import decode_allocation, encode_cards
from isolation.contract.model import Card
from isolation.contract.names import ACK, ALLOCATION, CARD_COUNT, CARD_UNITS, CARDS, SCHEDULER, SHARED, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.contract.reservation import definition
from isolation.host.process import read_living
from isolation.scheduler.core import kube_scheduler_config as kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

PODS = "/api/v1/namespaces/default/pods"
_COMMAND = "from isolation.scheduler.cli import scheduler; scheduler()"


class Replica:
    """One process of ours."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, kubeconfig: Path | None = None) -> None:
        self.name, self._folder, self._kubeconfig = name, folder, kubeconfig or plane.kubeconfig
        self.sidecar, self.metrics = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._launcher = ThreadPoolExecutor(1)

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, *more: str, **env: str) -> None:
        """Begin; `up` waits until it serves."""
        options = {
            "kubeconfig": self._kubeconfig,
            "admission-listen": "none",
            "extender-listen": f"127.0.0.1:{self.sidecar}",
            "metrics-listen": f"127.0.0.1:{self.metrics}",
        }
        given = [f"--{key}={value}" for key, value in options.items()]
        command = [*DIES_WITH_US, sys.executable, "-c", _COMMAND, *given, *more]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = self._launcher.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"HOSTNAME": self.name} | env,
            ).result()

    def send(self, kind: signal.Signals) -> None:
        """Freeze, thaw, end."""
        assert self._process is not None
        self._process.send_signal(kind)

    def end(self, kind: signal.Signals = signal.SIGKILL, seconds: float = 20) -> int:
        """Its exit status, once its own processes have gone as well."""
        process, self._process = self._process, None
        if process is None:
            return 0
        children: list[int] = []
        with contextlib.suppress(FileNotFoundError):  # it has ended by itself
            children += map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(kind)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait(10)
        until(lambda: not any(read_living(pid) for pid in children))
        return status

    def log(self) -> str:
        """What it said."""
        return (self._folder / f"{self.name}.log").read_text(errors="replace")

    async def probe(self, path: str) -> tuple[int, str]:
        """Of its metrics port; 0 where nobody answers."""
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{self.metrics}{path}")

    async def leads(self, seconds: float = PATIENCE_SECONDS) -> float:
        """Wait until it leads and knows the cluster; the seconds it took."""
        return await self.answers("/leader", seconds)

    async def answers(self, path: str, seconds: float = PATIENCE_SECONDS) -> float:
        """Wait until a probe is well; the seconds it took."""
        began, said = time.monotonic(), ""
        while time.monotonic() < began + seconds:
            status, said = await self.probe(path)
            if status == 200:
                return time.monotonic() - began
            if self._process is None or self._process.poll() is not None:
                raise AssertionError(f"{self.name} ended: {self.log()[-3000:]}")
            await asyncio.sleep(0.05)
        raise AssertionError(f"{self.name}: {path} says {said!r} after {seconds:.0f} s: {self.log()[-3000:]}")

    async def metric(self, name: str) -> float:
        """Sum over all samples of a series."""
        _, page = await self.probe("/metrics")
        lines = (line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def replica(plane: ControlPlane, folder: Path, name: str, kubeconfig: Path | None = None) -> Iterator[Replica]:
    """One that is not started yet; ended with the block."""
    made = Replica(plane, folder, name, kubeconfig)
    try:
        yield made
    finally:
        made.end(signal.SIGTERM)  # gives the Lease back: the next test need not wait for it


def scheduler_file(
    plane: ControlPlane, folder: Path, sidecar: int, kubeconfig: Path | None = None, **more: Any
) -> Path:
    """Our kube-scheduler's configuration, for a plane where it needs no Lease."""
    config = kube.sidecar_config(
        f"127.0.0.1:{sidecar}", str(kubeconfig or plane.kubeconfig_for("system:kube-scheduler"))
    )
    config |= {"leaderElection": {"leaderElect": False}} | more
    path = folder / f"kube-{sidecar}.json"
    path.write_text(json.dumps(config))
    return path


async def prepare(client: ApiClient) -> None:
    """Our namespace and our kind."""
    for thing in ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}, definition()):
        with contextlib.suppress(RefusedError):
            await client.create(thing)
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition()['metadata']['name']}"
    await client.until(
        lambda crd: any(
            c["type"] == "Established" and c["status"] == "True" for c in crd.get("status", {}).get("conditions") or ()
        ),
        path,
    )


def kube_environment() -> dict[str, str]:
    """What the manifests set for our kube-scheduler."""
    pods = [one["spec"]["template"]["spec"] for one in documents() if one["kind"] == "Deployment"]
    found = [box for pod in pods for box in pod["containers"] if box["name"] == "kube-scheduler"]
    return {one["name"]: one["value"] for box in found for one in box["env"]}


@contextlib.asynccontextmanager
async def sharing(
    plane: ControlPlane, folder: Path, *more: str, kubeconfig: Path | None = None, beside: Path | None = None
) -> AsyncIterator[tuple[ApiClient, Replica]]:
    """One replica that leads, and a kube-scheduler `beside` it; each by its credentials, else by certificates."""
    async with connected(plane) as client:
        await prepare(client)
        with replica(plane, folder, "one", kubeconfig) as made:
            made.start(*more)
            config = scheduler_file(plane, folder, made.sidecar, beside)
            plane.add_scheduler("kube-scheduler-ours", config, **kube_environment())
            try:
                await made.leads()
                yield client, made
            finally:
                plane.kill("kube-scheduler-ours")
                await clear(client)


async def untainted(client: ApiClient) -> None:
    """Every node may be used: new ones carry a taint until the node controller has seen them."""
    await client.until(lambda nodes: not any(n["spec"].get("taints") for n in nodes["items"]), "/api/v1/nodes")


async def priorities(client: ApiClient) -> None:
    """Classes `high` and `low`, known to the API server's admission too, which reads them from a cache."""
    for name, value in (("high", 1000), ("low", 10)):
        thing = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        with contextlib.suppress(RefusedError):
            await client.create(thing | {"value": value})
        await until_tried(client, our_pod("probe", priorityClassName=name), "")


async def clear(client: ApiClient, namespace: str = "default") -> None:
    """No pod, no workload, no reservation stays."""
    for group, plural in (("apps/v1", "deployments"), ("apps/v1", "statefulsets"), ("batch/v1", "jobs")):
        await client.delete(f"/apis/{group}/namespaces/{namespace}/{plural}?propagationPolicy=Background")
    await client.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0", force=True)
    await client.delete("/apis/gpushare.dev/v1alpha1/reservations")
    await client.until(lambda pods: not pods["items"], f"/api/v1/namespaces/{namespace}/pods")


def card_node(name: str, cards: int = 4, gib: int = 15, mode: str = "cgpu", **labels: str) -> dict[str, Any]:
    """A node whose agent has named and counted its cards."""
    node = shared_node(name, cards, gib, mode, **labels)
    named = [Card(f"GPU-{name}-{i}", i, gib * GIB, model="Tesla-T4") for i in range(cards)]
    node["metadata"]["annotations"] = {CARDS: encode_cards(named)}
    node["metadata"]["labels"] |= {CARD_UNITS: str(gib), CARD_COUNT: str(cards)}
    return node


def our_pod(name: str, units: int = 2, cards: int = 1, **spec: Any) -> dict[str, Any]:
    """A pod as admission leaves it."""
    added = {"schedulerName": SCHEDULER, "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
    pod = share_pod(name, units, cards, **(added | spec))
    pod["metadata"]["labels"][SHARED] = "true"
    return pod


def workload(kind: str, name: str, replicas: int, pod: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Deployment or StatefulSet of such pods."""
    labels = {"app": name}
    template = {"metadata": {"labels": pod["metadata"]["labels"] | labels}, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec | more}


def ordinary_workload(name: str, replicas: int, cpu: str) -> dict[str, Any]:
    """Replicas that the stock scheduler places."""
    box = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    pod = {"metadata": {"labels": {}}, "spec": {"containers": [box], "terminationGracePeriodSeconds": 1}}
    return workload("Deployment", name, replicas, pod)


def cards_of(pod: dict[str, Any]) -> list[str]:
    """UUIDs of the pod's record, ours."""
    return [part.uuid for part in decode_allocation(pod["metadata"]["annotations"][ALLOCATION]).slices]


def vendor_record(pod: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The vendor's record."""
    return json.loads(pod["metadata"]["annotations"][ACK.allocation_annotation])


def taken(pods: list[dict[str, Any]]) -> dict[str, int]:
    """GiB promised by card, by the records of these pods."""
    total: dict[str, int] = {}
    for pod in pods:
        if ALLOCATION in pod["metadata"].get("annotations", {}):
            for part in decode_allocation(pod["metadata"]["annotations"][ALLOCATION]).slices:
                total[part.uuid] = total.get(part.uuid, 0) + part.bytes // GIB
    return total


def bound(pods: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that have a node."""
    return [pod for pod in pods["items"] if pod["spec"].get("nodeName")]


def why_pending(pod: dict[str, Any]) -> str:
    """What kube-scheduler wrote down."""
    found = [c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
    return found[0].get("message", "") if found else ""


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 (loopback)
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()
    except OSError as exc:
        return 0, str(exc)
