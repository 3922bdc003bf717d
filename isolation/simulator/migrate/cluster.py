# SPDX-License-Identifier: Apache-2.0
"""Quotas and nodes of a cluster as kubectl would print them, for commands that read files."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from isolation.kube.access import Access
from isolation.kube.core.errors import ClusterError
from isolation.kube.paging import list_objects
from isolation.options import CannotReadError
from isolation.simulator.place.manifests import ManifestSource

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS: Final = 60.0
"""For both lists."""
QUOTAS: Final = "ResourceQuota"
NODES: Final = "Node"
_PATHS: Final = {QUOTAS: "/api/v1/resourcequotas", NODES: "/api/v1/nodes"}


def read_cluster(kubeconfig: Path | None, context: str | None, *kinds: str) -> list[ManifestSource]:
    """All objects of each kind, as one list each; CannotReadError."""
    return asyncio.run(_read(kubeconfig, context, kinds))


async def _read(kubeconfig: Path | None, context: str | None, kinds: tuple[str, ...]) -> list[ManifestSource]:
    try:
        async with asyncio.timeout(_SECONDS), Access(kubeconfig, context) as access:
            return [ManifestSource(f"<cluster {kind}s>", await _list(access, kind)) for kind in kinds]
    except ClusterError as exc:
        raise CannotReadError(f"cannot read the cluster: {exc}; check --kubeconfig, or name files") from None
    except TimeoutError:
        raise CannotReadError(f"the cluster did not answer within {_SECONDS:.0f} s; name files instead") from None


async def _list(access: Access, kind: str) -> str:
    """Items of a list have no kind of their own, as the API server sends them."""
    parts: list[str] = []
    async with aclosing(list_objects(access, _PATHS[kind])) as found:
        async for raw in found:
            text = bytes(raw).decode().lstrip()
            parts.append(f'{{"apiVersion": "v1", "kind": "{kind}", {text[1:]}')
    return f'{{"apiVersion": "v1", "kind": "List", "items": [{", ".join(parts)}]}}'
