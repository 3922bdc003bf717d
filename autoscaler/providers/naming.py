# SPDX-License-Identifier: Apache-2.0
"""
Which node a machine has become, by the one thing that cloud and cluster both know: `spec.providerID`.

Decides when the nodes are listed again: when a machine that should be one is not known, and not more often than
every few seconds. A list that fails is no answer: whoever asked must not take a node for a machine without one.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from autoscaler.providers.base import ProviderUnreachableError
from isolation.kube.core.errors import ClusterError
from isolation.kube.paging import list_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from isolation.kube.access import Access

AGAIN_SECONDS: Final = 15.0
_PATH: Final = "/api/v1/nodes"


class _Meta(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct):
    providerID: str = ""  # noqa: N815 (Kubernetes' spelling)


class _Node(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_NODE: Final = msgspec.json.Decoder(_Node)


class NodeNames:
    """Names of nodes by provider ID, as far as they were asked for."""

    def __init__(self, access: Access, clock: Callable[[], float]) -> None:
        self._access, self._clock = access, clock
        self._known: dict[str, str] = {}
        self._listed = float("-inf")

    async def of(self, ids: Collection[str]) -> Mapping[str, str]:
        """Those of them that are nodes; UnreachableError where nobody can tell."""
        if any(ident not in self._known for ident in ids) and self._clock() - self._listed >= AGAIN_SECONDS:
            try:
                self._known = await self._list()
            except ClusterError as exc:
                raise ProviderUnreachableError(f"cannot list nodes: {exc}") from exc
            except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
                raise ProviderUnreachableError(f"cannot read the list of nodes: {exc}") from exc
            self._listed = self._clock()
        return {ident: self._known[ident] for ident in ids if ident in self._known}

    async def _list(self) -> dict[str, str]:
        async with aclosing(list_objects(self._access, _PATH)) as listed:
            nodes = [_NODE.decode(raw) async for raw in listed]
        return {node.spec.providerID: node.metadata.name for node in nodes if node.spec.providerID}
