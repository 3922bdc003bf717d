# SPDX-License-Identifier: Apache-2.0
"""
A port of the node that is passed on to the pod which has asked for it: `hostport.py ADDRESS PORT LEASES`.

Stands for a network plugin's port mapping. The pod's address is in the file LEASES/port-PORT, which `routed.sh` writes.
Runs with the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

_SECONDS = 10.0


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
            await sink.drain()
    sink.close()


async def serve(address: str, port: int, lease: Path) -> None:
    """Until it is killed; a connection for which there is no pod is closed."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = lease.read_text().strip()  # noqa: ASYNC240 (a few bytes in memory)
            there, back = await asyncio.wait_for(asyncio.open_connection(pod, port), _SECONDS)
        except (OSError, TimeoutError):
            writer.close()
            return
        await asyncio.gather(_pass(reader, back), _pass(there, writer))

    server = await asyncio.start_server(connection, address, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) / f"port-{sys.argv[2]}"))
