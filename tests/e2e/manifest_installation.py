# SPDX-License-Identifier: Apache-2.0
"""
The manifests installed for good on a control plane of one's own, and their processes run as their pods say.

Pods are made by the real controllers and "run" by stand-in kubelets, all of them at one address of this machine,
198.18.0.1: Services and their endpoints are real, and lead to whoever listens there. A process gets the arguments of
its stored pod, word by word; replaced are folders of the container by folders of the test, and 0.0.0.0 by that address.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from e2e.accounts import kubeconfig
from e2e.manifest_build import MANIFESTS, operator, write
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

ADDRESS = "198.18.0.1"
"""For tests of networks (RFC 2544), and what stand-in kubelets tell of pods; Endpoints take no loopback address."""
_DIE = "import ctypes; ctypes.CDLL(None).prctl(1, 9); "  # PR_SET_PDEATHSIG: nothing outlives a killed test
_MAIN = "import sys, gpushare; sys.argv[0] = 'gpushare'; gpushare.run()"
LOCK = Path(tempfile.gettempdir()) / "gpushare-tests-address.lock"
INSIDE = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"


@contextlib.contextmanager
def address() -> Iterator[None]:
    """
    This machine has the address, and the block alone has it and the ports that the manifests name: others wait.

    Where the address cannot be had, a skip.
    """
    if shutil.which("ip") is None:
        pytest.skip("ip (iproute2) is not installed")
    ours = f"{ADDRESS}/32", "dev", "lo"
    given = {"capture_output": True, "text": True, "timeout": PATIENCE_SECONDS}
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(["ip", "address", "add", *ours], check=False, **given)
        if made.returncode and "exists" not in made.stderr and "assigned" not in made.stderr:
            pytest.skip(f"{ADDRESS} cannot be added to lo: {made.stderr.strip()}")
        try:
            yield
        finally:
            if not made.returncode:
                subprocess.run(["ip", "address", "delete", *ours], check=False, **given)


def need_free(host: str, *ports: int) -> None:
    """The manifests name ports; where somebody else here has one, a skip that says which."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                pytest.skip(f"port {port} is in use on this machine")


class Installation:
    """One installation."""

    def __init__(self, plane: ControlPlane, client: ApiClient, folder: Path) -> None:
        self.plane, self.client, self.folder = plane, client, folder
        self.env = operator(KUBECONFIG=plane.kubeconfig)
        self.logs: dict[str, Path] = {}

    def apply(self, overlay: str, *components: str) -> str:
        """`kubectl apply -k`; what kubectl says."""
        folder = self.folder / "kustomization"
        folder.mkdir(exist_ok=True)
        write(folder, f"overlays/{overlay}", tuple(f"components/{name}" for name in components))
        return self.run("kubectl", "apply", "-k", str(folder))

    def certificates(self, *which: str) -> None:
        """`sh manifests/certificate.sh ...`."""
        self.run("sh", str(MANIFESTS / "certificate.sh"), *which)

    def run(self, *command: str) -> str:
        """A command of the operator's."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    async def pod(
        self, name: str, namespace: str = SYSTEM_NAMESPACE, label: str = "app.kubernetes.io/name"
    ) -> dict[str, Any]:
        """One running pod of a workload."""
        found = await self.client.until(
            lambda listed: any(one["status"].get("phase") == "Running" for one in listed["items"]),
            f"/api/v1/namespaces/{namespace}/pods",
            labelSelector=f"{label}={name}",
        )
        return next(one for one in found["items"] if one["status"].get("phase") == "Running")

    async def served(self, service: str) -> None:
        """Until a Service has its endpoints at our address."""
        await self.client.until(
            lambda listed: (
                {a for s in listed["items"] for e in s["endpoints"] or () for a in e["addresses"]} == {ADDRESS}
            ),
            f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/endpointslices",
            labelSelector=f"kubernetes.io/service-name={service}",
        )

    async def command(self, pod: Mapping[str, Any], at: int = 0, hosts: Mapping[str, str] | None = None) -> list[str]:
        """The words of a container, with files where they are here. `hosts`: folders for those of the host."""
        spec = pod["spec"]
        one = spec["containers"][at]
        folders = {}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in one["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "hostPath" in volume:
                folders[mount["mountPath"]] = (hosts or {})[volume["hostPath"]["path"]]
            elif "configMap" in volume or "secret" in volume:
                folders[mount["mountPath"]] = str(await self._files(volume))
        return [_here(word, folders) for word in one["args"]]

    async def _files(self, volume: Mapping[str, Any]) -> Path:
        folder = self.folder / f"volume-{volume['name']}"
        folder.mkdir(exist_ok=True)
        if "secret" in volume:
            stored = await self.client.get(f"{INSIDE}/secrets/{volume['secret']['secretName']}")
            data = {key: base64.b64decode(value) for key, value in stored["data"].items()}
        else:
            stored = await self.client.get(f"{INSIDE}/configmaps/{volume['configMap']['name']}")
            data = {key: value.encode() for key, value in stored["data"].items()}
        for key, value in data.items():
            (folder / key).write_bytes(value)
        return folder

    @contextlib.asynccontextmanager
    async def process(self, name: str, *more: str, hosts: Mapping[str, str] | None = None):
        """The first container of a workload's pod, as a process with that pod's token."""
        pod = await self.pod(name)
        words = [*(await self.command(pod, hosts=hosts)), *more]
        config = await kubeconfig(self.plane, self.client, self.folder, name, pod)
        fields = {"metadata.name": pod["metadata"]["name"], "metadata.namespace": SYSTEM_NAMESPACE}
        fields["spec.nodeName"] = pod["spec"]["nodeName"]
        given = {
            item["name"]: item.get("value") or fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
            for item in pod["spec"]["containers"][0].get("env", [])
        }
        self.logs[name] = self.folder / f"{name}.log"
        program = [sys.executable, "-c", _DIE + _MAIN, *words]
        with running(self.logs[name], program, **given, KUBECONFIG=str(config)) as started:
            yield started

    def words(self) -> str:
        """The logs' ends, for a failure."""
        return "\n".join(f"--- {name}\n{log.read_text(errors='replace')[-4000:]}" for name, log in self.logs.items())


def program(folder: Path) -> Path:
    """A folder for the path of somebody who types `gpushare`: this tree's."""
    folder.mkdir()
    file = folder / "gpushare"
    words = shlex.join(["env", f"PYTHONPATH={MANIFESTS.parent}", sys.executable, "-c", _MAIN])
    file.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    file.chmod(0o755)
    return folder


@contextlib.contextmanager
def running(log: Path, command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("ab") as said:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **environment},
            cwd=MANIFESTS.parent,
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(10)


def _here(word: str, folders: Mapping[str, str]) -> str:
    option, equals, value = word.partition("=")
    for inside, here in folders.items():
        if value == inside or value.startswith(f"{inside}/"):
            value = here + value.removeprefix(inside)
            break
    return option + equals + re.sub(r"^0\.0\.0\.0:", f"{ADDRESS}:", value)
