# SPDX-License-Identifier: Apache-2.0
"""
Kueue's side of a ProvisioningRequest: the calls that its documentation and API name, made against a real API server.

As Kueue does, it creates the request first and its PodTemplates after it, waits for a condition, then starts the pods
with the two annotations, and asks again under another name after `Failed`. Quotas and queues are not played. Sources:
kueue.sigs.k8s.io, "ProvisioningRequest" admission check; cluster-autoscaler, autoscaling.x-k8s.io/v1.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from e2e.apiclient import RefusedError
from e2e.sharing import PODS, our_pod
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import PROVISIONING_CLASS

if TYPE_CHECKING:
    from e2e.apiclient import ApiClient

GROUP = "autoscaling.x-k8s.io"
REQUESTS = f"/apis/{GROUP}/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
RESERVATIONS = "/apis/gpushare.dev/v1alpha1/reservations"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition() -> dict[str, Any]:
    """The kind, by the names that its API documents; values are not validated: the scheduler has to."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN, "status": _OPEN}}},
    }
    names = {"plural": "provisioningrequests", "singular": "provisioningrequest", "kind": "ProvisioningRequest"}
    # Kubernetes asks for an approval of kinds in its own groups.
    notes = {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"provisioningrequests.{GROUP}", "annotations": notes},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def install(client: ApiClient) -> None:
    """The kind, served."""
    with contextlib.suppress(RefusedError):
        await client.create(definition())
    await client.until(lambda found: "items" in found, REQUESTS)


async def uninstall(client: ApiClient) -> None:
    """The kind is gone, and all of it."""
    name = f"provisioningrequests.{GROUP}"
    await client.delete(f"{_DEFINITIONS}/{name}")
    await client.until(lambda kinds: name not in {one["metadata"]["name"] for one in kinds["items"]}, _DEFINITIONS)
    await client.delete(TEMPLATES)


def conditions(request: dict[str, Any]) -> dict[str, str]:
    """Types of the conditions that are true, with their messages."""
    found = request.get("status", {}).get("conditions", ())
    return {one["type"]: one["message"] for one in found if one["status"] == "True"}


@dataclass
class Job:
    """A workload of one or more pod sets, as Kueue holds it suspended."""

    client: ApiClient
    name: str
    sets: list[dict[str, Any]]
    """Pods, one of each set."""
    counts: list[int]
    parameters: dict[str, str] = field(default_factory=dict)
    attempt: int = 0

    @property
    def request(self) -> str:
        """Name of the present request: `<workload>-<check>-<attempt>`."""
        return f"{self.name}-cards-{self.attempt}"

    async def ask(self, class_name: str = PROVISIONING_CLASS) -> None:
        """Another request, and its templates after it."""
        self.attempt += 1
        sets = [
            {"podTemplateRef": {"name": f"ppt-{self.request}-{at}"}, "count": count}
            for at, count in enumerate(self.counts)
        ]
        spec = {"provisioningClassName": class_name, "parameters": self.parameters, "podSets": sets}
        thing = {"apiVersion": f"{GROUP}/v1", "kind": "ProvisioningRequest", "metadata": {"name": self.request}}
        await self.client.call("POST", REQUESTS, thing | {"spec": spec})
        for at, pod in enumerate(self.sets):
            template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
            named = {"metadata": {"name": f"ppt-{self.request}-{at}"}, "template": template}
            await self.client.call("POST", TEMPLATES, {"apiVersion": "v1", "kind": "PodTemplate"} | named)

    async def answer(self, *types: str) -> tuple[str, str]:
        """The first of these conditions that becomes true, with its message."""
        found = await self.client.until(
            lambda request: conditions(request).keys() & set(types), f"{REQUESTS}/{self.request}"
        )
        said = conditions(found)
        first = next(one for one in types if one in said)
        return first, said[first]

    async def start(self) -> None:
        """All pods, as they are after the workload was admitted."""
        for at, (pod, count) in enumerate(zip(self.sets, self.counts, strict=True)):
            for index in range(count):
                await self.client.create(annotated(pod, f"{self.name}-{at}-{index}", self.request))

    async def run(self, backoff: float = 1.0) -> list[str]:
        """Ask until the request is provisioned, then start; the messages of the attempts that failed."""
        failed = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await self.ask()
                state, message = await self.answer("Provisioned", "Failed")
                if state == "Provisioned":
                    await self.start()
                    return failed
                failed.append(message)
                await asyncio.sleep(backoff)

    async def pods(self) -> list[dict[str, Any]]:
        """Those that exist."""
        listed = await self.client.get(PODS)
        return [one for one in listed["items"] if one["metadata"]["name"].startswith(f"{self.name}-")]

    async def running(self) -> list[dict[str, Any]]:
        """Wait until every pod runs."""
        total = sum(self.counts)

        def whole(listed: dict[str, Any]) -> bool:
            mine = [one for one in listed["items"] if one["metadata"]["name"].startswith(f"{self.name}-")]
            return [one["status"].get("phase") for one in mine] == ["Running"] * total

        await self.client.until(whole, PODS)
        return await self.pods()

    async def end(self) -> None:
        """The job is over: its pods and its request go."""
        for pod in await self.pods():
            await self.client.delete(f"{PODS}/{pod['metadata']['name']}", force=True)
        await self.client.delete(f"{REQUESTS}/{self.request}")


def annotated(pod: dict[str, Any], name: str, request: str) -> dict[str, Any]:
    """The pod with what Kueue sets on it."""
    notes = {f"{GROUP}/consume-provisioning-request": request, f"{GROUP}/provisioning-class-name": PROVISIONING_CLASS}
    metadata = pod["metadata"] | {"name": name, "annotations": pod["metadata"].get("annotations", {}) | notes}
    return pod | {"metadata": metadata}


def job(client: ApiClient, name: str, *sets: tuple[int, int], **parameters: str) -> Job:
    """So many pods with so many GiB, for each set."""
    return Job(client, name, [our_pod(name, units) for _, units in sets], [count for count, _ in sets], parameters)
