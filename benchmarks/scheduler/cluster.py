# SPDX-License-Identifier: Apache-2.0
"""
The scheduler beside a real kube-scheduler on a real API server: pods a second, against vanilla in the same run.

Four parts, each printed as a line of JSON with its bar:
  flow       500 nodes: pods created through the API until all are bound, vanilla and ours in turn; CPU seconds a pod;
             medians over the turns, since a machine's speed varies from one to the next
  node       binds onto one node, asked for in parallel as kube-scheduler's bind cycles do
  strangers  binds, reviews and probes while strangers attack the admission port, against quiet ones
  restart    5,000 nodes and 40,000 pods: a process from its start to leading, and its memory
Everything shares the same cores, the load generator included. Our processes have their ServiceAccounts and environment
as in the manifests. Needs the control plane of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOW_BAR, VANILLA_PART = 100.0, 0.6  # pods a second, or this part of vanilla's
NODE_BAR = 100.0  # binds a second
BESIEGED_RATIO_BAR, BESIEGED_BAR = 2.0, 2.0  # p99 of binds as a part of the quiet one; seconds of the slowest answer
READY_BAR, MEMORY_BAR = 15.0, 500  # seconds, MiB
STAMP = "2026-01-31T12:00:00Z"
FILLER = "x" * 3000  # what nobody reads of a real object: managed fields, statuses
sharing: Any = import_module("e2e.sharing")
connected: Any = import_module("e2e.apiclient").connected
SCHEDULER: str = import_module("isolation.contract.names").SCHEDULER
KUBE_TOKEN: str = import_module("isolation.contract.names").KUBE_TOKEN


def node(name: str) -> dict[str, Any]:
    """Eight cards of 80 GiB, alive without a kubelet: no controller runs here that would notice."""
    thing: dict[str, Any] = sharing.card_node(name, cards=8, gib=80)
    thing["metadata"] |= {"uid": f"node-{name}", "creationTimestamp": STAMP}
    thing["metadata"]["annotations"]["filler"] = FILLER
    thing["spec"] = {}
    return thing


def placed_pod(i: int, nodes: int) -> dict[str, Any]:
    """A running pod with its record."""
    name, card = f"n{i % nodes}", i // nodes % 8
    thing: dict[str, Any] = sharing.our_pod(f"app-{i:06d}", 8)
    record = {
        "version": 1,
        "promise": f"pod-{i}",
        "cards": [{"uuid": f"GPU-{name}-{card}", "index": card, "bytes": 8 << 30, "core": 0}],
        "containers": [{"name": "main", "cards": [{"uuid": f"GPU-{name}-{card}", "bytes": 8 << 30, "core": 0}]}],
    }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"app-{i // 100}", "uid": "u", "controller": True}
    annotations = {"gpushare.dev/allocation": json.dumps(record), "filler": FILLER}
    thing["metadata"] |= {"uid": f"pod-{i}", "namespace": "default", "creationTimestamp": STAMP}
    thing["metadata"] |= {"annotations": annotations, "ownerReferences": [owner]}
    thing["spec"]["nodeName"] = name
    return thing | {"status": {"phase": "Running"}}


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    """Most memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


class Credentials(NamedTuple):
    """Of the two processes of the scheduler's pod, as the manifests have them."""

    ours: Path
    beside: Path


async def credentials(plane: Any, folder: Path) -> Credentials:
    """Made by the API server."""
    accounts = import_module("e2e.accounts")
    async with connected(plane) as client:
        await accounts.granted(client)
        pod = await accounts.own_pod(client, SCHEDULER, "bench")
        ours = await accounts.kubeconfig(plane, client, folder, SCHEDULER, pod)
        return Credentials(ours, await accounts.kubeconfig_of_secret(plane, client, folder, KUBE_TOKEN))


@contextlib.contextmanager
def planes(nodes: int, pods: int = 0) -> Iterator[tuple[Any, Path, Credentials]]:
    """A control plane without controllers, with this fleet in it; a folder; our credentials."""
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    with tempfile.TemporaryDirectory() as folder:
        plane = import_module("e2e.plane").ControlPlane(programs, Path(folder))
        plane.start()
        try:
            config = asyncio.run(credentials(plane, Path(folder)))
            plane.kill("kube-controller-manager")
            plane.store({f"/registry/minions/n{i}": node(f"n{i}") for i in range(nodes)})
            plane.store({f"/registry/pods/default/app-{i:06d}": placed_pod(i, nodes) for i in range(pods)})
            time.sleep(3)
            yield plane, Path(folder), config
        finally:
            plane.stop()


