# SPDX-License-Identifier: Apache-2.0
"""The main stories on a node whose container runtime is CRI-O, which listens to less of what a plugin says."""

from __future__ import annotations

import asyncio
import signal

import pytest
from realkubelet.configuration import OWN_LIST, STATIC
from realkubelet.crionode import CrioNode
from realkubelet.harness import DEVICE_PLUGIN, play, real_node
from realkubelet.neighbour import AFTER, BEFORE, neighbour
from realkubelet.pods import GIB, PODS, container, facts, pod_of

from isolation.node.cdi import Injected
from isolation.node.nri.model import Adjustment

TAKE = ("512", "900")
TAKEN = ([str(GIB)], ["0", "2"])


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node with CRI-O whose agent serves two cards."""
    with real_node(plane, tmp_path_factory.mktemp("n"), node=CrioNode) as made:
        yield made


async def events_of(client, name, text):
    """What the pod's events say, once one of them has this text."""
    said = await client.until(
        lambda events: any(e["involvedObject"]["name"] == name and text in e["message"] for e in events["items"]),
        "/api/v1/namespaces/default/events",
    )
    return [e["message"] for e in said["items"] if e["involvedObject"]["name"] == name]


def test_a_share_and_a_container_without_one_and_a_list_of_the_images_own(stage):
    """
    The promise is seen and the excess refused; the container beside it sees no card.
    """
    wants = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    beside = container("beside", 0, "/bin/sh", "-c", "env; echo ready 1; sleep 600", env=wants)
    boxes = {"plain": container("main", 1, *TAKE), "own": container("main", 1, *TAKE, image=OWN_LIST)}

    async def story(client):
        for name, box in boxes.items():
            await stage.place(client, pod_of(name, box, beside), 1)
        pods = [await stage.running_pod(client, name) for name in boxes]
        return [(facts(stage.said(pod)), stage.said(pod, "beside")) for pod in pods]

    for told, env in play(stage, story):
        assert (TAKEN, [stage.cards[1].removeprefix("GPU-").replace("-", "")]) == (
            (told["total"], told["take"]),
            told["card"],
        )
        assert "NVIDIA_VISIBLE_DEVICES=void" in env


def test_images_and_volumes_that_would_leave_no_limits_do_not_run(stage):
    """
    CRI-O only logs an error at the start and names no process: the agent ends what waits for its start, and the kubelet
    creates it again.
    """
    volume = {"name": "v", "emptyDir": {}}
    over = container("main", 1, *TAKE, volumeMounts=[{"name": "v", "mountPath": "/a/b/c/link"}])
    static = container("main", 1, "/bin/sh", "-c", "echo ran", image=STATIC)

    async def story(client):
        await stage.place(client, pod_of("static", static, restartPolicy="Never"), 0)
        await stage.place(client, pod_of("over", over, volumes=[volume]), 1)
        said = await events_of(client, "over", "mount the volume elsewhere")
        await stage.agent_says("before its start: default/static/main: limits cannot be enforced")
        await events_of(client, "static", "rror")
        pod = await client.get(f"{PODS}/static")
        lines = stage.node.said("default", "static", pod["metadata"]["uid"], "main")
        return said, lines

    said, lines = play(stage, story)
    assert not any("Started" in message for message in said)
    assert [] == lines, "a program ran without the library"


@pytest.mark.parametrize("index", [BEFORE, AFTER])
def test_an_agent_that_is_killed_amid_a_creation(stage, index):
    """
    Before its answer the plugin after it refuses and the kubelet tries again; after it the container is prepared.
    """
    name = "before" if index == BEFORE else "after"
    pod = pod_of(name, container("main", 1, *TAKE), restartPolicy="Never")

    async def story(client):
        socket = stage.node.machine.path("/run/nri/nri.sock")
        # Its end is not waited for in there: the runtime waits for who kills.
        with neighbour(socket, index, name, lambda _: stage.node.send("agent", signal.SIGKILL)) as asked:
            await stage.place(client, pod, 1)
            assert await asyncio.to_thread(asked.wait, 60)
            await asyncio.to_thread(stage.node.kill, "agent")
            await asyncio.to_thread(stage.start_agent)
        told = facts(stage.said(await stage.running_pod(client, name)))
        if index == BEFORE:
            await events_of(client, name, "the node agent did not answer")
        return told["total"], told["take"]

    assert TAKEN == play(stage, story)


def test_without_any_of_us_the_guard_refuses(stage):
    """
    Agent and device plugin die amid the creation: the runtime creates the container, and the guard ends it.
    """

    async def story(client):
        def kill(_):
            stage.node.send("agent", signal.SIGKILL)
            stage.node.send(DEVICE_PLUGIN, signal.SIGKILL)

        with neighbour(stage.node.machine.path("/run/nri/nri.sock"), BEFORE, "alone", kill) as asked:
            await stage.place(client, pod_of("alone", container("main", 1, *TAKE)), 0)
            assert await asyncio.to_thread(asked.wait, 60)
            await asyncio.to_thread(stage.node.kill, "agent")
            await asyncio.to_thread(stage.node.kill, DEVICE_PLUGIN)
            said = await events_of(client, "alone", "container start refused")
            await asyncio.to_thread(stage.start_agent)
        told = facts(stage.said(await stage.running_pod(client, "alone")))
        return said, (told["total"], told["take"])

    said, told = play(stage, story)
    assert (TAKEN, True) == (told, any("did not prepare this container" in message for message in said))


def test_a_restart_of_the_runtime_takes_nothing_from_anybody(stage):
    """
    The container goes on, and the next one is served.
    """

    async def story(client):
        await stage.place(client, pod_of("stays", container("main", 1, *TAKE)), 0)
        before = await stage.running_pod(client, "stays")
        await asyncio.to_thread(stage.node.kill, stage.node.runtime)
        await asyncio.to_thread(stage.node.start_runtime)
        await stage.place(client, pod_of("next", container("main", 1, *TAKE)), 0)
        told = facts(stage.said(await stage.running_pod(client, "next")))
        after = await stage.running_pod(client, "stays")
        return [p["status"]["containerStatuses"][0]["containerID"] for p in (before, after)], told["take"]

    (before, after), taken = play(stage, story)
    assert (before, TAKEN[1]) == (after, taken)


def test_devices_mounts_and_hooks_of_an_adjustment_arrive(stage, tmp_path):
    """
    As a real card's are delivered here, where the names of CDI devices are passed over: /dev/full stands for a card.
    """
    file, ran = tmp_path / "driver", tmp_path / "ran"
    file.write_text("the driver\n")
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    injected = Injected(
        ({"path": "/dev/card9", "type": "c", "major": 1, "minor": 7},),
        ({"destination": "/srv/driver", "type": "bind", "source": str(file), "options": ["ro", "bind"]},),
        (("create_container", {"path": str(script), "args": [str(script)], "env": []}),),
    )
    show = "cat /srv/driver; stat -c %t:%T /dev/card9; echo > /dev/card9 || echo full; echo ready 1; sleep 99"

    async def story(client):
        socket = stage.node.machine.path("/run/nri/nri.sock")
        with neighbour(socket, BEFORE, "real", lambda _: Adjustment(injected=injected)) as asked:
            await stage.bind(client, await client.create(pod_of("real", container("main", 0, "/bin/sh", "-c", show))))
            pod = await stage.running_pod(client, "real")
            assert asked.is_set()
            return stage.said(pod)

    lines = play(stage, story)
    assert ["the driver", "1:7"] == lines[:2]
    assert "full" in lines
    assert ran.exists()
