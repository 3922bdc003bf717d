# SPDX-License-Identifier: Apache-2.0
"""
The mark of a node that is being emptied: our taint, and beside it since when and why.

Decides how it is put and taken away: in one write over exactly the node that was read, so that nobody's taint is
overwritten. A node that somebody else takes out of service is not touched.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from autoscaler.kube.annotations import DrainRecord, find_removal_taint, ours, read_drain
from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.kube.step_context import RefusedStepError
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.model import Taint
from isolation.contract.names import DRAIN
from isolation.kube.core.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.kube.step_context import StepContext

_TRIES: Final = 4
"""A heartbeat changes a node's version too: what nobody else wants is tried again."""


def _taints(at: At) -> list[dict[str, Any]]:
    return [dict(item.mapping()) for item in at["spec"]["taints"].items()]


def _mark(at: At) -> DrainRecord | None:
    """Our mark; None where it, or the taint that belongs to it, is missing or cannot be read."""
    mark = read_drain(at["metadata"]["annotations"].texts().get(DRAIN, ""))
    tainted = any(ours(str(item.get("key"))) for item in _taints(at))
    return mark if mark is not None and mark.since > 0 and tainted else None


def _same(at: At, node: str, uid: str) -> None:
    """Raise where it is another node than the one that was meant."""
    if uid and at["metadata"]["uid"].text() != uid:
        raise RefusedStepError(
            ConditionKind.CONFLICT, f"node {node} was replaced by another node of the same name", node=node
        )


ORDERED_SECONDS: Final = 300.0
"""A removal without an answer from the provider may still take effect this long."""


class DrainMarks:
    """See the module."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def put(self, node: str, uid: str, why: str, *, failed: bool = False) -> None:
        """
        No new pods from now on; RefusedStepError where somebody else has other plans. What is marked stays as it is.

        `failed`: its machine is no good, so that a cordon by others is no objection, and no pod is sent there again.
        """

        def marked(at: At) -> dict[str, Any] | None:
            taints, mark = _taints(at), _mark(at)
            other = find_removal_taint(Taint(At(item)["key"].text()) for item in taints)
            cordoned = at["spec"]["unschedulable"].flag() and not failed
            if cordoned or other:
                text = f"node {node}: another client takes it out of service ({other or 'cordoned'})"
                raise RefusedStepError(ConditionKind.CONFLICT, text, node=node)
            _same(at, node, uid)
            if mark is not None:
                return None
            rest = [item for item in taints if not ours(str(item.get("key")))]
            now = self._context.now()
            text = DrainRecord(now, why, now if failed else 0.0).text()
            return {"mark": text, "taints": [*rest, {"key": DRAIN, "effect": "NoSchedule"}]}

        await self._change(node, marked)

    async def seal(self, node: str, uid: str, since: float) -> bool:
        """
        Write down that the machine's removal is about to be ordered: from now on nobody is sent there, whoever waits.

        False where the node does not carry our taint and mark at this moment; RefusedStepError where it carries them
        since later than this moment, or is another one.
        """
        whole = True

        def sealed(at: At) -> dict[str, Any] | None:
            nonlocal whole
            _same(at, node, uid)
            mark = _mark(at)
            whole = mark is not None
            if mark is None:
                return None
            if mark.since > since:
                age = self._context.now() - mark.since
                raise RefusedStepError(
                    ConditionKind.CONFLICT, f"node {node} was tainted only {age:.0f} s ago", node=node
                )
            return {"mark": replace(mark, removing=self._context.now()).text(), "taints": _taints(at)}

        await self._change(node, sealed)
        return whole

    async def open(self, node: str) -> None:
        """Its removal was not ordered after all."""

        def opened(at: At) -> dict[str, Any] | None:
            mark = _mark(at)
            return None if mark is None else {"mark": replace(mark, removing=0.0).text(), "taints": _taints(at)}

        await self._change(node, opened)

    async def take(self, node: str) -> None:
        """Pods are welcome again, unless its removal may still come; one that is gone, or not marked, needs nothing."""

        def cleared(at: At) -> dict[str, Any] | None:
            taints, said = _taints(at), at["metadata"]["annotations"].texts().get(DRAIN, "")
            mark = read_drain(said)
            if mark is not None and self._context.now() - mark.removing < ORDERED_SECONDS:
                text = f"node {node} is not kept: its removal may have been ordered"
                raise RefusedStepError(ConditionKind.CONFLICT, text, node=node)
            rest = [item for item in taints if not ours(str(item.get("key")))]
            return None if len(rest) == len(taints) and not said else {"mark": None, "taints": rest}

        await self._change(node, cleared)

    async def _change(self, node: str, wish: Callable[[At], dict[str, Any] | None]) -> None:
        path = f"/api/v1/nodes/{quote(node, safe='')}"
        for _ in range(_TRIES):
            try:
                at = At(await self._context.read(path))
                wanted = wish(at)
                version = at["metadata"]["resourceVersion"].text()
            except CodecError as exc:
                raise RefusedStepError(ConditionKind.UNREADABLE, f"node {node}: {exc}", node=node) from None
            except NotFoundError:
                raise RefusedStepError(ConditionKind.CONFLICT, f"node {node} no longer exists", node=node) from None
            if wanted is None:
                return
            meta = {"resourceVersion": version, "annotations": {DRAIN: wanted["mark"]}}
            body = {"metadata": meta, "spec": {"taints": wanted["taints"]}}
            with contextlib.suppress(ConflictError):
                await self._context.write("PATCH", path, body, "merge-patch")
                return
        raise RefusedStepError(
            ConditionKind.CONFLICT, f"node {node}: too many conflicting updates; nothing was written", node=node
        )
