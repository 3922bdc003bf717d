# SPDX-License-Identifier: Apache-2.0
"""Whoever is restarted or killed under running pods, what was promised stays promised: on a real kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading

import grpc
import pytest
from realkubelet.harness import play, real_node
from realkubelet.pods import GIB, PODS, container, facts, pod_of
from support.waiting import PATIENCE_SECONDS

from isolation.contract import kubelet_api as api

DEAF = ("/bin/sh", "-c", "trap '' TERM; /bin/client 64 & while :; do sleep 1; done")


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def kill_container(stage, pod, name="main"):
    """As the kernel would, short of memory."""
    stage.node.ctr("tasks", "kill", "-s", "SIGKILL", stage.node.containers(pod["metadata"]["uid"])[name])


def test_a_kubelet_that_restarts_takes_nothing_from_anybody(stage):
    """
    Running containers go on with their promise; one that died meanwhile comes back with the same devices; the
    next pod gets others.
    """

    async def story(client):
        await stage.place(client, pod_of("stays", container("main", 3, "100")), 0)
        await stage.place(client, pod_of("dies", container("main", 4, "100")), 0)
        stays = await stage.running_pod(client, "stays")
        dies = await stage.running_pod(client, "dies")
        before = stage.devices(stays), stage.devices(dies)
        stage.node.kill("kubelet")
        kill_container(stage, dies)
        stage.node.start_kubelet()
        dies = await stage.running_pod(client, "dies", restarts=1)
        await stage.ready(client)
        await stage.place(client, pod_of("next", container("main", 7, "100")), 0)
        new = await stage.running_pod(client, "next")
        after = stage.devices(stays), stage.devices(dies)
        kept = await client.get(f"{PODS}/stays")
        limits = [stage.limits(pod)["main"][stage.cards[0]] for pod in (stays, dies, new)]
        return before, after, stage.devices(new), kept["status"]["containerStatuses"][0]["restartCount"], limits

    before, after, new, restarts, limits = play(stage, story)
    assert before == after
    held = {one for devices in after for one in devices["main"]}
    assert (7, set(), 0) == (len(new["main"]), held & set(new["main"]), restarts)
    assert [3 * GIB, 4 * GIB, 7 * GIB] == limits


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_an_agent_that_is_replaced_finds_everything_as_it_was(stage, how):
    """
    While there is no agent pods run on; a container that dies then comes back as soon as there is one; nothing
    is given away twice, and the file of the limits was not touched.
    """

    async def story(client):
        await stage.place(client, pod_of("stays", container("main", 6, "100")), 1)
        await stage.place(client, pod_of("dies", container("main", 5, "100")), 1)
        stays = await stage.running_pod(client, "stays")
        dies = await stage.running_pod(client, "dies")
        before = stage.devices(stays), stage.devices(dies)
        stage.stop_agent(how)
        kill_container(stage, dies)
        await asyncio.sleep(1)
        stage.start_agent()
        dies = await stage.running_pod(client, "dies", restarts=1)
        await stage.ready(client)
        await stage.place(client, pod_of("next", container("main", 3, "2500", "1000")), 1)
        new = await stage.running_pod(client, "next")
        held = [stage.devices(pod)["main"] for pod in (stays, dies, new)]
        return before, held, facts(stage.said(new)), facts(stage.said(dies, restarts=1))

    before, held, new, again = play(stage, story)
    assert [pod["main"] for pod in before] == held[:2]
    assert 14 == len({one for ids in held for one in ids})
    assert ([str(3 * GIB)], ["0", "2"]) == (new["total"], new["take"])
    assert [str(5 * GIB)] == again["total"]


def test_units_of_a_forcibly_deleted_pod_wait_for_the_end_of_its_processes(stage):
    """
    The kubelet gives them away at once; the next pod's container starts only when the old one is gone, and by
    itself.
    """

    async def story(client):
        old = pod_of("old", container("main", 14, *DEAF), terminationGracePeriodSeconds=8)
        await stage.place(client, old, 0)
        old = await stage.running_pod(client, "old")
        await client.delete(f"{PODS}/old", force=True)
        await stage.place(client, pod_of("new", container("main", 14, "100")), 0)
        together, both, end = [], 0, asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while asyncio.get_running_loop().time() < end:
            running = stage.node.running(old["metadata"]["uid"], "new")
            both += len(running) == 2
            together.append(running)
            if running == ["new"]:
                break
            await asyncio.sleep(0.1)
        new = await stage.running_pod(client, "new")
        return together, both, facts(stage.said(new))

    together, both, told = play(stage, story)
    assert any("old" in seen for seen in together), "the old container was gone before the question arose"
    assert 0 == both
    assert [str(14 * GIB)] == told["total"]


def test_foreign_lists_during_allocations_double_nothing(stage):
    """
    Somebody asks the kubelet for the list of all pods without pause, which makes it give units twice, while pods
    replace each other: no two pods that run have a unit in common.
    """
    socket = stage.node.machine.path("/var/lib/kubelet/pod-resources/kubelet.sock")
    stop = threading.Event()

    def ask():
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            serialize = api.ListPodResourcesRequest.SerializeToString
            call = channel.unary_unary(api.LIST, serialize, api.ListPodResourcesResponse.FromString)
            while not stop.wait(0.02):
                with contextlib.suppress(grpc.RpcError):
                    call(api.ListPodResourcesRequest(), timeout=60)

    async def story(client):
        names, clashes, pods = [], [], {}
        for turn in range(12):
            name = f"r{turn}"
            box = container("main", 4, "100", "3000")
            await stage.place(client, pod_of(name, box, terminationGracePeriodSeconds=0), turn % 2)
            names.append(name)
            if len(names) > 4:
                await client.delete(f"{PODS}/{names.pop(0)}")
            if turn % 3 == 2:
                for one in names:
                    pods[one] = await stage.running_pod(client, one)
                taken = [unit for one in names for unit in stage.devices(pods[one])["main"]]
                clashes += [unit for unit in taken if taken.count(unit) > 1]
        return clashes, [facts(stage.said(pods[name])).get("take") for name in names]

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        clashes, takes = play(stage, story)
    finally:
        stop.set()
        asking.join()
    assert [] == clashes
    assert [["0", "0"]] * 4 == takes


def test_containers_come_back_while_the_api_server_is_down(stage, plane):
    """
    Nothing of a container's way back needs the API server.
    """

    async def story(client):
        await stage.place(client, pod_of("alone", container("main", 2, "100")), 0)
        pod = await stage.running_pod(client, "alone")
        plane.kill("kube-apiserver")
        kill_container(stage, pod)
        report = facts(stage.said(pod, restarts=1))
        plane.restart_apiserver()
        await stage.ready(client)
        return report

    assert [str(2 * GIB)] == play(stage, story)["total"]


def test_a_container_runtime_that_restarts_takes_nothing_from_anybody(stage):
    """
    Containers outlive it; the next pod is served as before.
    """

    async def story(client):
        await stage.place(client, pod_of("stays", container("main", 3, "100")), 0)
        stays = await stage.running_pod(client, "stays")
        stage.node.kill("containerd")
        stage.node.start_runtime()
        await stage.place(client, pod_of("next", container("main", 4, "100")), 0)
        await stage.running_pod(client, "next")
        kept = await client.get(f"{PODS}/stays")
        return stage.limits(stays), kept["status"]["containerStatuses"][0]["restartCount"]

    assert ({"main": {stage.cards[0]: 3 * GIB}}, 0) == play(stage, story)


def test_after_a_reboot_everything_that_was_given_is_free_again(stage):
    """
    The kubelet refuses the pods of before for good, whose plugin is not there yet; the agent releases what they
    had, and the next pods are served.
    """

    async def story(client):
        await stage.place(client, pod_of("before", container("main", 9, "100")), 0)
        await stage.place(client, pod_of("beside", container("main", 14, "100")), 1)
        await stage.running_pod(client, "before")
        await stage.running_pod(client, "beside")
        stage.node.reboot()
        old = [
            await client.until(lambda p: p["status"].get("phase") == "Failed", f"{PODS}/{name}")
            for name in ("before", "beside")
        ]
        stage.start_agent()
        await stage.ready(client)
        await stage.place(client, pod_of("after", container("main", 14, "100")), 0)
        new = await stage.running_pod(client, "after")
        return [pod["status"].get("reason") for pod in old], facts(stage.said(new))

    reasons, told = play(stage, story)
    assert ["UnexpectedAdmissionError"] * 2 == reasons
    assert [str(14 * GIB)] == told["total"]
