# SPDX-License-Identifier: Apache-2.0
"""
The moments in which a container runtime would start a container as it is: it is refused, and the kubelet's own next try
is served, also of a pod that never restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from realkubelet.harness import DEVICE_PLUGIN, play, real_node, restarts_of
from realkubelet.neighbour import AFTER, BEFORE, neighbour
from realkubelet.pods import GIB, PODS, container, facts, pod_of
from support.waiting import PATIENCE_SECONDS

NONCE = "gpushare.dev/start-nonce"
REFUSED, AWAY = "container start refused", "the node agent did not answer"
AGENT, BOTH = "the agent", "the agent and its device plugin"


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose runtime copies all annotations of pods into the specifications of their containers."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


async def said_in_events(client, name):
    """Everything that was said of the pod."""
    listed = await client.get("/api/v1/namespaces/default/events")
    return [e["message"] for e in listed["items"] if e["involvedObject"]["name"] == name]


def agent_pid(stage):
    """As this test sees the process."""
    script = f"--node-name\0{stage.node.name}\0".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and script in (entry / "cmdline").read_bytes():
                return int(entry.name)
    raise AssertionError("the agent does not run")


def through_a_gap(stage, index, then, after, *, starts=1, **annotations):
    """
    A pod whose container is created while `then` happens; its Events once `after` has been done and it runs.

    Where it starts once, it is a pod that never restarts.
    """
    name = f"gap-{secrets.token_hex(3)}"
    pod = pod_of(name, container("main", 2, "1536", "1024"), restartPolicy="Never" if starts == 1 else "Always")
    pod["metadata"]["annotations"] = annotations

    async def story(client):
        socket = stage.node.machine.path("/run/nri/nri.sock")
        with neighbour(socket, index, name, then) as asked:
            made = await stage.place(client, pod, 1)
            assert await asyncio.to_thread(asked.wait, 60)
            await asyncio.to_thread(after)
        found = await stage.running_pod(client, name, restarts=starts - 1)
        assert found["metadata"]["uid"] == made["metadata"]["uid"]
        return facts(stage.said(found)), await said_in_events(client, name), stage.limits(found)

    told, events, limits = play(stage, story)
    assert {"main": {stage.cards[1]: 2 * GIB}} == limits
    assert ([str(2 * GIB)], ["0", "2"]) == (told["total"], told["take"]), "a container ran without its limits"
    return events


@pytest.fixture(params=[AGENT, BOTH])
def gone(stage, request):
    """Who is killed: the kubelet's next create is served, or a later start that the guard has refused once."""
    programs = ["agent"] if request.param == AGENT else ["agent", DEVICE_PLUGIN]

    def kill():
        for name in programs:  # its end is not waited for: the runtime waits for who kills
            stage.node.send(name, signal.SIGKILL)

    def revive():
        for name in programs:
            stage.node.kill(name)
        stage.start_agent()

    return SimpleNamespace(
        kill=kill,
        revive=revive,
        starts=1 if request.param == AGENT else 2,
        said=AWAY if request.param == AGENT else REFUSED,
    )


def test_an_agent_that_is_killed_before_it_answers(stage, gone):
    """
    The plugin after it refuses; where that is gone too the runtime creates the container as it is, for the guard.
    """
    events = through_a_gap(stage, BEFORE, lambda _: gone.kill(), gone.revive, starts=gone.starts)
    assert any(gone.said in message for message in events), events
    assert gone.said == REFUSED or not any(REFUSED in message for message in events)


def test_an_agent_that_is_killed_after_its_answer(stage, gone):
    """
    The container is prepared and starts with its limits, though nobody is there.
    """
    events = through_a_gap(stage, AFTER, lambda _: gone.kill(), gone.revive)
    assert not any(said in message for message in events for said in (REFUSED, AWAY))


