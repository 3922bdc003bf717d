# SPDX-License-Identifier: Apache-2.0
"""From a tenant's manifest to the container's limits: admission, scheduler, agent, kubelet and runtime, all real."""

from __future__ import annotations

import contextlib

import pytest
from e2e.admission_harness import Stand, webhooked
from e2e.sharing import PODS, prepare, replica, scheduler_file, untainted
from realkubelet.harness import play, real_node
from realkubelet.pods import GIB, container, facts

from isolation.contract.codec import decode_allocation

ACCOUNT = "system:serviceaccount:gpushare-system:gpushare-scheduler"
WORKLOADS = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves four cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("n"), "t4", "t4", "t4", "t4") as made:
        yield made


@contextlib.asynccontextmanager
async def everything(stage, client, folder):
    """Admission, our scheduler and a kube-scheduler beside it."""
    plane, account = stage.plane, stage.plane.kubeconfig_for(ACCOUNT, ("system:masters",))
    await prepare(client)
    async with webhooked(client, Stand(plane)):
        with replica(plane, folder, "one", account) as ours:
            ours.start()
            plane.add_scheduler("kube-scheduler-ours", scheduler_file(plane, folder, ours.sidecar))
            try:
                await ours.leads()
                await untainted(client)
                yield
            finally:
                plane.kill("kube-scheduler-ours")


def workload(kind, name, *containers, labels=None, inits=(), **spec):
    """A manifest as a tenant writes it: nothing of ours but the amounts."""
    always = {"restartPolicy": "Never"} if kind == "Job" else {}
    pod = {"containers": list(containers), "initContainers": list(inits), "terminationGracePeriodSeconds": 1, **always}
    template = {"metadata": {"labels": {"app": name, **(labels or {})}}, "spec": pod}
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    made = {"template": template, **selector, **spec}
    return {"apiVersion": WORKLOADS[kind], "kind": kind, "metadata": {"name": name}, "spec": made}


async def pods_of(client, name, count, phase="Running"):
    """So many pods of an app, all in that phase."""
    listed = await client.until(
        lambda pods: [pod["status"].get("phase") for pod in pods["items"]] == [phase] * count,
        PODS,
        labelSelector=f"app={name}",
    )
    return listed["items"]


def by_record(pod):
    """Bytes by container and card that the scheduler wrote down."""
    told = decode_allocation(pod["metadata"]["annotations"]["gpushare.dev/allocation"])
    return {part.container: {one.uuid: one.bytes for one in part.slices} for part in told.parts}


def by_kubelet(devices):
    """Bytes by container of the units that the kubelet counted."""
    return {name: GIB * len(ids) for name, ids in devices.items()}


def test_what_tenants_write_becomes_what_their_containers_have(stage, tmp_path):
    """
    The seed StatefulSet over four cards, a Deployment, a pod with sidecar and two containers, a Job: for each of
    them record, kubelet and limits agree, the container sees its promise, and no unit is given twice.
    """
    many = workload(
        "StatefulSet",
        "many",
        container("a", 1),
        container("b", 4),
        inits=[container("side", 2, restartPolicy="Always")],
        replicas=1,
        serviceName="many",
    )
    applied = {
        "seed": workload(
            "StatefulSet",
            "seed",
            container("main", 8),
            labels={"aliyun.com/gpu-count": "4"},
            replicas=1,
            serviceName="seed",
        ),
        "web": workload("Deployment", "web", container("main", 3), replicas=6),
        "many": many,
    }

    async def story(client):
        async with everything(stage, client, tmp_path):
            for thing in applied.values():
                await client.create(thing)
            pods = [
                *await pods_of(client, "seed", 1),
                *await pods_of(client, "web", 6),
                *await pods_of(client, "many", 1),
            ]
            seen = {}
            for name in [pod["metadata"]["name"] for pod in pods]:
                pod = await stage.running_pod(client, name)
                first = pod["spec"]["containers"][0]["name"]
                seen[name] = (
                    by_record(pod),
                    by_kubelet(stage.devices(pod)),
                    stage.limits(pod),
                    facts(stage.said(pod, first))["total"],
                    stage.devices(pod),
                )
            await client.create(
                workload("Job", "batch", container("main", 5, "/bin/true"), completions=6, parallelism=3)
            )
            await pods_of(client, "batch", 6, "Succeeded")
            for thing in ("deployments/web", "statefulsets/seed", "statefulsets/many"):
                await client.delete(f"/apis/apps/v1/namespaces/default/{thing}")
            await client.delete("/apis/batch/v1/namespaces/default/jobs/batch")
            return seen

    seen = play(stage, story)
    for name, (record, devices, limits, total, _) in seen.items():
        assert record == limits, name
        assert {box: sum(cards.values()) for box, cards in record.items()} == devices, name
        first = next(iter({"a", "main"} & set(record)))
        assert [str(max(record[first].values()))] == total, name
    assert [2 * GIB] * 4 == list(seen["seed-0"][0]["main"].values())
    units = [unit for *_, devices in seen.values() for ids in devices.values() for unit in ids]
    assert (8 + 6 * 3 + 7, len(set(units))) == (len(units), len(units))
