# SPDX-License-Identifier: Apache-2.0
"""
The real KEDA beside the installed manifests: its operator, metrics server and admission webhooks as processes.

KEDA is installed with its own manifests; a process gets the arguments, environment and account of its stored pod. What
a cluster does for pods is done here: names of Services are resolved (by a hosts file that only these processes see), a
Secret's volume follows the Secret, and a container that ended is started again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from e2e.accounts import kubeconfig
from e2e.apiclient import RefusedError
from e2e.manifest_installation import ADDRESS, running
from support.children import DIES_WITH_US
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.manifest_installation import Installation

VERSION = "2.20.2"
NAMESPACE = "keda"
PORTS = (6443, 8086, 8087, 8443, 9666)
"""Its and ours, at our address; the webhooks' 9443 is at every address."""
WEBHOOKS_PORT = 9443
_SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/kedaorg-certs"
_AVAILABLE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
_HOSTS = f"""127.0.0.1 localhost
{ADDRESS} gpushare-autoscaler.gpushare-system.svc
{ADDRESS} keda-operator.keda.svc.cluster.local
"""
_CONTAINER = 'mount --bind "$0" /etc/hosts && while :; do "$@"; sleep 0.5; done'


def cache() -> Path:
    """The folder that `get_keda.sh` fills."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gpushare" / "keda" / f"v{VERSION}"


def need_keda() -> None:
    """Where it cannot run, a skip that says why."""
    if os.geteuid() != 0:
        pytest.skip("KEDA's processes need root: a hosts file of their own")
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not installed")
    if not (cache() / "config").is_dir():
        pytest.skip(f"KEDA {VERSION} not found in {cache()}: run `make keda`")


class Keda:
    """One installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._certificates = installation.folder / "keda-certificates"
        self._hosts = installation.folder / "hosts"
        self._certificates.mkdir()
        self._hosts.write_text(_HOSTS)

    def install(self) -> None:
        """What KEDA's own command does, with the same manifests."""
        self._installation.run("kubectl", "apply", "--server-side", "-k", str(cache() / "config" / "default"))

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Its three processes run, and kube-apiserver reaches the metrics server."""
        mirror = asyncio.create_task(self._mirror())
        certificates = f"--cert-dir={self._certificates}"
        here = f"--metrics-service-bind-address={ADDRESS}:9666"
        ports = ("--metrics-bind-address=0", "--health-probe-bind-address=0")  # every process would take 8080
        served = f"--bind-address={ADDRESS}", "--port=0"
        try:
            async with contextlib.AsyncExitStack() as stack:
                start = stack.enter_async_context
                await start(self._process("keda-operator", "operator", certificates, here, *ports))
                await start(self._process("keda-metrics-apiserver", "adapter", *served))
                await start(self._process("keda-admission-webhooks", "webhooks", certificates, *ports))
                await self._installation.client.until(_is_available, _AVAILABLE)
                yield
        finally:
            mirror.cancel()
            await asyncio.gather(mirror, return_exceptions=True)
            await self._installation.client.delete(_AVAILABLE)

    @contextlib.asynccontextmanager
    async def _process(self, app: str, program: str, *more: str) -> AsyncIterator[None]:
        installation = self._installation
        pod = await installation.pod(app, NAMESPACE, "app")
        box = pod["spec"]["containers"][0]
        config = await kubeconfig(
            installation.plane, installation.client, installation.folder, pod["spec"]["serviceAccountName"], pod
        )
        if program == "adapter":
            doors = ("lister", "authentication", "authorization")
            more = (*more, *(f"--{door}-kubeconfig={config}" for door in doors))
        words = [word.replace("=/certs", f"={self._certificates}") for word in box["args"]]
        given = {
            item["name"]: item.get("value") or (NAMESPACE if "valueFrom" in item else "") for item in box.get("env", ())
        }
        given["KEDA_CLUSTER_OBJECT_NAMESPACE"] = NAMESPACE  # in a pod it is read from the token's volume
        installation.logs[app] = installation.folder / f"{app}.log"
        inside = ["unshare", "--mount", "sh", "-c", _CONTAINER, str(self._hosts)]
        command = [*DIES_WITH_US, *inside, *DIES_WITH_US, str(cache() / program), *words, *more]
        with running(installation.logs[app], command, **given, KUBECONFIG=str(config)):
            yield

    async def _mirror(self) -> None:
        """As a kubelet: what is in the Secret is in the folder."""
        seen: dict[str, str] = {}
        while True:
            with contextlib.suppress(RefusedError, OSError):
                data = (await self._installation.client.get(_SECRET)).get("data") or {}
                if data != seen:
                    for key, value in data.items():
                        fresh = self._certificates / f".{key}"
                        fresh.write_bytes(base64.b64decode(value))
                        fresh.replace(self._certificates / key)
                    seen = data
            await asyncio.sleep(0.3)


def typed(installation: Installation, folder: Path, lines: str) -> str:
    """What somebody types in a folder: one block of commands; what they say."""
    done = subprocess.run(
        ["sh", "-e", "-c", lines],
        cwd=folder,
        env=installation.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert 0 == done.returncode, f"{lines}\n{done.stdout}{done.stderr}"
    return done.stdout


def _is_available(service: dict[str, Any]) -> bool:
    conditions = service.get("status", {}).get("conditions", ())
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)
