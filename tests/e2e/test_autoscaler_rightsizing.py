# SPDX-License-Identifier: Apache-2.0
"""Right-sizing on a real API server: measured, published, carried over to the next leader, shown, applied live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path

from aiohttp import web
from e2e.autoscaler_process import LEASE, POOLS, QUICK, STATE, autoscaler, config, eventually, fleet, one_pool
from e2e.node_harness import stage
from e2e.sharing import PODS, our_pod, sharing, why_pending
from e2e.usage_history import WHERE, known

from autoscaler.core.rightsizing.codec import decode, encode
from autoscaler.core.rightsizing.history import ProgramKey
from isolation.contract import abi, metrics
from isolation.contract.names import ALLOCATION, RESIZE, RESIZE_STATUS, RIGHT_SIZE, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB

MAP = {"apiVersion": "v1", "kind": "ConfigMap"}


def page(uuid, denied=0):
    """An exporter's: the pod uses 2 GiB."""
    labels = f'namespace="default",pod="first",container="main",node="",uuid="{uuid}",card="0",mode="shared"'
    lines = [
        f"{metrics.SAMPLE_TIMESTAMP.name} {time.time()}",
        f"{metrics.CONTAINER_MEMORY_USED.name}{{{labels}}} {2 * GIB}",
    ]
    lines += [
        f"{metrics.CONTAINER_MEMORY_PEAK.name}{{{labels}}} {3 * GIB}",
        f"{metrics.DENIED_ALLOCATIONS.name}{{{labels}}} {denied}",
    ]
    return "\n".join([*lines, ""])


@contextlib.asynccontextmanager
async def exporter(uuid):
    """One that answers with this page; its port, and how many requests it says were denied."""
    denied, served = [0], web.Application()

    async def answer(_):
        return web.Response(text=page(uuid, denied[0]))

    served.router.add_get("/metrics", answer)
    runner = web.AppRunner(served)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], denied
    finally:
        await runner.cleanup()


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
            try:
                async with exporter(uuid) as (port, _), one_autoscaler(plane, tmp_path) as one:
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


@contextlib.asynccontextmanager
async def live_stage(plane, tmp_path, **limits):
    """A pod of 12 of 14 units that needs 3 and may be resized, one of 10 that waits, and the autoscaler's file."""
    async with sharing(plane, tmp_path), stage(plane, tmp_path, "sized", number=1) as at:
        status = {"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}}
        await at.client.merge(f"{at.node.path}/status", status)
        first = our_pod("first", 12)
        first["metadata"]["annotations"] = {RIGHT_SIZE: "live"}
        made = await at.client.create(first)
        running = await at.running(made["metadata"]["uid"])
        await at.client.create(our_pod("second", 10))
        await at.client.until(why_pending, f"{PODS}/second")
        [card] = at.cards
        key = ProgramKey("default", "Pod/first", "main", card.model.replace(" ", "-"))
        data = {"history": encode({key: known(time.time())})}
        await at.client.create({**MAP, "metadata": {"name": "gpushare-right-sizing"}, "data": data}, SYSTEM_NAMESPACE)
        try:
            async with exporter(card.uuid) as (port, denied), one_autoscaler(plane, tmp_path) as one:
                more = {"metrics": {"source": "exporter", "port": port}, "limits": QUICK | limits}
                one.config.write_text(config(**more))
                yield at, one, running, denied
        finally:
            for path in (WHERE, STATE, LEASE, POOLS):
                await at.client.delete(path)


@contextlib.asynccontextmanager
async def one_autoscaler(plane, tmp_path):
    """Not started yet."""
    with autoscaler(plane, tmp_path, "one") as one:
        yield one


async def has(at, running, units, one):
    """Until the container's limits say so."""

    def limits():
        found = abi.unpack_limits((Path(running.boxes["main"].mounts["/run/gpushare/limits"]) / "limits").read_bytes())
        return found.cards[0].memory_bytes // GIB

    try:
        await at.until(lambda: limits() == units)
    except TimeoutError:
        raise AssertionError(f"{limits()} units, not {units}: {one.log()[-4000:]}") from None


async def waits(at, seconds):
    """Whether the second pod has no node for so long."""
    await asyncio.sleep(seconds)
    return "nodeName" not in (await at.client.get(f"{PODS}/second"))["spec"]


def test_a_running_pod_is_made_smaller_on_trial_and_its_room_is_given_away_after_it(plane, tmp_path):
    """
    By default it is only shown. On trial nobody gets what it gave up; a leader that begins anew keeps to that. Denied
    memory after the trial it waits for room, and has it back when there is some.
    """

    async def story():
        async with live_stage(plane, tmp_path) as (at, one, running, denied):
            one.start()

            async def is_shown():
                return "1 running pods could free 8 GiB each card: max_resizes_per_hour is 0" in (await one.plan())[1]

            assert await eventually(is_shown), (await one.plan())[1] + one.log()
            await has(at, running, 12, one)
            limits = QUICK | {"max_resizes_per_hour": 5, "right_size_trial_seconds": 12.0}
            one.config.write_text(json.dumps(json.loads(one.config.read_text()) | {"limits": limits}))
            await has(at, running, 4, one)
            assert await waits(at, 3)
            one.end()
            one.start()
            assert await waits(at, 3)
            second = await at.client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/second")
            denied[0] = 1
            await at.client.until(lambda pod: "Deferred" in str(pod["metadata"]["annotations"]), f"{PODS}/first")
            await at.running(second["metadata"]["uid"])
            await at.remove("second")
            await has(at, running, 12, one)
            return await at.client.get("/apis/events.k8s.io/v1/namespaces/default/events"), one.log()

    events, log = asyncio.run(story())
    notes = [one["note"] for one in events["items"] if one["reason"] == "RightSized"]
    for words in ("12 GiB to 4 GiB", "stays at 4 GiB", "4 GiB to 12 GiB"):
        assert any(words in note for note in notes), (words, notes)
    assert "Traceback" not in log


def test_what_is_denied_on_trial_comes_back_at_once(plane, tmp_path):
    """The room was reserved: no wait for the kubelet or for others; the waiting pod goes on waiting."""

    async def story():
        async with live_stage(plane, tmp_path, max_resizes_per_hour=5) as (at, one, running, denied):
            one.start()
            await has(at, running, 4, one)
            denied[0] = 1
            await has(at, running, 12, one)
            assert await waits(at, 2)
            pod = await at.client.until(
                lambda pod: RESIZE_STATUS not in pod["metadata"]["annotations"], f"{PODS}/first"
            )
            return pod["metadata"]["annotations"][RESIZE], one.log()

    wanted, log = asyncio.run(story())
    assert {"main": {"aliyun.com/gpu-mem": 12}} == json.loads(wanted)
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
