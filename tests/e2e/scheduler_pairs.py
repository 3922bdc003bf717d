# SPDX-License-Identifier: Apache-2.0
"""Two pairs of kube-scheduler and extender, each on a host of its own, as the manifests run them; needs root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING

from e2e.apiclient import connected
from e2e.sharing import clear, prepare, replica
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.scheduler.core import kube_scheduler_config as kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane
    from e2e.sharing import Replica

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"


@contextlib.asynccontextmanager
async def pairs(
    plane: ControlPlane, folder: Path, kubeconfig: Path | None = None
) -> AsyncIterator[tuple[ApiClient, dict[str, Replica]]]:
    """Pairs "a" and "b", both up; who leads is found out by asking. `kubeconfig`: of our parts."""
    async with connected(plane) as client:
        await prepare(client)
        for lease in (kube.SIDECAR_LEASE, "gpushare-scheduler"):
            await client.delete(f"{LEASES}/{lease}")
        with replica(plane, folder, "a", kubeconfig) as one, replica(plane, folder, "b", kubeconfig) as two:
            made = {"a": one, "b": two}
            for name, ours in made.items():
                start_ours(ours)
                start_scheduler(plane, folder, name, ours.sidecar)
            try:
                yield client, made
            finally:
                for name in made:
                    plane.kill(f"kube-{name}")
                await clear(client)


def start_ours(ours: Replica) -> None:
    """Our part of a pair, which leads where its kube-scheduler does."""
    ours.start(f"--kube-scheduler-lease={kube.SIDECAR_LEASE}")


def start_scheduler(plane: ControlPlane, folder: Path, name: str, sidecar: int) -> None:
    """A kube-scheduler as our configuration says, on a host of that name."""
    config = kube.sidecar_config(
        f"127.0.0.1:{sidecar}", str(plane.kubeconfig_for("system:kube-scheduler-pair", ("system:masters",)))
    )
    path = folder / f"pair-{name}.json"
    path.write_text(json.dumps(config))
    plane.add_scheduler(f"kube-{name}", path, host=name)


def restart_ended(plane: ControlPlane, folder: Path, made: Mapping[str, Replica]) -> None:
    """What a kubelet does: a kube-scheduler ends when it cannot renew its Lease."""
    for name, ours in made.items():
        if f"kube-{name}" not in plane.pids():
            start_scheduler(plane, folder, name, ours.sidecar)


@contextlib.asynccontextmanager
async def kept(plane: ControlPlane, folder: Path, made: Mapping[str, Replica]) -> AsyncIterator[None]:
    """While the block lasts, these kube-schedulers are started again whenever they end."""

    async def keep() -> None:
        while True:
            restart_ended(plane, folder, made)
            await asyncio.sleep(0.2)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()


async def leader(made: Mapping[str, Replica]) -> str:
    """Which of the two answers about pods."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        for name, ours in made.items():
            if (await ours.probe("/leader"))[0] == 200:
                return name
        await asyncio.sleep(0.05)
    raise AssertionError("nobody leads: " + "".join(ours.log()[-1500:] for ours in made.values()))
