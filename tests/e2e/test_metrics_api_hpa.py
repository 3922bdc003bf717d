# SPDX-License-Identifier: Apache-2.0
"""HorizontalPodAutoscalers of a real controller-manager read our metrics APIs through the real aggregator."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from e2e.kubelets import Kubelets, share_pod, shared_node
from e2e.metrics_harness import HPAS, PODS, autoscaler, external_metric, object_metric, pods_metric, served
from e2e.sharing import clear, untainted, workload

from autoscaler.apis.metrics.core.readings import PendingPod
from isolation.contract.quantity import GIB
from isolation.kube.election import boottime

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@contextlib.asynccontextmanager
async def scaled(plane, metric):
    """A Deployment of one pod, with an autoscaler on this metric."""
    async with served(plane) as (client, figures), Kubelets(client, [shared_node("hpa")]).alive():
        await untainted(client)
        await client.create(workload("Deployment", "web", 1, share_pod("x", units=0)))
        await client.call("POST", HPAS, autoscaler("web", metric))
        try:
            yield client, figures
        finally:
            await client.delete(f"{HPAS}/web")
            await clear(client)


async def replicas(client, number):
    """Until that many pods are wanted and ready."""
    await client.until(
        lambda d: d["spec"]["replicas"] == number and d["status"].get("readyReplicas") == number,
        f"{DEPLOYMENTS}/web",
    )


async def says(client, reason, words=""):
    """Until the autoscaler gives this reason for its metric, with these words in it; the message."""

    def found(hpa):
        conditions = hpa.get("status", {}).get("conditions", ())
        return [c["message"] for c in conditions if c["reason"] == reason and words in c["message"]]

    return found(await client.until(found, f"{HPAS}/web"))[0]


async def stays(client, number, seconds=5.0):
    """Nothing is changed for that long: several looks of the autoscaler."""
    end = boottime() + seconds
    while boottime() < end:
        assert number == (await client.get(f"{DEPLOYMENTS}/web"))["spec"]["replicas"]
        await asyncio.sleep(0.2)


def test_a_deployment_follows_what_its_pods_use_up_and_down(swift):
    """
    1.2 GiB are wanted in each pod: at 3 GiB one pod becomes three and then more; idle ones become one again.
    """

    async def story():
        async with scaled(swift, pods_metric("gpu_mem_used_bytes", "1200Mi", card="0")) as (client, figures):
            figures.used = lambda _name: 0.75
            await replicas(client, 5)
            figures.used = lambda _name: 0.0
            await replicas(client, 1)

    asyncio.run(story())


def test_a_deployment_follows_what_its_namespace_waits_for_up_and_down(swift):
    """
    One replica for each 4 GiB that pods of the namespace wait for in two pools; what others wait for does not count.
    """
    selector = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]}

    async def story():
        async with scaled(swift, external_metric("gpu_mem_pending_bytes", "4Gi", selector)) as (client, figures):
            elsewhere, nowhere = PendingPod("other", "a", 100 * GIB), PendingPod("default", "", 100 * GIB)
            figures.waiting = (
                PendingPod("default", "a", 6 * GIB),
                PendingPod("default", "b", 6 * GIB),
                elsewhere,
                nowhere,
            )
            await replicas(client, 3)
            figures.waiting = (elsewhere, nowhere)
            await replicas(client, 1)
            figures.waiting = (PendingPod("default", "b", 8 * GIB),)
            await replicas(client, 2)
            figures.frozen = True  # whoever reads the cluster has stopped, and so has all it says about pending pods
            events = await says(client, "FailedGetExternalMetric", "s old")
            await stays(client, 2)
            return events

    assert "s old" in asyncio.run(story())


@pytest.mark.parametrize(("kind", "amount", "down"), [("AverageValue", "1Gi", 2), ("Value", "2Gi", 1)])
def test_a_deployment_follows_one_pod_of_another_workload(swift, kind, amount, down):
    """
    Metric type Object: a replica for each GiB that the pod uses (AverageValue), or as many as bring it to 2 GiB (Value:
    more at each look while it is above, fewer once it is idle). Without a figure, and without the pod, all stay.
    """

    async def story():
        async with scaled(swift, object_metric("gpu_mem_used_bytes", "front", kind, amount)) as (client, figures):
            figures.used = lambda name: 0.75 if name == "front" else 0.0
            await client.create(share_pod("front", units=0))
            await replicas(client, 3 if kind == "AverageValue" else 5)
            figures.used = lambda name: 0.5 if name == "front" else 0.0
            if kind == "AverageValue":
                await replicas(client, 2)
            else:
                await stays(client, 5)
                figures.used = lambda _name: 0.0
                await replicas(client, 1)
            figures.used = lambda name: None if name == "front" else 0.0
            events = [await says(client, "FailedGetObjectMetric", "is unknown")]
            await stays(client, down)
            await client.delete(f"{PODS}/front", force=True)
            figures.used = lambda _name: 0.0
            await stays(client, down)
            return [*events, await says(client, "FailedGetObjectMetric")]

    absent, gone = asyncio.run(story())
    assert "is unknown" in absent
    assert "front" in gone


def test_a_deployment_follows_its_namespace_and_no_node(swift):
    """
    Metric type Object of a Namespace: a replica for each GiB that its pods use together. A Node is refused: what other
    tenants use there is not told through an autoscaler.
    """

    async def story():
        metric = object_metric("gpu_mem_used_bytes", "default", "AverageValue", "1Gi", "Namespace")
        async with scaled(swift, metric) as (client, figures):
            figures.used = lambda name: 0.75 if name == "front" else 0.0
            await client.create(share_pod("front", units=0))
            await replicas(client, 3)
            figures.used = lambda _name: 0.0
            await replicas(client, 1)
            metric = object_metric("gpu_mem_used_bytes", "hpa", "AverageValue", "1Gi", "Node")
            await client.merge(f"{HPAS}/web", {"spec": {"metrics": [metric]}})
            return await says(client, "FailedGetObjectMetric", "its own Namespace")

    assert "its own Namespace" in asyncio.run(story())


def test_an_autoscaler_holds_still_while_nothing_is_known(swift):
    """
    Figures that are absent, stale or not served any more are not taken for idle pods: the Deployment stays as it is,
    and the autoscaler's condition says why.
    """

    async def story():
        events = {}
        async with scaled(swift, pods_metric("gpu_mem_used_ratio", "500m")) as (client, figures):
            first = (await client.until(lambda p: p["items"], PODS))["items"][0]["metadata"]["name"]
            figures.used = lambda name: 1.5 if name == first else 0.0
            await replicas(client, 3)

            figures.used = lambda name: 0.5 if name == first else None
            await says(client, "ValidMetricFound")
            await stays(client, 3)  # counted as idle, two of three would make it one

            figures.used = lambda _name: None
            events["absent"] = await says(client, "FailedGetPodsMetric", "is unknown")
            await stays(client, 3)

            figures.used = lambda _name: 0.5
            await says(client, "ValidMetricFound")
            figures.silent_since = boottime() - 60
            events["stale"] = await says(client, "FailedGetPodsMetric", "exporter on node n1 is 6")
            await stays(client, 3)

            figures.silent_since = None
            await says(client, "ValidMetricFound")
            await figures.outage()
            events["outage"] = await says(client, "FailedGetPodsMetric")
            await stays(client, 3)
        return events

    events = asyncio.run(story())
    assert "is unknown" in events["absent"]
    assert "exporter on node n1 is 6" in events["stale"]
    assert events["outage"]
