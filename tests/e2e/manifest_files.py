# SPDX-License-Identifier: Apache-2.0
"""
The committed manifests, and a way to give them to a control plane as they are.

Knows where an object belongs by asking the API server; reads kustomizations far enough to follow their lists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from e2e.apiclient import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.apiclient import ApiClient

BASE = Path(__file__).resolve().parents[2] / "manifests" / "base"
_FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role")


def files(folder: Path = BASE) -> Iterator[Path]:
    """Every file that the kustomization lists, through the folders that it names."""
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = folder / name
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def documents(folder: Path = BASE) -> list[dict[str, Any]]:
    """All their objects; those first on which others depend."""
    found = [one for path in files(folder) for one in yaml.safe_load_all(path.read_text()) if one]
    order = {kind: at for at, kind in enumerate(_FIRST)}
    return sorted(found, key=lambda one: order.get(one["kind"], len(order)))


class Cluster:
    """Objects by their own words."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._plurals: dict[str, dict[str, dict[str, Any]]] = {}

    async def path(self, thing: dict[str, Any], *, one: bool = False) -> str:
        """Where it belongs: the collection, or the object itself."""
        version = thing["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if thing["kind"] not in self._plurals.get(version, {}):
            listed = (await self._client.get(root))["resources"]
            self._plurals[version] = {item["kind"]: item for item in listed if "/" not in item["name"]}
        item = self._plurals[version][thing["kind"]]
        inside = f"/namespaces/{thing['metadata'].get('namespace', 'default')}" if item["namespaced"] else ""
        return f"{root}{inside}/{item['name']}" + (f"/{thing['metadata']['name']}" if one else "")

    async def rehearse(self, thing: dict[str, Any]) -> None:
        """What the API server would make of it, there or not, and nothing happens; unknown fields are refused."""
        query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "test", "force": "true"}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path, body = await self.path(thing, one=True), json.dumps(thing)
        async with self._client._session.patch(path, data=body, params=query, headers=headers) as answer:
            if answer.status >= 300:
                raise RefusedError(answer.status, await answer.text())

    async def create(self, thing: dict[str, Any]) -> dict[str, Any]:
        """For good."""
        return await self._client.call("POST", await self.path(thing), thing, fieldValidation="Strict")

    async def ensure(self, thing: dict[str, Any]) -> None:
        """There, by our hand or by another test's."""
        try:
            await self.create(thing)
        except RefusedError as exc:
            if exc.status != 409:
                raise

    async def remove(self, thing: dict[str, Any]) -> None:
        """Gone, if it was there."""
        await self._client.delete(await self.path(thing, one=True))
