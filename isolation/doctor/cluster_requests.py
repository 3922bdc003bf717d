# SPDX-License-Identifier: Apache-2.0
"""
How the doctor asks an API server: one object, a list page by page, a question.

Decides how much is read and how long is waited; judges nothing. What is refused or does not answer is `Untold`,
what is not there is None.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from isolation.doctor.checks.cluster.facts import Untold
from isolation.kube.core.errors import ClusterError, MalformedError, NotFoundError
from isolation.kube.paging import list_objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from isolation.kube.access import Access

_AT_ONCE: Final = 8
_LONGEST_TEXT: Final = 4 << 20
_TEXT_SECONDS: Final = 5.0


class Asking:
    """One way in, for all questions."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """What is there; ClusterError."""
        return _object(await self._access.page(path, query))

    async def one(self, path: str) -> Mapping[str, Any] | Untold | None:
        """One object."""
        try:
            return await self.get(path)
        except NotFoundError:
            return None
        except ClusterError as exc:
            return Untold(str(exc))

    async def items(self, path: str, **query: str) -> AsyncIterator[dict[str, Any]]:
        """Page by page; ClusterError."""
        async with aclosing(list_objects(self._access, path, query)) as found:
            async for raw in found:
                yield _object(raw)

    async def list(self, path: str, **query: str) -> tuple[dict[str, Any], ...] | Untold:
        """All of them."""
        try:
            return tuple([item async for item in self.items(path, **query)])
        except ClusterError as exc:
            return Untold(str(exc))

    async def post(self, path: str, body: object) -> dict[str, Any]:
        """A question that is asked by making something that is not kept; ClusterError."""
        async with self._gate:
            return _object(await self._access.send("POST", path, body))

    async def text(self, path: str) -> str | Untold:
        """What a process says through the API server."""
        try:
            found = await self._access.send("GET", path, seconds=_TEXT_SECONDS)
        except ClusterError as exc:
            return Untold(str(exc))
        return found[:_LONGEST_TEXT].decode(errors="replace")


def _object(text: bytes | msgspec.Raw) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise MalformedError("the answer is not JSON") from None
    if not isinstance(found, dict):
        raise MalformedError("the answer is not a JSON object")
    return found
