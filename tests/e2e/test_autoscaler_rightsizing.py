# SPDX-License-Identifier: Apache-2.0
"""Right-sizing on a real API server: measured, published, carried over to the next leader, shown by the command."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiohttp import web
from e2e.autoscaler_process import autoscaler, config, eventually, fleet, one_pool
from e2e.sharing import PODS, our_pod
from e2e.usage_history import WHERE, known

from autoscaler.core.rightsizing.codec import decode, encode
from isolation.contract import metrics
from isolation.contract.names import ALLOCATION
from isolation.contract.quantity import GIB


def page(uuid):
    """An exporter's: the pod uses 2 GiB."""
    labels = f'namespace="default",pod="first",container="main",node="",uuid="{uuid}",card="0",mode="shared"'
    lines = [f"{metrics.SAMPLE_TIME.name} {time.time()}", f"{metrics.CONTAINER_USED.name}{{{labels}}} {2 * GIB}"]
    return "\n".join([*lines, f"{metrics.CONTAINER_PEAK.name}{{{labels}}} {3 * GIB}", ""])


async def programs(client):
    """What is published."""
    found = await client.get(WHERE)
    return json.loads(found["data"]["recommendations.json"])["programs"]


def test_a_program_is_measured_and_recommended_for(plane, tmp_path):
    """
    Too little is known at first; with the history of an earlier leader a recommendation is published and shown.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", start=1) as (client, _):
            await client.create(our_pod("first", 8))
            bound = await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/first")
            record = json.loads(bound["metadata"]["annotations"][ALLOCATION])
            uuid = next(part["uuid"] for part in json_parts(record))
            served = web.Application()

            async def answer(_):
                return web.Response(text=page(uuid))

            served.router.add_get("/metrics", answer)
            runner = web.AppRunner(served)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            try:
                with autoscaler(plane, tmp_path, "one") as one:
                    one.config.write_text(config(one_pool(), metrics={"source": "exporter", "port": port}))
                    one.start("--dry-run")
                    assert await eventually(lambda: published(client)), one.log()[-3000:]
                    [young] = await programs(client)
                    one.end(15)
                    stored = await client.get(WHERE)
                    [key] = decode(stored["data"]["history"], time.time())
                    await client.merge(WHERE, {"data": {"history": encode({key: known(time.time())})}})
                    one.start("--dry-run")
                    assert await eventually(lambda: published(client, recommended=True)), one.log()[-3000:]
                    shown = await asyncio.create_subprocess_exec(
                        sys.executable,
                        "-m",
                        "gpushare",
                        "recommend",
                        f"--kubeconfig={plane.kubeconfig}",
                        "-o",
                        "json",
                        stdout=asyncio.subprocess.PIPE,
                    )
                    out, _ = await asyncio.wait_for(shown.communicate(), 60)
                    return young, json.loads(out), one.log()
            finally:
                await runner.cleanup()
                await client.delete(WHERE)

    young, shown, log = asyncio.run(story())
    assert ("Pod/first", "main", 8 * GIB, "few_lives") == (
        young["owner"],
        young["container"],
        young["promised"],
        young["abstained"],
    )
    [workload] = shown["workloads"]
    assert 3 * GIB < workload["recommended_bytes"] < 8 * GIB
    assert workload["freed_bytes"] == 8 * GIB - workload["recommended_bytes"]
    assert not shown["applied"]
    assert "Traceback" not in log


async def published(client, *, recommended=False):
    """Whether there is a program, and a recommendation for it."""
    try:
        found = await programs(client)
    except Exception:  # noqa: BLE001 (not there yet)
        return False
    return bool(found) and (not recommended or bool(found[0]["memory"]))


def json_parts(value):
    """Every object of a record that names a card."""
    if isinstance(value, dict):
        if "uuid" in value:
            yield value
        for inner in value.values():
            yield from json_parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from json_parts(inner)
