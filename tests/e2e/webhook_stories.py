# SPDX-License-Identifier: Apache-2.0
"""Stories about pods with our admission webhook in place."""

from __future__ import annotations

import asyncio
import contextlib

from e2e.admission_harness import PODS, Stand, webhooked
from e2e.apiclient import RefusedError, connected
from support.admission_pods import TEMPLATED


def path_of(kind: str) -> str:
    """Where objects of this kind are made."""
    version, plural = TEMPLATED[kind]
    return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/default/{plural}"


def asking(plane, story, timeout_seconds=30):
    """What a story with the webhook in place returns."""

    async def run():
        stand = Stand(plane)
        stand.timeout_seconds = timeout_seconds
        async with connected(plane) as client, webhooked(client, stand):
            return await story(client, stand)

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def stored(client, made):
    """A pod that exists for a while."""
    kept = await client.call("POST", PODS, made)
    try:
        yield kept
    finally:
        await client.delete(f"{PODS}/{kept['metadata']['name']}", force=True)


async def answer(call):
    """What was said; empty where it was done."""
    try:
        await call
    except RefusedError as exc:
        return str(exc)
    return ""


def binding(name: str, **annotations: str) -> dict:
    """A Binding to a node that need not exist."""
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "n1"}}
