# SPDX-License-Identifier: Apache-2.0
"""
A list read page by page, for whoever does not watch.

Decides nothing about objects. A page's version may be compacted away before the next page is asked for: then the
caller gets GoneError and lists again.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol

from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import page_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Mapping

    import msgspec

    from isolation.kube.core.wire import Page

PAGE: Final = 500
"""Objects in a page, unless said otherwise: kubectl's --chunk-size."""
_MAX_PAGES: Final = 100_000  # a server that never ends a list is broken


class PageSource(Protocol):
    """Whatever answers list requests, `access.Access` for example; raises ClusterError."""

    def page(self, path: str, query: Mapping[str, str]) -> Coroutine[Any, Any, bytes]:
        """A whole answer."""


async def list_pages(
    source: PageSource, path: str, query: Mapping[str, str], first: asyncio.Task[bytes] | None = None
) -> AsyncGenerator[Page, None]:
    """
    The pages of a list; `query` has selectors, and `limit` unless the list should come in one piece.

    Each page is asked for before the one before it is read: server and reader work at once. `first`: the first page,
    asked for already.
    """
    coming = first or asyncio.create_task(source.page(path, query))
    try:
        for _ in range(_MAX_PAGES):
            page = page_of(await coming)
            token = page.metadata.continue_
            if token:
                coming = asyncio.create_task(source.page(path, {**query, "continue": token}))
                await asyncio.sleep(0)  # the request leaves before the reader takes the loop
            yield page
            if not token:
                return
        raise MalformedError(f"list has more than {_MAX_PAGES} pages")
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def list_objects(
    source: PageSource,
    path: str,
    query: Mapping[str, str] | None = None,
    limit: int = PAGE,
    first: asyncio.Task[bytes] | None = None,
) -> AsyncGenerator[msgspec.Raw, None]:
    """Every object of a list, undecoded. Raises ClusterError, GoneError for a list that outlived its version."""
    async with aclosing(list_pages(source, path, {**(query or {}), "limit": str(limit)}, first)) as pages:
        async for page in pages:
            for raw in page.items or ():
                yield raw
