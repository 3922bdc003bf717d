# SPDX-License-Identifier: Apache-2.0
"""A promise changes while the pod runs: annotation, record, limits, the kubelet's count; all real but the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from e2e.node_harness import MEMORY, PODS, stage
from e2e.sharing import our_pod, sharing, taken, why_pending

from isolation.contract import abi
from isolation.contract.codec.resize import decode_status, encode_wanted
from isolation.contract.names import RESIZE, RESIZE_STATUS
from isolation.contract.quantity import GIB

ROOT = Path(__file__).resolve().parents[2]


@contextlib.asynccontextmanager
async def stand(plane, tmp_path, name, **more):
    """A scheduler that binds, and one node with its agent."""
    async with sharing(plane, tmp_path) as (_, _), stage(plane, tmp_path, name, **more) as at:
        yield at


async def wants(at, name, units, container="main"):
    """Ask for another amount."""
    text = encode_wanted({container: {MEMORY: units}})
    await at.client.merge(f"{PODS}/{name}", {"metadata": {"annotations": {RESIZE: text}}})


def status_of(pod):
    """What became of it; None: nothing is pending."""
    text = pod["metadata"]["annotations"].get(RESIZE_STATUS)
    return decode_status(text) if text else None


async def started(at, name, units, cards=1):
    """A pod that our scheduler has bound, running."""
    made = await at.client.create(our_pod(name, units, cards))
    return await at.running(made["metadata"]["uid"])


async def has(at, pod, units):
    """Until limits, record, kubelet's count and status all agree on that amount."""

    def limits():
        mounts = pod.boxes["main"].mounts
        found = abi.unpack_limits((Path(mounts["/run/gpushare/limits"]) / "limits").read_bytes())
        return [one.memory_bytes // GIB for one in found.cards]

    await at.until(lambda: sum(limits()) == units)
    return await at.client.until(
        lambda p: sum(taken([p]).values()) == units and status_of(p) is None, f"{PODS}/{pod.name}"
    )


async def count(at, units):
    """Until the kubelet offers so many."""
    await at.client.until(lambda n: int(n["status"]["allocatable"][MEMORY]) == units, at.node.path)


def test_a_pod_shrinks_and_grows_and_others_get_the_difference(plane, tmp_path):
    """
    12 of 15 units; to 4: a pod of 11 that did not fit runs beside it, though the kubelet counts 12 + 11 of 15 + 8.

    Growth beyond the card is infeasible, beyond what is free deferred until the other one has gone.
    """

    async def story():
        async with stand(plane, tmp_path, "resizes", number=1) as at:
            whole = int((await at.client.get(at.node.path))["status"]["allocatable"][MEMORY])
            first = await started(at, "first", whole - 3)
            await at.client.create(our_pod("second", whole - 4))
            await at.client.until(why_pending, f"{PODS}/second")
            await wants(at, "first", 4)
            await has(at, first, 4)
            listed = await at.client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/second")
            second = await at.running(listed["metadata"]["uid"])
            await count(at, whole + whole - 7)
            await wants(at, "first", whole + 1)
            told = await at.client.until(status_of, f"{PODS}/first")
            assert (status_of(told).condition, status_of(told).reason) == ("PodResizePending", "Infeasible")
            await wants(at, "first", whole - 3)
            await at.client.until(lambda p: status_of(p) and status_of(p).reason == "Deferred", f"{PODS}/first")
            await at.remove("second")
            assert second.phase == "Gone"
            await has(at, first, whole - 3)
            await count(at, whole)
            await wants(at, "first", whole - 1)
            await has(at, first, whole - 1)
            await count(at, whole - 2)
            await at.remove("first")
            await count(at, whole)
            events = await at.client.get("/apis/events.k8s.io/v1/namespaces/default/events")
            return {one["reason"] for one in events["items"] if one["regarding"]["name"] == "first"}

    reasons = asyncio.run(story())
    assert {"ResizeStarted", "ResizeCompleted", "ResizeInfeasible", "ResizeDeferred"} <= reasons


async def asked(plane, *words):
    """`gpushare resize` as a person types it: exit status and all that it said."""
    command = [sys.executable, "-m", "gpushare", "resize", *words, "--kubeconfig", str(plane.kubeconfig)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


def test_the_command_waits_until_it_is_in_force_and_says_why_it_is_not(plane, tmp_path):
    """In force: 0. More than the card has: 1. No room now: 75, with the reason. No such pod: 4."""

    async def story():
        async with stand(plane, tmp_path, "typed", number=1) as at:
            whole = int((await at.client.get(at.node.path))["status"]["allocatable"][MEMORY])
            await started(at, "first", whole - 5)
            await started(at, "other", 3)
            wait = ("--wait", "--timeout", "100")
            return [
                await asked(plane, "first", "--gpu-mem", "4", *wait),
                await asked(plane, "first", "--gpu-mem", str(whole + 1), *wait),
                await asked(plane, "first", "--gpu-mem", str(whole - 1), "--wait", "--timeout", "20"),
                await asked(plane, "nobody", "--gpu-mem", "1"),
                await asked(plane, "first", "--gpu-mem", "1", "-c", "no"),
            ]

    done, never, later, nobody, wrong = asyncio.run(story())
    assert (0, True) == (done[0], "is in force" in done[1]), done
    assert (1, True) == (never[0], "in all" in never[1]), never
    assert (75, True) == (later[0], "free" in later[1]), later
    assert (4, 2) == (nobody[0], wrong[0]), (nobody, wrong)
