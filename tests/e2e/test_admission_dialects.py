# SPDX-License-Identifier: Apache-2.0
"""Pods of other systems through a real API server: translated, or refused, and never stored as they came."""

from __future__ import annotations

import asyncio
import contextlib

from e2e.admission_stand import PODS, Stand, policed, tried, webhooked
from e2e.apiclient import connected
from e2e.webhook_stories import path_of, stored
from support.admission_pods import plain, spec, workload
from support.dialect_pods import hami

from isolation.contract.dialects import Offered
from isolation.contract.names import ASKED, DIALECT
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.core.webhook import ReviewContext

HAMI = parse_serving("ack,hami", ["hami=hami-only"])
ON = frozenset({"ack", "hami"})


@contextlib.asynccontextmanager
async def serving(plane, systems=HAMI, offered=None):
    """The webhook and the policies for these dialects."""
    stand = Stand(plane)
    stand.systems = systems
    known = offered or Offered(systems.dialects, lambda _rules, **_: frozenset({15 * GIB}), left=systems.left)
    stand.world = ReviewContext(stand.world.is_shared, offered=known)
    async with connected(plane) as client, webhooked(client, stand), policed(client, systems):
        yield client, stand


def test_a_pod_of_hami_is_stored_in_our_words(plane):
    """
    Amounts, count and scheduler become ours, nothing of the foreign resources is left, and what was asked is written
    down.
    """

    async def story():
        async with (
            serving(plane) as (client, _),
            stored(client, hami(spec(schedulerName="hami-scheduler"), gpu="2")) as pod,
        ):
            return pod

    pod = asyncio.run(story())
    resources = pod["spec"]["containers"][0]["resources"]
    assert (
        {"aliyun.com/gpu-mem": "6", "aliyun.com/gpu-core.percentage": "60"}
        == resources["limits"]
        == resources["requests"]
    )
    assert ("2", "true") == tuple(
        pod["metadata"]["labels"][key] for key in ("aliyun.com/gpu-count", "gpushare.dev/shared")
    )
    assert "gpushare-scheduler" == pod["spec"]["schedulerName"]
    assert "hami" == pod["metadata"]["annotations"][DIALECT]
    assert '"nvidia.com/gpumem":"3000"' in pod["metadata"]["annotations"][ASKED]


def test_without_the_webhook_such_a_pod_is_refused(plane):
    """
    While it is away, and by policy where it was removed; a plain pod, a whole card and a namespace left to HAMi pass.
    """

    async def story():
        async with serving(plane) as (client, stand):
            await client.create({"kind": "Namespace", "metadata": {"name": "hami-only"}})
            await client.until(lambda _: True, "/api/v1/namespaces/hami-only/serviceaccounts/default")
            left = hami()
            left["metadata"]["namespace"] = "hami-only"
            await stand.stop()
            said = {
                "away": await tried(client, hami()),
                "plain": await tried(client, plain()),
                "whole": await tried(client, plain(lambda pod: pod["spec"]["containers"][0].update(resources=WHOLE))),
                "left": await tried(client, left, "/api/v1/namespaces/hami-only/pods"),
            }
            await client.delete("/api/v1/namespaces/hami-only")
            await stand.start()
        async with connected(plane) as client, policed(client, HAMI):
            said["removed"] = await tried(client, hami())
        return said

    said = asyncio.run(story())
    assert "failed calling webhook" in said["away"]
    assert "words of HAMi" in said["removed"]
    assert ("", "", "") == (said["plain"], said["whole"], said["left"])


WHOLE = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}


def test_a_template_of_hami_is_warned_about_and_stays(plane):
    """
    Whoever else reads it finds what its owner wrote; its pods are what is translated.
    """

    async def story():
        async with serving(plane) as (client, _):
            return await client.call("POST", path_of("Deployment"), workload("Deployment", hami()), dryRun="All")

    made = asyncio.run(story())
    limits = made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert {"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"} == limits.keys()


def test_what_cannot_be_translated_is_refused_with_what_to_write(plane):
    """
    In the words of the pod's own system.
    """

    async def story():
        async with serving(plane) as (client, _):
            return [
                await tried(client, hami(**{"gpumem": None, "gpumem-percentage": "0"})),
                await tried(
                    client, hami(lambda pod: pod["metadata"].update(annotations={"nvidia.com/vgpu-mode": "mig"}))
                ),
                await tried(client, hami(spec(hostPID=True))),
            ]

    zero, mode, host = asyncio.run(story())
    assert "request 1 to 100" in zero
    assert "nvidia.com/vgpu-mode" in mode
    assert "hostPID exposes" in host
    assert "translated from HAMi" in host
    assert PODS
