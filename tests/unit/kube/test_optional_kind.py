# SPDX-License-Identifier: Apache-2.0
"""A kind that is installed while its watch runs is listed from then on."""

from __future__ import annotations

import asyncio
import json

from support.waiting import soon

from isolation.kube import optional_kind
from isolation.kube.core.errors import NotFoundError, ServerError
from isolation.kube.core.wire import identity_of
from isolation.kube.listwatch import Reflector, Selection
from isolation.kube.optional_kind import OptionalKind

PATH = "/apis/example.com/v1/things"


class Server:
    """One kind, perhaps not installed; it cannot be watched from a version that it never had."""

    def __init__(self):
        self.items = None

    async def page(self, _path, _query):
        """A whole list."""
        if self.items is None:
            raise NotFoundError(404, "NotFound")
        return json.dumps({"metadata": {"resourceVersion": "7"}, "items": self.items}).encode()

    async def lines(self, _path, query, _idle):
        """Silence, from a version that is one."""
        if self.items is None:
            raise NotFoundError(404, "NotFound")
        if query["resourceVersion"] == "0":
            raise ServerError(500, "InternalError", "storage feature RequestWatchProgress is disabled")
        yield b""
        await asyncio.sleep(3600)


class Sink:
    """Names."""

    def __init__(self):
        self.known = set()

    def put(self, raw):
        """One more."""
        name = identity_of(raw).name
        self.known.add(name)
        return name

    def only(self, keys):
        """The others are gone."""
        self.known &= keys


def test_what_a_kind_has_when_it_is_installed_is_found_though_its_first_list_was_none(monkeypatch):
    """
    Kubernetes 1.36 refuses to watch a kind of a CustomResourceDefinition from version 0: it is listed again.
    """
    monkeypatch.setattr(optional_kind, "_RETRY_SECONDS", 0.01)

    async def story():
        server, sink = Server(), Sink()
        reflector = Reflector(OptionalKind(server), Selection(PATH), sink)
        running = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        before = set(sink.known)
        await asyncio.sleep(0.05)
        server.items = [{"metadata": {"name": "a", "uid": "a", "resourceVersion": "6"}}]
        await soon(lambda: sink.known)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return before, sink.known

    assert (set(), {"a"}) == asyncio.run(story())
