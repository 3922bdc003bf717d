# SPDX-License-Identifier: Apache-2.0
"""
A wire between a client and the API server that can be cut: bytes go through as they are, TLS and all.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Wire:
    """Connections through it, and what happened to them."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0
        self.passing = asyncio.Event()
        """While not set, connections are taken and nothing is passed on: half-open."""
        self.passing.set()

    def cut(self) -> None:
        """Every connection ends now, without a goodbye."""
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._open |= {writer, back}
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer), return_exceptions=True)
            self._open -= {writer, back}
            back.close()
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(1 << 16):
            await self.passing.wait()
            sink.write(chunk)
            await sink.drain()
        sink.close()


@contextlib.asynccontextmanager
async def wire(target: int) -> AsyncIterator[Wire]:
    """A wire to a port of this machine."""
    made = Wire(target)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
