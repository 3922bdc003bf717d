# SPDX-License-Identifier: Apache-2.0
"""
How long the live view takes to know a large cluster, and what it weighs, on a real API server.

The fleet is written straight into etcd (thousands of objects in seconds), as an API server would
store it, with the size of real objects; then the view starts in a process of its own. Prints
seconds, CPU seconds and memory of that process.
Needs the control plane of the tests: `make controlplane`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from isolation.kube.access import Access
from isolation.kube.core.wire import page_of
from isolation.kube.informer import Informer
from isolation.kube.listwatch import WatchOptions

FILLER_BYTES = 3000  # what nobody reads of a real pod: managed fields, volumes, statuses


def node(i: int) -> dict[str, Any]:
    """One node of eight cards."""
    amounts = {"aliyun.com/gpu-mem": "640", "aliyun.com/gpu-count": "8", "cpu": "96", "memory": "768Gi", "pods": "250"}
    labels = {"kubernetes.io/hostname": f"n{i}", "ack.node.gpu.schedule": "cgpu", "zone": f"z{i % 3}"}
    meta = {"name": f"n{i}", "uid": f"00000000-0000-4000-8000-{i:012d}", "labels": labels}
    meta |= {"creationTimestamp": "2026-01-31T12:00:00Z", "annotations": {"filler": "x" * FILLER_BYTES}}
    conditions = [
        {"type": kind, "status": "True" if kind == "Ready" else "False"} for kind in ("Ready", "DiskPressure")
    ]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}


def pod(i: int, nodes: int) -> dict[str, Any]:
    """One bound pod of a Deployment of a hundred, with the vendor's record or ours in turn."""
    name, uid = f"app-{i // 100}-{i:06d}", f"00000000-0000-4000-9000-{i:012d}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"app-{i // 100}", "uid": "u", "controller": True}
    record = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(i // nodes % 8): 8}})}
    meta = {"name": name, "namespace": "default", "uid": uid, "ownerReferences": [owner], "annotations": record}
    meta |= {"creationTimestamp": "2026-01-31T12:00:00Z", "labels": {"app": f"app-{i // 100}", "hash": "7d4b9c"}}
    record["filler"] = "x" * FILLER_BYTES
    limits = {"aliyun.com/gpu-mem": "8", "cpu": "2", "memory": "4Gi"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    spec = {"containers": [container], "nodeName": f"n{i % nodes}", "schedulerName": "nobody", "priority": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


async def follow(kubeconfig: str) -> None:
    """The view in this process, until it is synced; its figures as one line of JSON."""
    async with Access(Path(kubeconfig)) as access:
        plain = await download(access)
    idle, imports = resource.getrusage(resource.RUSAGE_SELF), memory("VmRSS")
    began = time.perf_counter()
    async with Access(Path(kubeconfig)) as access, Informer(access).following() as live:
        await live.synced()
        synced = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        view = live.view()
        viewed = time.perf_counter() - began
        read = {
            "nodes": len(view.cluster.nodes),
            "pods": len(view.cluster.pods),
            "on_cards": sum(bool(p.placement and p.placement.slices) for p in view.cluster.pods),
            "unreadable": len(view.unreadable) + len(view.refused),
            "seconds": round(synced, 2),
            "plain_seconds": round(plain, 2),
            "ratio": round(synced / plain, 2),
            "cpu_seconds": round(used.ru_utime + used.ru_stime - idle.ru_utime - idle.ru_stime, 2),
            "view_ms": round(viewed * 1000, 2),
            "imports_mib": imports,
            "resident_mib": memory("VmRSS"),
            "peak_mib": memory("VmHWM"),
        }
    print(json.dumps(read))


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def download(access: Access) -> float:
    """Seconds for the same pages, thrown away: what the server and the wire take."""
    began = time.perf_counter()
    for path in ("/api/v1/nodes", "/api/v1/pods"):
        query = {"limit": str(WatchOptions().page)}
        while True:
            page = page_of(await access.page(path, query))
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
    return time.perf_counter() - began


def memory(field: str) -> int:
    """MiB of this process, by a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(field))


def measure(nodes: int, pods: int) -> None:
    """Fill, follow, print."""
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    with tempfile.TemporaryDirectory() as folder:
        plane = import_module("e2e.plane").ControlPlane(programs, Path(folder))
        plane.start()
        try:
            for name in ("kube-controller-manager", "kube-scheduler"):
                plane.kill(name)  # they would tidy up a fleet without kubelets
            fill(plane, nodes, pods)
            command = [sys.executable, "-m", "benchmarks.informer", "--follow", str(plane.kubeconfig)]
            before = cpu_seconds(plane.pids()["kube-apiserver"])
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
            server = cpu_seconds(plane.pids()["kube-apiserver"]) - before
            print(f"{nodes} nodes, {pods} pods: {done.stdout.strip()} server_cpu_seconds {server:.1f}")
        finally:
            plane.stop()


def fill(plane: Any, nodes: int, pods: int) -> None:
    """The fleet, and a moment for the API server to see it."""
    plane.store({f"/registry/minions/n{i}": node(i) for i in range(nodes)})
    made = (pod(i, nodes) for i in range(pods))
    plane.store({f"/registry/pods/default/{p['metadata']['name']}": p for p in made})
    time.sleep(5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--follow", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=40000)
    chosen = parser.parse_args()
    if chosen.follow:
        asyncio.run(follow(chosen.follow))
    else:
        measure(chosen.nodes, chosen.pods)
