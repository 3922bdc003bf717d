# SPDX-License-Identifier: Apache-2.0
"""
What every step is done with: the API, the providers, the right to act, and what is known at this very moment.

Decides that no write leaves without being allowed, and how an answer of the API server reads as a refused step.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.kube.node_pods import lost_with
from isolation.contract.quantity import GIB
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.errors import MalformedError, NotFoundError
from isolation.kube.core.wire import identity_of, page_of
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.kube.watches import Sources
    from autoscaler.providers.registry import Providers
    from isolation.kube.access import Access


class RefusedStepError(Exception):
    """A step that is not taken, on its way to becoming a value."""

    def __init__(self, kind: ConditionKind, text: str, pool: str = "", node: str = "") -> None:
        self.kind, self.pool, self.node = kind, pool, node
        super().__init__(text)


class EventSink(Protocol):
    """Where the autoscaler says why."""

    async def node(self, name: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """One line in a node's history; an Event that cannot be written is logged, never raised."""

    async def pod(self, key: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """One line in a pod's history; `key` is namespace/name."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """See the module."""

    access: Access
    sources: Sources
    providers: Providers
    events: EventSink
    fence: Callable[[], str]
    now: Callable[[], float]
    unit_bytes: int = GIB
    """Of one unit of card memory."""

    def allowed(self) -> None:
        """Raise where we may not act (any more)."""
        why = self.fence()
        if why:
            raise RefusedStepError(ConditionKind.CONFLICT, f"actions inhibited: {why}")

    async def write(self, method: str, path: str, body: object = None, kind: str = "json") -> None:
        """One write, if it is still ours to make."""
        self.allowed()
        await self.access.send(method, path, body, kind)

    async def delete_reservation(self, name: str) -> None:
        """One that is gone already is fine."""
        with contextlib.suppress(NotFoundError):
            await self.write("DELETE", f"{RESERVATIONS_PATH}/{quote(name, safe='')}")

    async def read(self, path: str) -> dict[str, Any]:
        """One object of this moment, past every cache."""
        try:
            return decode_object(await self.access.send("GET", path))
        except MalformedError as exc:
            raise MalformedError(f"{path}: {exc}") from None

    async def stored(self, path: str, name: str) -> bool:
        """Whether an object of this name is stored at this moment, past every cache; the right to list is enough."""
        page = page_of(await self.access.page(path, {"fieldSelector": f"metadata.name={name}"}))
        return any(identity_of(raw).name == name for raw in page.items or ())

    async def lost_with(self, node: str) -> list[str]:
        """Keys of the pods that would be lost with a node at this moment, past every cache."""
        return await lost_with(self.access, node, self.now())
