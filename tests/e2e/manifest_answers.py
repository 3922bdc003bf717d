# SPDX-License-Identifier: Apache-2.0
"""
What an installation answers and what its accounts asked for: ports, metrics, the API server's audit log.
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
from e2e.accounts import BY_HAND
from e2e.manifest_installation import ADDRESS
from e2e.own_plane import asked_by

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE


async def until_gone(client):
    """Our namespace does not end any more."""
    await client.until(
        lambda spaces: not any("deletionTimestamp" in one["metadata"] for one in spaces["items"]),
        "/api/v1/namespaces",
    )


async def answers(url):
    """The body, once somebody serves it with 200."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        for _ in range(3000):
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return await answer.text()
            await asyncio.sleep(0.1)
    raise AssertionError(f"{url} never answered 200")


async def open_soon(port):
    """Somebody listens; the gRPC ports are the leader's."""
    for _ in range(3000):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(ADDRESS, port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"nobody listens on {port}")


def value(page, name):
    """Of the one series of that name."""
    [line] = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return float(line.rpartition(" ")[2])


async def generations(installation):
    """How often the wish of each object that has one was changed, and the authority in the webhook."""
    found = {}
    for path in ("apps/v1", "networking.k8s.io/v1"):
        for plural in ("deployments", "daemonsets") if path == "apps/v1" else ("networkpolicies",):
            listed = await installation.client.get(f"/apis/{path}/namespaces/{SYSTEM_NAMESPACE}/{plural}")
            found |= {(plural, one["metadata"]["name"]): one["metadata"]["generation"] for one in listed["items"]}
    hooks = await installation.client.get(
        f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}"
    )
    [authority] = {hook["clientConfig"]["caBundle"] for hook in hooks["webhooks"]}
    return found | {"authority": authority}


def asked(plane, name):
    """What an account asked for through our code, as in the table of rights."""
    return {one.right for one in log_of(plane, name)}


def refusals(plane, name):
    """What was refused to it."""
    return sorted({one.right for one in log_of(plane, name) if one.status == 403})


def log_of(plane, name):
    """Everything that an account asked for through our code."""
    return (one for one in asked_by(plane, name) if one.program != BY_HAND)
