# SPDX-License-Identifier: Apache-2.0
"""
A node of mode `mps` with a real kubelet and containerd: containers join their card's server, and run again after its
death.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from e2e.managed_node import MODE
from e2e.sharing import why_pending
from e2e.test_real_kubelet_chain import everything, pods_of, workload
from realkubelet.harness import play, real_node, restarts_of
from realkubelet.pods import GIB, PODS, container, facts, pod_of

from isolation.contract.names import ALLOCATION, MPS_ENDED
from isolation.node.mps.exchange import MpsExchange, folder_of

REPEAT_SECONDS = 12.0
"""Until the kubelet repeats a create that came before the new server and was refused (docs/kubelet.md)."""
RECOVERY_SECONDS = 30.0 + 2 * REPEAT_SECONDS
"""30 s are ours; a busy machine may refuse once or twice more."""
TAKE = ("512", "900")
LIVE = 1
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="daemons run as root")


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent and keeper serve one card under MPS."""
    with real_node(plane, tmp_path_factory.mktemp("n"), "v100-16g", mode="mps") as made:
        yield made


async def next_life(stage, client, pod):
    """What a pod's container says once it has been restarted."""
    after = restarts_of(pod) + 1
    return facts(stage.said(await stage.running_pod(client, pod["metadata"]["name"], after), restarts=after))


@pytest.mark.parametrize("user", [0, 1000])
def test_containers_join_their_users_server_and_run_again_after_it_died(stage, user, record_property):
    """The limits hold, /dev/shm is the server's alone, and each pod's Event says why its container ended."""
    names = ("a", "b")

    async def story(client):
        for name in names:
            pod = pod_of(name, container("main", 1, *TAKE), securityContext={"runAsUser": user})
            await stage.place(client, pod, 0)
        pods = [await stage.running_pod(client, name) for name in names]
        reports = [facts(stage.said(pod)) for pod in pods]
        box = stage.node.containers(pods[0]["metadata"]["uid"])["main"]
        env = stage.node.execute(box, "/bin/env")
        mounts = stage.node.execute(box, "/bin/cat", "/proc/self/mountinfo")
        written = stage.node.execute(
            box, "/bin/sh", "-c", "echo $(id -u) > /dev/shm/u && cat /dev/shm/u && rm /dev/shm/u"
        )
        stage.box.settle()
        clients = [one for one in stage.box.clients(0) if one.state == LIVE and not one.name.startswith(b"nvidia")]
        folder = folder_of(stage.node.machine.path("/var/lib/gpushare"), stage.cards[0])
        serving = MpsExchange(stage.node.machine.path("/var/lib/gpushare"))._servers.read_text()
        daemon = int((folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
        began = time.monotonic()
        assert stage.node.machine.kill(daemon)
        again = [await next_life(stage, client, pod) for pod in pods]
        took = time.monotonic() - began
        events = await client.until(
            lambda listed: {one["regarding"]["name"] for one in listed["items"]} >= set(names),
            EVENTS,
            fieldSelector=f"reason={MPS_ENDED}",
        )
        return (
            reports,
            env,
            (mounts, written),
            (clients, json.loads(serving)),
            took,
            again,
            [one["note"] for one in events["items"]],
        )

    reports, env, (mounts, written), (clients, serving), took, again, notes = play(stage, story)
    for said in (*reports, *again):
        assert (["0", "2"], [str(GIB)]) == (said.get("take"), said.get("total")), said
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M" in env
    [shared] = [line for line in mounts.splitlines() if " /dev/shm " in line]
    assert "size=1048576k" in shared
    assert len(clients) == len(names)
    assert (written.strip(), serving[stage.cards[0]]["uid"]) == (str(user), user)
    assert all("the MPS daemon died" in note for note in notes)
    assert took < RECOVERY_SECONDS
    record_property("seconds", round(took, 1))


def test_what_tenants_write_shares_a_card_with_their_own_group_and_user_alone(stage, tmp_path):
    """From the manifest on: admission, scheduler, agent, kubelet and runtime, all real. Another user's pod waits."""
    user = {"nodeSelector": {MODE: "mps"}, "securityContext": {"runAsUser": 0}}
    web = workload("Deployment", "web", container("main", 1, *TAKE), replicas=2)
    web["spec"]["template"]["spec"] |= user
    other = workload("Deployment", "other", container("main", 1, *TAKE), replicas=1)
    other["spec"]["template"]["spec"] |= user | {"securityContext": {"runAsUser": 1001}}

    async def story(client):
        async with everything(stage, client, tmp_path):
            await client.create(web)
            pods = [await stage.running_pod(client, pod["metadata"]["name"]) for pod in await pods_of(client, "web", 2)]
            reports = [facts(stage.said(pod)) for pod in pods]
            await client.create(other)
            # Under load the agent can be late, and is the reason for a while
            pending = await client.until(
                lambda pods: pods["items"] and "group" in why_pending(pods["items"][0]), PODS, labelSelector="app=other"
            )
            for name in ("web", "other"):
                await client.delete(f"/apis/apps/v1/namespaces/default/deployments/{name}")
            return reports, pods, why_pending(pending["items"][0])

    reports, pods, why = play(stage, story)
    for said in reports:
        assert (["0", "2"], [str(GIB)]) == (said.get("take"), said.get("total")), said
    records = [json.loads(pod["metadata"]["annotations"][ALLOCATION])["trust"] for pod in pods]
    assert records == [{"group": "default", "uid": 0}] * 2
    assert "group" in why
