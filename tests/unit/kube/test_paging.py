# SPDX-License-Identifier: Apache-2.0
"""A list read page by page: every object once, the next page asked for ahead, nothing left running."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from isolation.kube import paging
from isolation.kube.core.errors import GoneError, MalformedError
from isolation.kube.paging import list_objects, list_pages


class Server:
    """Answers with pages in turn; the request after the last one waits for ever."""

    def __init__(self, *pages):
        self.pages, self.asked, self.cancelled = list(pages), [], 0

    async def page(self, path, query):
        """As `Access.page`."""
        self.asked.append((path, dict(query)))
        if not self.pages:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        found = self.pages.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def page(*items, more=""):
    """One page as the API server writes it."""
    meta = {"resourceVersion": "1"} | ({"continue": more} if more else {})
    return json.dumps({"metadata": meta, "items": list(items)}).encode()


def test_every_object_of_every_page_comes_once():
    """
    In order, with selectors and limit on every request.
    """

    async def story():
        server = Server(page(1, 2, more="x"), page(more="y"), page(3))
        found = [json.loads(bytes(raw)) async for raw in list_objects(server, "/p", {"labelSelector": "a=b"}, limit=2)]
        return found, server.asked

    found, asked = asyncio.run(story())
    assert [1, 2, 3] == found
    query = {"labelSelector": "a=b", "limit": "2"}
    assert [("/p", query), ("/p", query | {"continue": "x"}), ("/p", query | {"continue": "y"})] == asked


def test_the_next_page_is_asked_for_before_this_one_is_read():
    """
    And its request is cancelled where the reader stops.
    """

    async def story():
        server = Server(page(1, more="x"))
        async with aclosing(list_pages(server, "/p", {})) as pages:
            await anext(pages)
            asked = len(server.asked)
        return asked, server.cancelled

    assert (2, 1) == asyncio.run(story())


def test_a_first_page_that_was_asked_for_already_is_not_asked_for_again():
    """
    The caller may have begun the request while it did something else.
    """

    async def story():
        server = Server(page(1, more="x"), page(2))
        first = asyncio.create_task(server.page("/p", {}))
        found = [json.loads(bytes(raw)) async for raw in list_objects(server, "/p", first=first)]
        return found, len(server.asked)

    assert ([1, 2], 2) == asyncio.run(story())


@pytest.mark.parametrize(("answer", "error"), [(GoneError(410), GoneError), (b"{", MalformedError)], ids=str)
def test_a_page_that_fails_fails_the_list(answer, error):
    """
    Half a list is none.
    """

    async def story():
        return [raw async for raw in list_objects(Server(page(1, more="x"), answer), "/p")]

    with pytest.raises(error):
        asyncio.run(story())


def test_a_list_without_end_is_an_error(monkeypatch):
    """
    A server that always has one more page is broken.
    """
    monkeypatch.setattr(paging, "_MAX_PAGES", 3)

    async def story():
        return [raw async for raw in list_objects(Server(*[page(1, more="x")] * 5), "/p")]

    with pytest.raises(MalformedError, match="more than 3 pages"):
        asyncio.run(story())