def test_a_mark_without_the_answer_opens_nothing(stage, gone):
    """
    The agent dies after the mark was written and before its answer: the specification has no nonce.
    """

    def then(one):
        gone.kill()
        mark = stage.node.machine.path(f"/run/gpushare/marks/{one.id}")
        mark.write_text(f"{secrets.token_hex(16)}\n")

    events = through_a_gap(stage, BEFORE, then, gone.revive, starts=gone.starts)
    assert any(gone.said in message for message in events), events


def test_a_new_agent_between_creation_and_start_leaves_the_mark(stage):
    """
    The kubelet stands still after its create; the agent that comes meanwhile sweeps marks, and not this one.
    """

    def replace():
        stage.stop_agent(signal.SIGKILL)
        stage.start_agent()
        stage.wait_connected()
        stage.node.send("kubelet", signal.SIGCONT)

    events = through_a_gap(stage, AFTER, lambda _: stage.node.send("kubelet", signal.SIGSTOP), replace)
    assert not any(said in message for message in events for said in (REFUSED, AWAY))


def test_an_answer_that_comes_too_late_opens_nothing(stage):
    """
    The agent stands still for longer than the runtime waits, then writes its mark and answers nobody.
    """
    pid = agent_pid(stage)

    def resume():
        threading.Event().wait(8)  # the runtime waits 2 seconds, and asks later on a busy machine
        os.kill(pid, signal.SIGCONT)

    events = through_a_gap(stage, BEFORE, lambda _: os.kill(pid, signal.SIGSTOP), resume)
    assert any(AWAY in message for message in events), events


def test_a_nonce_that_the_tenant_wrote_opens_nothing(stage, gone):
    """
    The runtime copies the pod's annotation into the specification, after its plugins; there is no mark.
    """
    forged = {NONCE: "0" * 32}
    events = through_a_gap(stage, BEFORE, lambda _: gone.kill(), gone.revive, starts=gone.starts, **forged)
    assert any(gone.said in message for message in events), events


def test_without_a_device_plugin_nothing_can_be_created_and_nothing_fails(stage):
    """
    As between the two pods of a rolling update: the runtime does not find the gate's device, the kubelet tries again.
    """

    async def story(client):
        await stage.place(client, pod_of("stays", container("main", 2, "100")), 0)
        pod = await stage.running_pod(client, "stays")
        stage.node.kill(DEVICE_PLUGIN, signal.SIGTERM)
        assert not stage.node.machine.path("/run/cdi/gpushare-gate.json").exists()
        stage.node.ctr("tasks", "kill", "-s", "SIGKILL", stage.node.containers(pod["metadata"]["uid"])["main"])
        await until_event(client, "stays", "unresolvable CDI devices")
        stage.start_device_plugin()
        await stage.running_pod(client, "stays", restarts=1)
        return await said_in_events(client, "stays")

    assert not any(REFUSED in message for message in play(stage, story))


async def until_event(client, name, text):
    """Until that was said of the pod."""
    end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not any(text in message for message in await said_in_events(client, name)):
        assert asyncio.get_running_loop().time() < end, await said_in_events(client, name)
        await asyncio.sleep(0.2)


def test_a_restarted_runtime_starts_nothing_without_limits(stage):
    """
    Containers are killed in a loop while the runtime restarts four times: each life has its limits.
    """

    async def story(client):
        names = [f"loop{i}" for i in range(6)]
        for i, name in enumerate(names):
            box = container("main", 2, "/bin/sh", "-c", "/bin/client 100 & sleep 3")
            await stage.place(client, pod_of(name, box), i % 2)
        for _ in range(4):
            await asyncio.sleep(3)
            stage.node.kill("containerd")
            stage.node.start_runtime()
        pods = [await client.until(restarts_of, f"{PODS}/{name}") for name in names]
        return [facts(stage.said(pod)) for pod in pods]

    for told in play(stage, story):
        assert {str(2 * GIB)} == set(told["total"])
        assert {"0"} == set(told["take"])
