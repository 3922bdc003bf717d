# SPDX-License-Identifier: Apache-2.0
"""The chart by the real helm on a real control plane: installed, upgraded and removed beside pods that run."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from e2e.chart_build import CHART, sets_of
from e2e.chart_harness import authorities, prepared
from e2e.kubelets import share_pod
from e2e.manifest_build import MANIFESTS
from e2e.manifest_harness import APISERVICES, VERSIONS, scheduling, standing
from support.waiting import PATIENCE_SECONDS

from charts.values import SWITCHES
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE

ROOT = MANIFESTS.parent
PAIRS = ("scheduler", "metrics-api", "grpc")
ADDED = ("custom-metrics", "external-metrics", "grpc", "cluster-api", "monitoring", "views")
POD = "/api/v1/namespaces/default/pods/shares"
WORKLOADS = {
    "deployments": ("replicas", "updatedReplicas"),
    "daemonsets": ("desiredNumberScheduled", "updatedNumberScheduled"),
}
"""Of each kind the figures of its status that are equal once it is rolled out."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own."""
    with standing(tmp_path_factory.mktemp("chart")) as started:
        yield started


def first_chart(folder):
    """The chart of the commit that first had one."""
    log = ("log", "--diff-filter=A", "--format=%H", "--", "charts/gpushare/Chart.yaml")
    try:
        commits = git(*log).split()
    except FileNotFoundError:
        pytest.skip("git is not installed")
    git("archive", "-o", str(folder / "chart.tar"), commits[-1], "charts/gpushare")
    subprocess.run(["tar", "xf", "chart.tar"], cwd=folder, timeout=PATIENCE_SECONDS, check=True)
    return folder / "charts" / "gpushare"


def git(*words):
    """What a command of git says, also of a tree that belongs to somebody else."""
    return subprocess.run(
        ["git", "-c", "safe.directory=*", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    ).stdout


def identity(pod):
    """What a pod keeps as long as nobody disturbs it."""
    return (
        pod["metadata"]["uid"],
        pod["spec"]["nodeName"],
        pod["status"]["phase"],
        pod["metadata"].get("deletionTimestamp"),
    )


async def rolled_out(client):
    """Until no workload of ours is between two versions: its ReplicaSets and pods change for as long as it is."""
    for kind, (all_, new) in WORKLOADS.items():
        await client.until(
            lambda found, all_=all_, new=new: all(
                one["status"].get("observedGeneration") == one["metadata"]["generation"]
                and one["status"].get(all_, 0) == one["status"].get(new, 0)
                for one in found["items"]
            ),
            f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/{kind}",
        )


def test_it_is_installed_upgraded_from_the_first_chart_and_removed_while_a_pod_runs(plane, tmp_path):
    """
    A pod that was placed by the first chart's scheduler goes on through the upgrade, an upgrade to the same, and the
    removal; certificates stay; an upgrade to the same changes no object. After the removal nothing is there that was
    not there before.
    """
    sets = {key: value for key, value in sets_of("demo", *ADDED).items() if key != "namespace.create"}

    async def story():
        async with prepared(plane, tmp_path) as chart:
            client, old = chart.client, first_chart(tmp_path)
            before = await asyncio.to_thread(chart.stored)
            notes = await asyncio.to_thread(chart.put, "install", old, sets, "--create-namespace")
            await asyncio.to_thread(chart.certificates, *PAIRS)
            believed = await authorities(client)
            await chart.served(AUTOSCALER)
            async with scheduling(chart):
                await client.create(share_pod("shares"))
                pods = [await client.until(lambda one: one["status"].get("phase") == "Running", POD)]
            await asyncio.to_thread(chart.put, "upgrade", CHART, sets)
            pods.append(await client.get(POD))
            await rolled_out(client)
            upgraded = await asyncio.to_thread(chart.stored, "generation", "uid")
            release = await asyncio.to_thread(chart.put, "upgrade", CHART, sets)
            again = await asyncio.to_thread(chart.stored, "generation", "uid")
            assert believed == await authorities(client)
            async with scheduling(chart):
                await client.create(share_pod("more"))
                await client.until(
                    lambda one: one["status"].get("phase") == "Running", "/api/v1/namespaces/default/pods/more"
                )
            pods.append(await client.get(POD))
            await client.delete("/api/v1/namespaces/default/pods/more", force=True)
            for version in VERSIONS:
                await client.delete(f"{APISERVICES}/{version}.metrics.k8s.io")
            await asyncio.to_thread(chart.helm, "uninstall", "gpushare")
            pods.append(await client.get(POD))
            await client.delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}")
            await client.until(
                lambda spaces: SYSTEM_NAMESPACE not in {one["metadata"]["name"] for one in spaces["items"]},
                "/api/v1/namespaces",
            )
            pods.append(await client.get(POD))
            await client.delete(POD, force=True)
            return notes + release, before, upgraded, again, pods, await asyncio.to_thread(chart.stored)

    notes, before, upgraded, again, pods, after = asyncio.run(story())
    release = [key for key in again if key[0] == "Secret" and key[2].startswith("sh.helm.release")]
    changed = {key for key in again if again[key] != upgraded.get(key)} - set(release)
    assert 1 == len({identity(pod) for pod in pods})
    assert set() == changed
    assert set(before) == set(after)
    assert "certificate.sh scheduler metrics-api grpc" in notes


@pytest.mark.parametrize("name", ["", *(one for one in SWITCHES if one not in ADDED)])
def test_the_api_server_accepts_it_with_every_switch(plane, tmp_path, name):
    """
    Installed for good and removed again, nothing left: ACK's, cert-manager's, an existing scheduler's, ...
    """
    sets = sets_of(*([name] if name else []))
    del sets["namespace.create"]

    async def story():
        async with prepared(plane, tmp_path) as chart:
            before = await asyncio.to_thread(chart.stored)
            await asyncio.to_thread(chart.put, "install", CHART, sets, "--create-namespace")
            installed = await asyncio.to_thread(chart.stored)
            await asyncio.to_thread(chart.helm, "uninstall", "gpushare")
            await chart.client.delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}")
            await chart.client.until(
                lambda spaces: SYSTEM_NAMESPACE not in {one["metadata"]["name"] for one in spaces["items"]},
                "/api/v1/namespaces",
            )
            return before, installed, await asyncio.to_thread(chart.stored)

    before, installed, after = asyncio.run(story())
    assert ("DaemonSet", SYSTEM_NAMESPACE, "gpushare-exporter") in installed
    assert set(before) == set(after)
