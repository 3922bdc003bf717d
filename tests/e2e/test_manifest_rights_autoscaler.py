# SPDX-License-Identifier: Apache-2.0
"""The autoscaler with exactly the rights of the manifests: it grows, moves, empties and gives back."""

from __future__ import annotations

import asyncio

import pytest
import yaml
from e2e.accounts import GRANTS, bounded, forget, kubeconfig, own_pod
from e2e.autoscaler_harness import only
from e2e.autoscaler_process import autoscaler, config, fleet, grown, one_pool
from e2e.manifest_build import MANIFESTS
from e2e.manifest_files import Cluster, documents
from e2e.own_plane import asked_by, audited
from e2e.sharing import PODS, our_pod, untainted, workload

from autoscaler.kube.config.reader import read_config
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.contract.rbac import PERMISSIONS

MACHINES = {
    ("cluster.x-k8s.io", "machinedeployments", "get"),
    ("cluster.x-k8s.io", "machinedeployments/scale", "get"),
    ("cluster.x-k8s.io", "machinedeployments/scale", "update"),
    ("cluster.x-k8s.io", "machines", "list"),
    ("cluster.x-k8s.io", "machines", "patch"),
}
"""Of components/cluster-api."""


IN_TROUBLE = {("gpushare.dev", "reservations", "delete")}
"""For a drain that is called off, and homes to which nobody came: not in every run."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own, that writes down who asks for what."""
    started = audited(tmp_path_factory.mktemp("audited"))
    started.start()
    yield started
    started.stop()


async def permitted(client):
    """Account, roles and policies of the autoscaler, and what Cluster API's machines need; they stay."""
    things = [one for one in documents() if one["kind"] in GRANTS]
    for file in ("base/autoscaler/policy.yaml", "components/cluster-api/rbac.yaml"):
        things += list(yaml.safe_load_all((MANIFESTS / file).read_text()))
    for one in bounded(things, read_config(config(one_pool()).encode()).pools):
        await Cluster(client).ensure(one)
    await client.until(bool, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{AUTOSCALER}")


async def placed(client, app, node, count, units):
    """A Deployment whose pods all went to one node, and may go anywhere from now on."""
    await only(client, node)
    await client.create(workload("Deployment", app, count, our_pod("x", units)))
    await client.until(
        lambda pods: [one["status"].get("phase") for one in pods["items"]] == ["Running"] * count,
        PODS,
        labelSelector=f"app={app}",
    )
    await only(client, "")


def test_it_does_all_its_work_with_the_rights_of_the_manifests_and_needs_each_of_them(plane, tmp_path):
    """
    Of two nodes one is emptied, its pods moved to homes kept for them, its machine given back; then a pod that waits
    brings a new one. The API server refuses nothing, and by its own record every permission was used.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", start=2) as (client, machines):
            await machines.create("gpu-b")
            await permitted(client)
            await untainted(client)
            full, light = await machines.settled("gpu-a")
            await placed(client, "staying", full, 4, 5)
            await placed(client, "moving", light, 3, 2)
            pod = await own_pod(client, AUTOSCALER, "rights-autoscaler")
            account = await kubeconfig(plane, client, tmp_path, AUTOSCALER, pod)
            with autoscaler(plane, tmp_path, "one", account) as one:
                unknown = {"name": "gpu-b", "provider": "scale", "settings": {"name": "gpu-b"}}
                more = {"max_moves_per_hour_ratio": 1.0, "move_cooldown_seconds": 5.0, "scan_interval_seconds": 0.3}
                more |= {
                    "action_validation_delay_seconds": 0.1,
                    "scale_down_unneeded_seconds": 1.0,
                    "scale_down_delay_after_add_seconds": 1.0,
                }
                more |= {"min_node_age_seconds": 1.0, "node_delete_delay_after_taint_seconds": 1.0}
                one.config.write_text(config(one_pool(), unknown, limits=more | {"min_pod_age_seconds": 0.0}))
                one.start()
                try:
                    await grown(machines, "gpu-a", 1)
                    left = await machines.settled("gpu-a")
                    await client.create(our_pod("waits", 14))
                    await grown(machines, "gpu-a", 2)
                    await client.until(lambda found: found["spec"].get("nodeName"), f"{PODS}/waits")
                finally:
                    said = one.log()
                    await forget(client, "rights-autoscaler")
                return full, left, said

    full, left, said = asyncio.run(story())
    seen = list(asked_by(plane, AUTOSCALER))
    asked = {one.right for one in seen}
    granted = {
        (permission.group, permission.resource, verb)
        for permission in PERMISSIONS[AUTOSCALER]
        for verb in permission.verbs
    } | MACHINES
    assert [full] == left, said[-3000:]
    assert [] == sorted({one for one in seen if one.status in (403, 422)}), said[-3000:]
    assert set() == asked - granted
    assert granted - asked <= IN_TROUBLE
