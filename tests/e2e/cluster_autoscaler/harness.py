# SPDX-License-Identifier: Apache-2.0
"""The stand-in beside a real `gpushare autoscaler` on the control plane, for tests: `beside` starts both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.autoscaler_harness import pool_node
from e2e.autoscaler_process import Autoscaler, config, eventually, fleet
from e2e.certificates import Authority
from e2e.cluster_autoscaler.flags import PROVIDER
from support.children import DIES_WITH_US
from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from e2e.apiclient import ApiClient
    from e2e.machine_deployments import MachineDeployments
    from e2e.plane import ControlPlane

SPEED = 40.0
_TESTS = Path(__file__).resolve().parents[2]


class StandIn:
    """One process after the other; what it did is in `status`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._launcher = ThreadPoolExecutor(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._status = folder / "cluster-autoscaler.json"

    def launch(self, words: Iterable[str], *inside: str) -> None:
        """Begin with nothing remembered; `inside`: words before the program's own."""
        self._status.unlink(missing_ok=True)
        program = (sys.executable, "-m", "e2e.cluster_autoscaler.process", *words)
        paths = os.pathsep.join((str(_TESTS), str(_TESTS.parent)))
        more = {"PYTHONPATH": paths, "STAND_IN_SPEED": str(SPEED), "STAND_IN_STATUS": str(self._status)}
        with (self._folder / "cluster-autoscaler.log").open("ab") as log:
            self._process = self._launcher.submit(
                subprocess.Popen,
                [*DIES_WITH_US, *inside, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | more,
            ).result()

    @property
    def running(self) -> bool:
        """Whether the process has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Killed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def send(self, kind: signal.Signals) -> None:
        """Freeze, thaw."""
        assert self._process is not None
        self._process.send_signal(kind)

    def status(self) -> dict[str, Any]:
        """What it has done since its start; empty before its first loop."""
        try:
            return json.loads(self._status.read_text())
        except FileNotFoundError:
            return {}

    def log(self) -> str:
        """What it said."""
        return (self._folder / "cluster-autoscaler.log").read_text(errors="replace")

    async def counts(self, what: str, least: int = 1) -> None:
        """Wait until something has been counted so often."""

        async def claim() -> bool:
            return self.status().get("count", {}).get(what, 0) >= least

        if not await eventually(claim):
            raise AssertionError(f"{what}: {self.status()}: {self.log()[-3000:]}")

    async def passes(self, minutes: float) -> None:
        """Wait until so many minutes of its own time have passed."""
        begin = self.status().get("seconds", 0.0)

        async def claim() -> bool:
            return self.status().get("seconds", 0.0) >= begin + minutes * 60.0

        if not await eventually(claim):
            raise AssertionError(f"its time stands still at {self.status()}: {self.log()[-3000:]}")


class Configured(StandIn):
    """With the files and the addresses of a test."""

    def __init__(self, plane: ControlPlane, folder: Path, address: str, expander: str) -> None:
        super().__init__(folder)
        files = {"cert": "cluster-autoscaler.crt", "key": "cluster-autoscaler.key", "cacert": "grpc-ca.crt"}
        cloud = {"address": address} | {key: str(folder / name) for key, name in files.items()}
        (folder / "externalgrpc.json").write_text(json.dumps(cloud))
        self._given = {
            "cloud-provider": PROVIDER,
            "kubeconfig": plane.kubeconfig,
            "cloud-config": folder / "externalgrpc.json",
            "expander": "grpc,least-waste",
            "grpc-expander-url": expander,
            "grpc-expander-cert": folder / "grpc-ca.crt",
        }

    def start(self, *flags: str) -> None:
        """Begin, with these flags as well."""
        self.launch([*(f"--{key}={value}" for key, value in self._given.items()), *flags])


@dataclass(frozen=True)
class Beside:
    """Everything of one story."""

    client: ApiClient
    machines: MachineDeployments
    ours: Autoscaler
    theirs: Configured
    authority: Authority
    flags: tuple[str, ...]

    def start_ours(self) -> None:
        """`gpushare autoscaler` with both ports."""
        self.ours.start(*self.flags)


@contextlib.asynccontextmanager
async def beside(
    plane: ControlPlane,
    folder: Path,
    *pools: dict[str, Any],
    start: int = 0,
    node_of: Callable[[str, str], dict[str, Any]] = pool_node,
) -> AsyncIterator[Beside]:
    """Pools of `one_pool`, each ordered of cluster-autoscaler; ours runs and leads, the stand-in is not started yet."""
    authority = Authority(folder, "grpc-ca")
    server = authority.issue("gpushare-autoscaler", hosts=("localhost", "127.0.0.1"))
    authority.issue("cluster-autoscaler")
    number, other = free_port(), free_port()
    flags = (
        f"--grpc-listen=127.0.0.1:{number}",
        f"--expander-listen=127.0.0.1:{other}",
        f"--grpc-cert={server.certificate}",
        f"--grpc-key={server.key}",
        f"--grpc-client-ca={authority.certificate}",
        "--expander-allow-anonymous",
    )
    ordered = [
        pool | {"provider": "externalgrpc", "settings": {"provider": "scale", "settings": pool["settings"]}}
        for pool in pools
    ]
    async with fleet(plane, folder, *(pool["name"] for pool in pools), start=start, node_of=node_of) as (
        client,
        machines,
    ):
        ours = Autoscaler(plane, folder, "ours")
        theirs = Configured(plane, folder, f"127.0.0.1:{number}", f"127.0.0.1:{other}")
        found = Beside(client, machines, ours, theirs, authority, flags)
        try:
            ours.config.write_text(config(*ordered))
            found.start_ours()
            await ours.shows("gpushare_autoscaler_leader", 1)
            yield found
        finally:
            await asyncio.to_thread(theirs.end)
            await asyncio.to_thread(ours.end, signal.SIGTERM)
