# SPDX-License-Identifier: Apache-2.0
"""
The manifests installed for good: a control plane at the ports they name, an overlay with what can be added to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import yaml
from e2e.accounts import kubeconfig_of_secret
from e2e.apiclient import RefusedError, connected
from e2e.foreign_kinds import definitions
from e2e.kubelets import Kubelets, shared_node
from e2e.manifest_answers import answers, until_gone
from e2e.manifest_installation import ADDRESS, INSIDE, Installation, address, need_free
from e2e.own_plane import audited
from e2e.sharing import card_node, untainted

from isolation.contract.names import AUTOSCALER, KUBE_TOKEN, SCHEDULER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from e2e.plane import ControlPlane

NODE = "installation-gpu"
COMPONENTS = ("metrics-api", "custom-metrics", "external-metrics", "grpc", "cluster-api")
PORTS = (8086, 8087, 8443, 8444, 9445)
VERSIONS = ("v1beta1.custom", "v1beta2.custom", "v1beta1.external")
APISERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


@contextlib.contextmanager
def standing(folder: Path, ports: tuple[int, ...] = PORTS) -> Iterator[ControlPlane]:
    """A control plane of our own, and this machine's ports free for what is installed: these at our address."""
    started = audited(folder)
    with address():
        need_free(ADDRESS, *ports)
        need_free("0.0.0.0", 9446, 9448)  # noqa: S104 (what the manifests say; closed at once)
        need_free("127.0.0.1", 8442)
        started.start()
        try:
            yield started
        finally:
            started.stop()


@contextlib.asynccontextmanager
async def installed(
    plane: ControlPlane,
    folder: Path,
    overlay: str = "demo",
    components: tuple[str, ...] = COMPONENTS,
    pairs: tuple[str, ...] = ("scheduler", "metrics-api", "grpc"),
) -> AsyncIterator[Installation]:
    """An overlay with what can be added to it; certificates by the script; every pod Running."""
    async with connected(plane) as client:
        installation = Installation(plane, client, folder)
        for one in definitions():
            with contextlib.suppress(RefusedError):
                await client.create(one)
        await until_gone(client)
        await asyncio.to_thread(installation.apply, overlay, *components)
        if pairs:
            await asyncio.to_thread(installation.certificates, *pairs)
        linux = {"kubernetes.io/os": "linux"}
        nodes = [card_node(NODE, **linux), shared_node("installation-plain", cards=0, **linux)]
        async with Kubelets(client, nodes).alive():
            await untainted(client)
            await installation.served(AUTOSCALER)
            try:
                yield installation
            except BaseException:
                print(installation.words())  # noqa: T201 (shown with the failure)
                raise
            finally:  # without their server they would keep the namespace from ending
                for version in VERSIONS:
                    await client.delete(f"{APISERVICES}/{version}.metrics.k8s.io")


@contextlib.asynccontextmanager
async def scheduling(installation: Installation) -> AsyncIterator[None]:
    """Both containers of the scheduler's pod, under their accounts and with the stored configuration."""
    stored = await installation.client.get(f"{INSIDE}/configmaps/{SCHEDULER}")
    config = yaml.safe_load(stored["data"]["config.yaml"])
    config["clientConnection"]["kubeconfig"] = str(
        await kubeconfig_of_secret(installation.plane, installation.client, installation.folder, KUBE_TOKEN)
    )
    path = installation.folder / "kube-scheduler.yaml"
    path.write_text(yaml.safe_dump(config))
    async with installation.process(SCHEDULER):
        keeping = asyncio.create_task(_keep_scheduler(installation.plane, path))
        try:
            await installation.served(SCHEDULER)
            await answers(f"http://{ADDRESS}:9446/leader")
            yield
        finally:
            keeping.cancel()
            installation.plane.kill("kube-scheduler-installation")


async def _keep_scheduler(plane: ControlPlane, configuration: Path) -> None:
    """What a kubelet does: a kube-scheduler ends when it cannot renew its Lease in time."""
    while True:
        if "kube-scheduler-installation" not in plane.pids():
            plane.add_scheduler("kube-scheduler-installation", configuration)
        await asyncio.sleep(0.5)
