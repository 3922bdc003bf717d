# SPDX-License-Identifier: Apache-2.0
"""
Everything that dashboards show, alive at once, and a real Prometheus that scrapes it.

    async with whole(plane, tmp_path) as prometheus: ...

`gpushare up` as its users start it (simulated cards, tenants under the library, the real exporter, the embedded
cluster); on the real control plane our scheduler, a node agent with a second exporter on its cards, and the
autoscaler. What is rare is made to happen: a pod waits, one is pre-empted, a card reports errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.apiclient import connected
from e2e.autoscaler_harness import Growing, forget, pool_node
from e2e.autoscaler_process import LEASE, STATE, SWITCH, autoscaler, config, one_pool
from e2e.machine_deployments import MachineDeployments
from e2e.node_harness import PODS, stage
from e2e.sharing import clear, our_pod, prepare, priorities, replica, scheduler_file, untainted
from e2e.usage_history import WHERE, known
from support.ports import free_port
from support.prometheus_harness import stand
from support.simbox import HOLD, Program, programs
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.rightsizing.codec import encode
from autoscaler.core.rightsizing.history import ProgramKey
from dashboards.rules.render import PLAIN
from dashboards.rules_cli import COMMITTED
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane
    from e2e.sharing import Replica
    from support.prometheus_harness import Stand

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, str(ROOT / "gpushare.py"))
NODE, POOL = "dash-node", "gpu-a"
STAY_SECONDS = 4.0


@contextlib.contextmanager
def running(folder: Path, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One `gpushare` process; ended with the block."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextlib.contextmanager
def up(folder: Path, speed: float) -> Iterator[dict[str, str]]:
    """`gpushare up` on free ports: host and port by what listens there."""
    addresses = folder / "addresses.json"
    words = ("--port", "0", "--addresses", str(addresses), "--for", "900", "--speed", str(speed))
    with running(folder, "up", "up", *words) as process:
        end = time.monotonic() + PATIENCE_SECONDS
        while not addresses.is_file() or not addresses.read_text().strip():
            assert process.poll() is None, (folder / "up.log").read_text()
            assert time.monotonic() < end, "gpushare up named no addresses"
            time.sleep(0.1)
        named = json.loads(addresses.read_text())
        yield {name: url.removeprefix("http://") for name, url in named.items() if url}
        assert process.poll() is None, (folder / "up.log").read_text()


@contextlib.contextmanager
def exporter(folder: Path, cards: Path, run_dir: Path, cgroups: Path) -> Iterator[str]:
    """
    The exporter of the node agent's cards: its address.

    `cgroups`: of the stand-in kubelet. In this machine's, a real kubelet that is tested meanwhile has other pods.
    """
    where = f"127.0.0.1:{free_port()}"
    words = (
        "--simgpu",
        str(cards),
        "--agent-state-dir",
        str(run_dir),
        "--cgroup",
        str(cgroups),
        "--listen",
        where,
        "--interval",
        "1s",
        "--no-kubernetes",
        "--collect",
        "all",
    )
    named = ("--node", NODE, "--pool", "shared", "--mode", "cgpu", "--isolation", "library")
    with running(folder, "exporter", "exporter", *words, *named):
        yield where


async def shared_out(client: ApiClient) -> None:
    """Pods of low priority on every card of the node, then one of high priority that fits by sum alone."""
    await priorities(client)
    here = {"nodeSelector": {"kubernetes.io/hostname": NODE}}
    for name in ("low-a", "low-b"):
        await client.create(our_pod(name, 8, priorityClassName="low", **here))
        await client.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/{name}")
    await client.create(our_pod("vip", 10, priorityClassName="high", **here))
    await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/vip")


async def used_before(client: ApiClient) -> None:
    """An earlier leader has seen the programs of the pods to come: there are recommendations at once."""
    namespace, _, name = WHERE.removeprefix("/api/v1/namespaces/").split("/")
    history = known(time.time())
    await client.delete(WHERE)  # of another test's autoscaler
    keys = [ProgramKey("default", f"Pod/{pod}", "main", "Tesla-T4") for pod in ("low-a", "low-b", "vip")]
    await client.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": {"history": encode(dict.fromkeys(keys, history))},
        }
    )


async def bought(client: ApiClient) -> None:
    """A pod for which a node is bought, and one that no pool could ever host."""
    await client.create(our_pod("grows", 12, priorityClassName="low"))
    await client.create(our_pod("too-large", 40, priorityClassName="low"))
    await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/grows")


@contextlib.asynccontextmanager
async def passing(client: ApiClient) -> AsyncIterator[None]:
    """Small pods come to the node and go, as long as the block lasts."""

    async def come_and_go() -> None:
        for number in itertools.count():
            path = f"{PODS}/job-{number}"
            await client.create(our_pod(f"job-{number}", 2, nodeSelector={"kubernetes.io/hostname": NODE}))
            await client.until(lambda pod: pod["status"].get("phase") == "Running", path)
            await asyncio.sleep(STAY_SECONDS)
            await client.delete(path)
            await asyncio.sleep(STAY_SECONDS)

    task = asyncio.create_task(come_and_go())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def scheduling(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[ApiClient, Replica]]:
    """Our scheduler with its certificate, and a kube-scheduler beside it."""
    pair = plane.serving_pair("dashboards", ("127.0.0.1",))
    door = (f"--admission-listen=127.0.0.1:{free_port()}", f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")
    async with connected(plane) as client:
        await prepare(client)
        with replica(plane, folder, "dash") as ours:
            ours.start(*door)
            plane.add_scheduler("kube-scheduler-ours", scheduler_file(plane, folder, ours.sidecar))
            try:
                await ours.leads()
                yield client, ours
            finally:
                plane.kill("kube-scheduler-ours")
                await clear(client)


@contextlib.asynccontextmanager
async def machines(client: ApiClient) -> AsyncIterator[None]:
    """A machine controller with an empty pool, whose nodes are served."""
    async with Growing(client, ()).alive() as kubelets:

        def made(name: str, of: str) -> dict[str, Any]:
            node = pool_node(name, of)
            kubelets.adopt(node)
            return node

        async with MachineDeployments(client, made).running() as controller:
            await controller.create(POOL, 0)
            try:
                yield
            finally:
                await forget(client)
                for path in (SWITCH, STATE, LEASE, WHERE):
                    await client.delete(path)


def broken(cards: Path) -> None:
    """Errors of a card, as its driver reports them."""
    for fault in (("xid", "48"), ("ecc-corrected", "3")):
        words = ("simgpu", "inject", str(cards), *fault)
        made = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
        assert 0 == made.returncode, made.stderr


@contextlib.asynccontextmanager
async def whole(plane: ControlPlane, folder: Path, *, speed: float = 60.0) -> AsyncIterator[Stand]:
    """See the module; scraped every second from before anything happens. `speed` is that of the embedded fleet."""
    spread = {"ack.node.gpu.placement": "spread"}
    async with (
        scheduling(plane, folder) as (client, ours),
        stage(plane, folder, NODE, **spread) as at,
        machines(client),
    ):
        await untainted(client)
        address = {"type": "InternalIP", "address": "127.0.0.1"}  # figures are asked of nodes that can be reached
        await client.merge(f"{at.node.path}/status", {"status": {"addresses": [address]}})
        await asyncio.to_thread(at.agent.page)  # waits until it serves
        agent = at.agent.words().rsplit("metrics at http://", 1)[1].split("/metrics")[0]
        with (
            programs() as strangers,
            exporter(folder, folder / "cards", at.agent.run_dir, at.kubelet.cgroups) as seen,
            autoscaler(plane, folder, "scaler") as scaler,
            up(folder, speed) as there,
        ):
            targets = {
                "gpushare-scheduler": [f"127.0.0.1:{ours.metrics}"],
                "gpushare-node": [agent],
                "gpushare-exporter": [seen, there["exporter"], there["cluster"]],
                "gpushare-autoscaler": [f"127.0.0.1:{scaler.metrics}", there["autoscaler"]],
            }
            with stand(targets, rules=[COMMITTED / PLAIN]) as prometheus:
                figures = {"source": "exporter", "port": int(seen.rpartition(":")[2])}
                scaler.config.write_text(config(one_pool(POOL), metrics=figures))
                pair = plane.serving_pair("dashboards-grpc", ("127.0.0.1",))
                await used_before(client)
                scaler.start(
                    f"--grpc-listen=127.0.0.1:{free_port()}",
                    f"--grpc-cert={pair.certificate}",
                    f"--grpc-key={pair.key}",
                )
                await scaler.shows("gpushare_autoscaler_leader", 1)
                await shared_out(client)
                await bought(client)
                await asyncio.to_thread(broken, folder / "cards")
                strangers.append(Program(folder / "cards", HOLD, BYTES=GIB, CARD=1))  # nobody promised it anything
                async with passing(client):
                    yield prometheus