async def created_to_bound(client: Any, prefix: str, count: int, scheduler: str, units: int) -> float:
    """Seconds from the first creation to the last binding."""
    gate, began = asyncio.Semaphore(20), time.perf_counter()
    left = {f"{prefix}-{i}" for i in range(count)}
    chosen = {"labelSelector": f"run={prefix}"}

    async def see() -> None:
        # The server ends the watch of a reader that is too slow for it: then listed and watched again.
        while left:
            listed = await client.get(sharing.PODS, **chosen)
            left.difference_update(pod["metadata"]["name"] for pod in sharing.bound(listed))
            version = listed["metadata"]["resourceVersion"]
            if not left:
                return
            async for event in client.watch(sharing.PODS, resourceVersion=version, **chosen):
                if event["type"] == "ERROR":
                    break
                if event["object"]["spec"].get("nodeName"):
                    left.discard(event["object"]["metadata"]["name"])
                if not left:
                    return

    async def make(i: int) -> None:
        async with gate:
            pod = sharing.our_pod(f"{prefix}-{i}", units, schedulerName=scheduler)
            pod["metadata"]["labels"]["run"] = prefix
            await client.create(pod)

    seeing = asyncio.create_task(see())
    await asyncio.gather(*(make(i) for i in range(count)))
    async with asyncio.timeout(300):
        await seeing
    return time.perf_counter() - began


async def refusals(ours: Any) -> float:
    """Binds for which the cards were gone by then: such a pod waits out a back-off."""
    _, page = await ours.probe("/metrics")
    rows = [line.split() for line in page.splitlines() if line.startswith("gpushare_scheduler_requests_total{")]
    return sum(float(count) for name, count in rows if 'verb="bind"' in name and 'outcome="bound"' not in name)


async def flow(plane: Any, folder: Path, config: Credentials, wanted: argparse.Namespace) -> dict[str, Any]:
    """Vanilla, ours, vanilla, ours, and so on: the median of each."""
    count = wanted.pods
    rates: dict[str, list[float]] = {"vanilla": [], "ours": []}
    cpu: dict[str, list[float]] = {"vanilla": [], "ours": []}
    async with sharing.sharing(plane, folder, kubeconfig=config.ours, beside=config.beside) as (client, ours):
        pids = plane.pids() | {"gpushare": ours.pid}
        for turn in range(wanted.turns):
            for name, scheduler in (("vanilla", "default-scheduler"), ("ours", "gpushare-scheduler")):
                before = {who: cpu_seconds(pid) for who, pid in pids.items()}
                took = await created_to_bound(client, f"{name}{turn}", count, scheduler, wanted.units)
                used = {who: cpu_seconds(pid) - before[who] for who, pid in pids.items()}
                rates[name].append(count / took)
                mine = ("kube-scheduler",) if name == "vanilla" else ("kube-scheduler-ours", "gpushare")
                cpu[name].append(sum(used[who] for who in mine) / count)
                print(
                    f"  {name}: {count / took:.0f} pods/s; CPU seconds { ({k: round(v, 1) for k, v in used.items()}) }"
                )
        over = await ours.metric("gpushare_scheduler_overcommitted_cards")
        refused = await refusals(ours)
        await sharing.clear(client)
    vanilla, ours_rate = median(rates["vanilla"]), median(rates["ours"])
    bar = min(FLOW_BAR, VANILLA_PART * vanilla)
    return {
        "part": "flow",
        "vanilla_pods_per_second": round(vanilla, 1),
        "pods_per_second": round(ours_rate, 1),
        "ratio": round(median(b / a for a, b in zip(*rates.values(), strict=True)), 2),
        "bar": round(bar, 1),
        "held": ours_rate >= bar,
        "scheduler_cpu_ms_per_pod": round(1000 * median(cpu["ours"]), 1),
        "vanilla_cpu_ms_per_pod": round(1000 * median(cpu["vanilla"]), 1),
        "overcommitted_cards": over,
        "binds_refused": refused,
    }


async def one_node(plane: Any, folder: Path, config: Credentials, count: int) -> dict[str, Any]:
    """Interchangeable pods onto one node, twenty bind requests at a time."""
    async with (
        sharing.sharing(plane, folder, kubeconfig=config.ours, beside=config.beside) as (client, ours),
        aiohttp.ClientSession() as session,
    ):
        gate, made = asyncio.Semaphore(20), []

        async def make(i: int) -> None:
            async with gate:
                made.append(await client.create(sharing.our_pod(f"one-{i}", 1, schedulerName="nobody")))

        await asyncio.gather(*(make(i) for i in range(count)))
        await asyncio.sleep(1)

        async def bind(pod: dict[str, Any]) -> str:
            meta = pod["metadata"]
            body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n0"}
            async with gate, session.post(f"http://127.0.0.1:{ours.sidecar}/extender/bind", json=body) as answer:
                said: str = json.loads(await answer.text())["Error"]
                return said

        began = time.perf_counter()
        errors = [said for said in await asyncio.gather(*(bind(pod) for pod in made)) if said]
        rate = count / (time.perf_counter() - began)
    return {
        "part": "node",
        "binds_per_second": round(rate, 1),
        "errors": errors[:3],
        "bar": NODE_BAR,
        "held": not errors and rate >= NODE_BAR,
    }


