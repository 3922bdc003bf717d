# SPDX-License-Identifier: Apache-2.0
"""
The stand-in as the container of a stored Deployment: its command, its files, and the names of Services.

As a kubelet does: another pod is another process, with the files as they are then; what has ended begins again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import TYPE_CHECKING, Any, Final

from e2e.apiclient import RefusedError
from e2e.cluster_autoscaler.harness import StandIn
from e2e.manifest_installation import ADDRESS
from support.waiting import soon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

SPACE: Final = "/api/v1/namespaces/kube-system"
_HOSTS: Final = f"""127.0.0.1 localhost
{ADDRESS} gpushare-autoscaler.gpushare-system.svc
"""
_INSIDE: Final = 'mount --bind "$0" /etc/hosts && exec env GRPC_DNS_RESOLVER=native "$@"'
_LOOK_SECONDS: Final = 0.3


class Installed(StandIn):
    """One Deployment's; `pod` is the name of the one whose process runs."""

    def __init__(self, plane: ControlPlane, client: ApiClient, folder: Path) -> None:
        super().__init__(folder)
        self._client, self._kubeconfig = client, plane.kubeconfig
        self._hosts = folder / "cluster-autoscaler.hosts"
        self._hosts.write_text(_HOSTS)
        self.pod = ""

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """While the block lasts, whatever pod there is runs."""
        task = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(self.end)

    async def runs(self, other_than: str = "") -> str:
        """The pod's name, once the process of one has done a loop."""

        async def claim() -> bool:
            return self.pod not in ("", other_than) and self.status().get("count", {}).get("loops", 0) > 0

        await soon(claim, lambda: f"{self.pod}: {self.log()[-3000:]}", every=0.2)
        return self.pod

    async def _serve(self) -> None:
        while True:
            with contextlib.suppress(RefusedError, OSError):
                pod = await self._newest()
                name = pod["metadata"]["name"] if pod else ""
                if name != self.pod or (pod and not self.running):
                    await asyncio.to_thread(self.end)
                    self.pod = ""
                    if pod:
                        await self._begin(pod)
                        self.pod = name
            await asyncio.sleep(_LOOK_SECONDS)

    async def _newest(self) -> dict[str, Any] | None:
        listed = await self._client.get(f"{SPACE}/pods", labelSelector="app=cluster-autoscaler")
        up = [
            pod
            for pod in listed["items"]
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        return max(up, key=lambda pod: int(pod["metadata"]["resourceVersion"]), default=None)

    async def _begin(self, pod: Mapping[str, Any]) -> None:
        [box] = pod["spec"]["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in box["volumeMounts"]}
        volumes = [one for one in pod["spec"]["volumes"] if "secret" in one or "configMap" in one]
        folders = {mounted[one["name"]]: self._folder / f"cluster-autoscaler-{one['name']}" for one in volumes}

        def here(text: str) -> str:
            for inside, folder in folders.items():
                text = text.replace(f"{inside}/", f"{folder}/")
            return text

        for one in volumes:
            folder = folders[mounted[one["name"]]]
            folder.mkdir(exist_ok=True)
            for name, data in (await self._stored(one)).items():
                (folder / name).write_bytes(data if "secret" in one else here(data.decode()).encode())
        words = [here(word) for word in box["command"][1:]]
        inside = ("unshare", "--mount", "sh", "-c", _INSIDE, str(self._hosts))
        await asyncio.to_thread(self.launch, [*words, f"--kubeconfig={self._kubeconfig}"], *inside)

    async def _stored(self, volume: Mapping[str, Any]) -> dict[str, bytes]:
        if "secret" in volume:
            data = (await self._client.get(f"{SPACE}/secrets/{volume['secret']['secretName']}"))["data"]
            return {name: base64.b64decode(text) for name, text in data.items()}
        data = (await self._client.get(f"{SPACE}/configmaps/{volume['configMap']['name']}"))["data"]
        return {name: text.encode() for name, text in data.items()}
