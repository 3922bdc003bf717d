"""
The mark of a node that is being emptied: our taint, and beside it since when and why.

Decides how it is put and taken away: in one write over exactly the node that was read, so that nobody's taint is
overwritten. A node that somebody else takes out of service is not touched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from autoscaler.kube.doubt import Kind
from autoscaler.kube.notes import Drain, drain_of, ours, taken_by
from autoscaler.kube.tools import RefusedStepError
from isolation.cluster.failure import RefusedError
from isolation.contract.codec_shape import At, CodecError
from isolation.contract.model import Taint
from isolation.contract.names import DRAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.kube.tools import Tools

_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_TRIES: Final = 4
"""A heartbeat changes a node's version too: what nobody else wants is tried again."""


def _same(at: At, node: str, uid: str) -> None:
    """Raise where it is another node than the one that was meant."""
    if uid and at["metadata"]["uid"].text() != uid:
        raise RefusedStepError(Kind.CONFLICT, f"node {node} was replaced by another node of the same name", node=node)


class Marks:
    """See the module."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def put(self, node: str, uid: str, why: str, *, removing: bool = False) -> None:
        """
        No new pods from now on; RefusedStepError where somebody else has other plans.

        `removing`: the machine has failed, so that a cordon by others is no objection, and no pod is sent there again.
        """

        def marked(at: At) -> dict[str, Any] | None:
            taints = [item.mapping() for item in at["spec"]["taints"].items()]
            other = taken_by(Taint(At(item)["key"].text()) for item in taints)
            cordoned = at["spec"]["unschedulable"].flag() and not removing
            if cordoned or other:
                text = f"node {node}: another client takes it out of service ({other or 'cordoned'})"
                raise RefusedStepError(Kind.CONFLICT, text, node=node)
            _same(at, node, uid)
            rest = [item for item in taints if not ours(str(item.get("key")))]
            mark = Drain(self._tools.now(), why, removing).text()
            return {"mark": mark, "taints": [*rest, {"key": DRAIN, "effect": "NoSchedule"}]}

        await self._change(node, marked)

    async def seal(self, node: str, uid: str, *, removing: bool = True) -> None:
        """
        Nobody is sent there again, whoever waits: the machine's removal is about to be ordered; False: it was refused.

        Written over exactly a node that carries our taint and mark at this moment; RefusedStepError where it does not.
        """

        def sealed(at: At) -> dict[str, Any] | None:
            _same(at, node, uid)
            taints = [item.mapping() for item in at["spec"]["taints"].items()]
            tainted = any(ours(str(item.get("key"))) for item in taints)
            mark = drain_of(at["metadata"]["annotations"].texts().get(DRAIN, ""))
            if mark is None or mark.since <= 0 or not tainted:
                raise RefusedStepError(Kind.CONFLICT, f"node {node} no longer carries the drain taint", node=node)
            if mark.removing == removing:
                return None
            return {"mark": replace(mark, removing=removing).text(), "taints": taints}

        await self._change(node, sealed)

    async def take(self, node: str) -> None:
        """Pods are welcome again; a node that is gone, or is not marked, needs nothing."""

        def cleared(at: At) -> dict[str, Any] | None:
            taints = [item.mapping() for item in at["spec"]["taints"].items()]
            rest = [item for item in taints if not ours(str(item.get("key")))]
            if len(rest) == len(taints) and DRAIN not in at["metadata"]["annotations"].texts():
                return None
            return {"mark": None, "taints": rest}

        await self._change(node, cleared)

    async def _change(self, node: str, wish: Callable[[At], dict[str, Any] | None]) -> None:
        path = f"/api/v1/nodes/{quote(node, safe='')}"
        for _ in range(_TRIES):
            try:
                at = At(await self._tools.read(path))
                wanted = wish(at)
                version = at["metadata"]["resourceVersion"].text()
            except CodecError as exc:
                raise RefusedStepError(Kind.UNREADABLE, f"node {node}: {exc}", node=node) from None
            except RefusedError as exc:
                if exc.status == _NOT_FOUND:
                    raise RefusedStepError(Kind.CONFLICT, f"node {node} no longer exists", node=node) from None
                raise
            if wanted is None:
                return
            meta = {"resourceVersion": version, "annotations": {DRAIN: wanted["mark"]}}
            body = {"metadata": meta, "spec": {"taints": wanted["taints"]}}
            try:
                await self._tools.write("PATCH", path, body, "merge-patch")
            except RefusedError as exc:
                if exc.status != _CONFLICT:
                    raise
            else:
                return
        raise RefusedStepError(
            Kind.CONFLICT, f"node {node}: too many conflicting updates; nothing was written", node=node
        )