async def besieged(plane: Any, folder: Path, config: Credentials, count: int) -> dict[str, Any]:
    """One pod after another, quiet and while strangers are at the admission port; seconds, and MiB of our processes."""
    strangers, waiting = import_module("support.strangers"), import_module("e2e.legitimate_clients")
    port = import_module("support.ports").free_port()
    pair = plane.serving_pair("webhook", ("127.0.0.1",))
    context = ssl.create_default_context(cafile=str(plane.ca))
    rows: dict[str, dict[str, float]] = {}
    async with connected(plane) as client:
        await sharing.prepare(client)
        for name in ("quiet", *strangers.ATTACKS):
            with sharing.replica(plane, folder, name, config.ours) as ours:
                door = f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}"
                ours.start(f"--admission-listen=127.0.0.1:{port}", *door)
                await ours.leads()
                await ours.answers("/readyz")
                clients = waiting.LegitimateClients(ours, port, context)
                attack = strangers.attacking(name, port) if name != "quiet" else contextlib.nullcontext()
                with attack:
                    await asyncio.sleep(3)
                    await clients.ask(client, name.lower(), count, "n0")
                rows[name] = _worst(clients.seconds) | {"peak_mib": sum(map(peak_mib, family(ours.pid)))}
                print(f"  {name}: {rows[name]}", flush=True)
            await sharing.clear(client)
    quiet = rows.pop("quiet")
    slowest = max(value for row in rows.values() for key, value in row.items() if key.endswith("_max"))
    most = max(row["bind_p99"] for row in rows.values()) / quiet["bind_p99"]
    return {
        "part": "strangers",
        "bind_p99_ms_quiet": round(1000 * quiet["bind_p99"], 1),
        "bind_p99_ratio": round(most, 2),
        "slowest_seconds": round(slowest, 2),
        "peak_mib": max(row["peak_mib"] for row in rows.values()),
        "bars": [BESIEGED_RATIO_BAR, BESIEGED_BAR],
        "held": most <= BESIEGED_RATIO_BAR and slowest <= BESIEGED_BAR,
    }


def _worst(seconds: dict[str, list[float]]) -> dict[str, float]:
    found = {f"{who}_max": round(max(took), 4) for who, took in seconds.items()}
    return found | {"bind_p99": round(quantiles(seconds["bind"], n=100)[98], 4)}


def family(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


async def restart(plane: Any, folder: Path, config: Credentials, times: int) -> dict[str, Any]:
    """From the start of the process to leading, killed in between: the Lease has to run out too."""
    seconds, memory, cpu = [], [], []
    async with connected(plane) as client:
        await sharing.prepare(client)
    with sharing.replica(plane, folder, "again", config.ours) as ours:
        for _ in range(times):
            began = time.perf_counter()
            ours.start()
            await ours.leads(120)
            seconds.append(time.perf_counter() - began)
            memory.append(peak_mib(ours.pid))
            cpu.append(cpu_seconds(ours.pid))
            ours.end(signal.SIGKILL)
            print(f"  ready after {seconds[-1]:.1f} s ({cpu[-1]:.1f} s of CPU), {memory[-1]} MiB", flush=True)
    return {
        "part": "restart",
        "seconds": round(max(seconds), 1),
        "cpu_seconds": round(max(cpu), 1),
        "peak_mib": max(memory),
        "bars": [READY_BAR, MEMORY_BAR],
        "held": max(seconds) <= READY_BAR and max(memory) <= MEMORY_BAR,
    }


def main() -> None:
    """The parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["flow", "node", "strangers", "restart"])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=600, help="in each turn of flow")
    parser.add_argument("--turns", type=int, default=5, help="of flow: vanilla and ours in each")
    parser.add_argument("--units", type=int, default=4, help="GiB of a card of 80 that each pod of flow wants")
    parser.add_argument("--large", type=int, nargs=2, default=[5000, 40000], metavar=("NODES", "PODS"))
    chosen = parser.parse_args()
    lines = []
    if "flow" in chosen.parts:
        with planes(chosen.nodes) as world:
            lines.append(asyncio.run(flow(*world, chosen)))
    if "node" in chosen.parts:
        with planes(1) as world:
            lines.append(asyncio.run(one_node(*world, 600)))
    if "strangers" in chosen.parts:
        with planes(1) as world:
            lines.append(asyncio.run(besieged(*world, 150)))
    if "restart" in chosen.parts:
        with planes(*chosen.large) as world:
            lines.append(asyncio.run(restart(*world, 3)))
    for line in lines:
        print(json.dumps(line | {"load_average": round(os.getloadavg()[0], 1)}))
    sys.exit(0 if all(line["held"] for line in lines) else 1)


if __name__ == "__main__":
    main()
