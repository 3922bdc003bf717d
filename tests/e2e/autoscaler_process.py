# SPDX-License-Identifier: Apache-2.0
"""
`gpushare autoscaler` as a process, for tests: replicas come, are killed and come again; every one dies with the test.
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
from typing import TYPE_CHECKING, Any

from e2e.apiclient import RefusedError
from e2e.autoscaler_harness import Growing, forget, pool_node
from e2e.machine_deployments import MachineDeployments
from e2e.sharing import Replica, sharing
from support.children import DIES_WITH_US
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.scheduler.admission.core.webhook import SCHEDULER_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

COMMAND = "from autoscaler.kube.cli import autoscaler; autoscaler()"
MAPS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
SWITCH, STATE = f"{MAPS}/gpushare-autoscaler", f"{MAPS}/gpushare-autoscaler-state"
POOLS = f"{MAPS}/gpushare-pools"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/gpushare-autoscaler"
QUICK = {
    "scan_interval_seconds": 0.3,
    "action_validation_delay_seconds": 0.1,
    "scale_down_unneeded_seconds": 1.0,
    "scale_down_delay_after_add_seconds": 1.0,
    "min_node_age_seconds": 1.0,
    "node_delete_delay_after_taint_seconds": 1.0,
    "min_pod_age_seconds": 0.0,
    "initial_pool_backoff_seconds": 5.0,
}
PROFILE = {
    "mode": "cgpu",
    "cpu": 64000,
    "memory": 256 << 30,
    "pods": 250,
    "cards": {
        "version": 1,
        "cards": [
            {"uuid": f"card/{i}", "index": i, "model": "Tesla-T4", "total": 15 << 30, "unit": 1 << 30} for i in range(2)
        ],
    },
}


def config(*pools: dict[str, Any], **more: Any) -> str:
    """A configuration file's text."""
    whole = {"version": 1, "pools": list(pools), "limits": QUICK, "metrics": {"source": "none"}}
    return json.dumps(whole | more)  # which is YAML too


def one_pool(name: str = "gpu-a", **more: Any) -> dict[str, Any]:
    """A MachineDeployment as a pool; its nodes have two cards of 15 GiB."""
    return {
        "name": name,
        "provider": "scale",
        "settings": {"name": name},
        "max_nodes": 3,
        "node_template": PROFILE,
    } | more


async def eventually(claim: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it holds at last."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if await claim():
            return True
        await asyncio.sleep(0.1)
    return False


class Autoscaler(Replica):
    """One process; `config` is its file."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, kubeconfig: Path | None = None) -> None:
        super().__init__(plane, folder, name, kubeconfig)
        self.config = folder / f"{name}.yaml"

    def command(self, *more: str) -> list[str]:
        """What is typed."""
        given = [f"--kubeconfig={self._kubeconfig}", f"--config={self.config}"]
        return [sys.executable, "-c", COMMAND, *given, f"--metrics-listen=127.0.0.1:{self.metrics}", *more]

    def start(self, *more: str, **env: str) -> None:
        """Begin; `answers` waits until it serves."""
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = self._launcher.submit(
                subprocess.Popen,
                [*DIES_WITH_US, *self.command(*more)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | env,
            ).result()

    async def plan(self, *more: str) -> tuple[int, str, str]:
        """What `plan` says: status, output, errors."""
        return await self.run("plan", *more)

    async def run(self, *more: str) -> tuple[int, str, str]:
        """What a subcommand says: status, output, errors."""
        return await asyncio.to_thread(self._run, *more)

    def _run(self, *more: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*self.command(), *more], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        return done.returncode, done.stdout, done.stderr

    async def sample(self, series: str) -> float | None:
        """One sample by its whole name; None where it is absent."""
        _, page = await self.probe("/metrics")
        found = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.rsplit(" ", 1)[0] == series]
        return float(found[0]) if found else None

    async def shows(self, series: str, value: float) -> None:
        """Wait until a series has this value."""

        async def claim() -> bool:
            return await self.sample(series) == value

        if not await eventually(claim):
            found = await self.sample(series)
            raise AssertionError(f"{series} is {found}, not {value}: {self.log()[-4000:]}")

    async def reaches(self, series: str, value: float) -> None:
        """Wait until a series is at least this."""

        async def claim() -> bool:
            return (await self.sample(series) or 0.0) >= value

        if not await eventually(claim):
            found = await self.sample(series)
            raise AssertionError(f"{series} is {found}, less than {value}: {self.log()[-4000:]}")

    async def says(self, text: str) -> None:
        """Wait until its log has this."""

        async def claim() -> bool:
            return text in self.log()

        if not await eventually(claim):
            raise AssertionError(f"never said {text!r}: {self.log()[-4000:]}")


@contextlib.contextmanager
def autoscaler(plane: ControlPlane, folder: Path, name: str, kubeconfig: Path | None = None) -> Iterator[Autoscaler]:
    """One that is not started yet; ended with the block."""
    made = Autoscaler(plane, folder, name, kubeconfig)
    try:
        yield made
    finally:
        made.end(signal.SIGTERM)


@contextlib.asynccontextmanager
async def fleet(
    plane: ControlPlane,
    folder: Path,
    *pools: str,
    start: int = 0,
    node_of: Callable[[str, str], dict[str, Any]] = pool_node,
    scheduler: tuple[str, ...] = (),
) -> AsyncIterator[tuple[ApiClient, MachineDeployments]]:
    """Our scheduler with these options, and a machine controller with these pools; nothing of it stays."""
    # records are written by our account alone
    account = plane.kubeconfig_for(SCHEDULER_ACCOUNT, ("system:masters",)) if scheduler else None
    async with (
        sharing(plane, folder, *scheduler, kubeconfig=account) as (client, _),
        Growing(client, ()).alive() as kubelets,
    ):

        def made(name: str, of: str) -> dict[str, Any]:
            node = node_of(name, of)
            node["status"]["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            kubelets.adopt(node)
            return node

        async with MachineDeployments(client, made).running() as machines:
            for name in pools:
                await machines.create(name, start)
                await machines.settled(name)
            try:
                yield client, machines
            finally:
                await forget(client)
                for path in (SWITCH, STATE, LEASE, POOLS):
                    await client.delete(path)


async def switch(client: ApiClient, **words: str) -> None:
    """Set the switch in the cluster."""
    if not words:
        await client.delete(SWITCH)
        return
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpushare-autoscaler"}, "data": words}
    try:
        await client.create(thing, SYSTEM_NAMESPACE)
    except RefusedError:
        await client.call("PUT", SWITCH, thing)  # in one write: where it is gone for a moment, it is on for that long


async def grown(machines: MachineDeployments, name: str, count: int) -> None:
    """Wait until a pool's wish is this."""

    async def claim() -> bool:
        return await machines.replicas(name) == count

    if not await eventually(claim):
        raise AssertionError(f"{name} wishes {await machines.replicas(name)}, not {count}")


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """What is remembered."""
    return json.loads(state["data"]["state.json"])
