# SPDX-License-Identifier: Apache-2.0
"""The control plane of the tests is a real one: it admits, schedules, runs and forgets."""

from __future__ import annotations

import asyncio

import pytest
from e2e.apiclient import RefusedError, connected
from e2e.kubelets import ENDS_AFTER, Kubelets, share_pod, shared_node


def phase(wanted):
    """A claim about a pod."""
    return lambda pod: pod["status"].get("phase") == wanted


def test_a_deployment_of_shares_runs_on_a_node_with_cards(plane):
    """
    Controller manager, scheduler and kubelets work together: replicas reach Running where the memory is.
    """

    async def story():
        nodes = [shared_node("life-cards"), shared_node("life-plain", cards=0)]
        async with connected(plane) as client, Kubelets(client, nodes).alive():
            template = share_pod("x")
            template["metadata"]["labels"] = {"app": "life"}
            await client.create(
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": {"name": "life"},
                    "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "life"}}, "template": template},
                }
            )
            listed = await client.until(
                lambda pods: ["Running"] * 3 == [p["status"].get("phase") for p in pods["items"]],
                "/api/v1/namespaces/default/pods",
                labelSelector="app=life",
            )
            await client.delete("/apis/apps/v1/namespaces/default/deployments/life")
            await client.until(
                lambda pods: not pods["items"], "/api/v1/namespaces/default/pods", labelSelector="app=life"
            )
            return {pod["spec"]["nodeName"] for pod in listed["items"]}

    assert {"life-cards"} == asyncio.run(story())


def test_a_job_ends(plane):
    """
    A pod with a set end succeeds, and its Job with it.
    """

    async def story():
        async with connected(plane) as client, Kubelets(client, [shared_node("job-cards")]).alive():
            template = share_pod("x", restartPolicy="Never")
            template["metadata"]["annotations"] = {ENDS_AFTER: "0.1"}
            await client.create(
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {"name": "short"},
                    "spec": {"template": template},
                }
            )
            job = "/apis/batch/v1/namespaces/default/jobs/short"
            done = await client.until(lambda j: j["status"].get("succeeded"), job)
            await client.delete(job + "?propagationPolicy=Background")
            return done["status"]["succeeded"]

    assert 1 == asyncio.run(story())


def test_rbac_is_on(plane):
    """
    A user without rights gets none.
    """

    async def story():
        async with connected(plane, "nobody") as client:
            await client.get("/api/v1/nodes")

    with pytest.raises(RefusedError) as refused:
        asyncio.run(story())
    assert 403 == refused.value.status
