# SPDX-License-Identifier: Apache-2.0
"""
Which node a machine has become, by the one thing that cloud and cluster both know: `spec.providerID`.

Decides when the nodes are listed again: when a machine that should be one is not known, and not more often than
every few seconds. A list that fails is no answer: whoever asked must not take a node for a machine without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from autoscaler.providers.base import UnreachableError
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from isolation.kube.access import Access

AGAIN_SECONDS: Final = 15.0
_PATH: Final = "/api/v1/nodes"
_PAGE: Final = "500"
_MOST_PAGES: Final = 200


class _Meta(msgspec.Struct):
    name: str = ""
    token: str = msgspec.field(name="continue", default="")


class _Spec(msgspec.Struct):
    providerID: str = ""  # noqa: N815 (Kubernetes' spelling)


class _Node(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[_Node] | None = None


_PAGES: Final = msgspec.json.Decoder(_Page)


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
                raise UnreachableError(f"cannot list nodes: {exc}") from exc
            except msgspec.MsgspecError as exc:
                raise UnreachableError(f"cannot read the list of nodes: {exc}") from exc
            self._listed = self._clock()
        return {ident: self._known[ident] for ident in ids if ident in self._known}

    async def _list(self) -> dict[str, str]:
        found: dict[str, str] = {}
        token = ""
        for _ in range(_MOST_PAGES):
            query = {"limit": _PAGE} | ({"continue": token} if token else {})
            page = _PAGES.decode(await self._access.page(_PATH, query))
            found |= {node.spec.providerID: node.metadata.name for node in page.items or () if node.spec.providerID}
            token = page.metadata.token
            if not token:
                return found
        raise UnreachableError(f"the list of nodes has more than {_MOST_PAGES} pages")
