# SPDX-License-Identifier: Apache-2.0
"""
A kind that may not be installed in a cluster (a CustomResourceDefinition): an empty list, and another try later.

Decides that "not found" of a whole kind is an answer and no failure; what an object means is the sink's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from isolation.kube.core.errors import GoneError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from isolation.kube.listwatch import Source

log = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 15.0
"""It may be installed later."""


class OptionalKind:
    """A source whose kind may not be installed: then there is none of it."""

    def __init__(self, source: Source) -> None:
        self._source, self._missing = source, False

    async def page(self, path: str, query: Mapping[str, str]) -> bytes:
        """A whole answer; an empty list where the kind is not known, which is logged when it turns out."""
        try:
            answer = await self._source.page(path, query)
        except NotFoundError:
            if not self._missing:
                log.info("cannot find %s: resource is not installed, continuing without it", path)
            self._missing = True
            return b'{"metadata":{"resourceVersion":"0"},"items":[]}'
        self._missing = False
        return answer

    async def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """Lines as they come; where the kind is not known, silence for a while, and then the end."""
        if self._missing:
            yield b""
            await asyncio.sleep(min(idle_seconds, _RETRY_SECONDS))
            with contextlib.suppress(NotFoundError):
                await self._source.page(path, {"limit": "1"})
                # A server need not watch from the version of a list that was none: its objects are listed now.
                raise GoneError(HTTPStatus.GONE, "Expired", "the kind was not there when it was listed")
            return
        try:
            async with contextlib.aclosing(self._source.lines(path, query, idle_seconds)) as lines:
                async for line in lines:
                    yield line
        except NotFoundError:
            # the server has spoken: what it does not have is not old news
            yield b""
            await asyncio.sleep(min(idle_seconds, _RETRY_SECONDS))
