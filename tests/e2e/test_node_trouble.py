# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` on a real control plane while something fails: nothing is given twice, nothing starts without limits,
nothing is lost, and no pod is deleted.

Kubelet and container runtime are stand-ins; pods are bound by hand with records, as our scheduler does.
"""

from __future__ import annotations

import asyncio
import re
import signal

import grpc
import pytest
from e2e.kubelets import share_pod
from e2e.managed_node import pod_of
from e2e.node_harness import PODS, right, stage
from support.device_plugins import CHECKPOINT
from support.waiting import PATIENCE_SECONDS

from isolation.contract import kubelet_api as api
from isolation.contract.names import AGENT
from isolation.contract.quantity import GIB


async def told(at, word):
    """Until the agent is not ready and says so on its page and in the node's annotation; what it says."""
    said = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while word not in said:
            await asyncio.sleep(0.1)
            said = await asyncio.to_thread(at.agent.page, "readyz")
    await at.client.until(lambda n: n["metadata"]["annotations"][AGENT] != "ready", at.node.path)
    return said


async def restarts(at, pod, starts):
    """Its container ends and runs again."""
    at.kubelet.crash(pod, "main")
    await at.until(lambda: pod.boxes["main"].starts == starts)


def test_memory_that_the_kubelet_gives_again_waits_for_the_old_process(plane, tmp_path):
    """
    A force-deleted pod's process lives on: the next owner of its memory is created when it is gone, not before.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-forced", number=1) as at:
            units = at.cards[0].allocatable_bytes // GIB
            old = await at.running(await at.bind(share_pod("old", units), 0))
            at.kubelet.linger = PATIENCE_SECONDS
            await at.client.delete(f"{PODS}/old", force=True)
            await at.until(lambda: at.kubelet.status()[1] and old.uid not in at.kubelet.known)
            uid = await at.bind(share_pod("new", units), 0)
            new = await at.until(lambda: at.node.pods.get(uid))
            said = await at.until(lambda: "are not free yet" in (text := new.boxes["main"].message) and text)
            at.kubelet.let_go.set()
            while new.phase != "Running":
                assert not (new.boxes["main"].starts and old.phase != "Gone"), "both live"
                await asyncio.sleep(0.01)
            right(at, new, "main", (0,), units)
            return said

    assert re.search(
        r"are not free yet: .* in use by containers of this node; the kubelet will retry", asyncio.run(story())
    )


def test_a_kubelet_that_forgot_what_it_gave_fills_no_card_twice(plane, tmp_path):
    """
    Its checkpoint is lost under running pods: what is in force counts, and the newcomer waits.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-lost", number=1) as at:
            units = at.cards[0].allocatable_bytes // GIB
            old = await at.running(await at.bind(share_pod("old", units - 2), 0))
            at.kubelet.lose_checkpoint()
            uid = await at.bind(share_pod("new", 4), 0)
            new = await at.until(lambda: at.node.pods.get(uid))
            await at.until(lambda: "are not free yet" in new.boxes["main"].message)
            still = old.phase
            await at.remove("old")
            right(at, await at.running(uid), "main", (0,), 4)
            return still

    assert "Running" == asyncio.run(story())


def test_an_agent_killed_at_any_moment_comes_back_to_what_runs(plane, tmp_path):
    """
    Pods run on and keep what they have; those that come meanwhile are admitted, wait, and start with their limits.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-killed", pace=0.03) as at:
            pods = []
            for i, moment in enumerate((None, 0.0, 0.03, 0.06, 0.1, 0.2)):
                uid = await at.bind(share_pod(f"kill-{i}", 2), i % 2)
                pod = await at.until(lambda uid=uid: at.node.pods.get(uid))
                if moment is not None:
                    await asyncio.sleep(moment)
                    at.agent.kill()
                    at.agent.start()
                await at.until(lambda pod=pod: pod.phase in ("Running", "Failed"))
                pods.append(pod)
            assert ["Running"] * 6 == [pod.phase for pod in pods]
            # One whose agent died after its answer was created already, and would be started once: by the guard's rule.
            assert {"", "CreateContainerError"} >= {pod.boxes["main"].reason for pod in pods}
            for i, pod in enumerate(pods):
                right(at, pod, "main", (i % 2,), 2)
            await restarts(at, pods[0], 2)
            assert "ending container" not in at.agent.words()
            await at.remove(*(pod.name for pod in pods))
            await at.until(lambda: at.agent.holds() == set())

    asyncio.run(story())


@pytest.mark.parametrize("both", [False, True], ids=["the agent alone", "with its device plugin"])
def test_an_agent_that_is_replaced_holds_up_only_what_starts_meanwhile(plane, tmp_path, both):
    """
    Ended well and restarted: a container that ends in between waits, and gets its limits from the newcomer.

    Its creation is refused, which is no failure for a pod that never restarts.
    """
    words = "gpushare.dev/gate=closed" if both else "the node agent did not answer"

    async def story():
        async with stage(plane, tmp_path, "agent-replaced") as at:
            stays, ends = [await at.running(await at.bind(share_pod(f"new-{i}", 3), i)) for i in range(2)]
            status = await asyncio.to_thread(at.agent.stop)
            if both:
                status += await asyncio.to_thread(at.agent.end_device_plugin)
            at.kubelet.crash(ends, "main")
            await at.until(lambda: words in ends.boxes["main"].message)
            assert ends.boxes["main"].reason == "CreateContainerError"
            at.agent.start()
            await at.until(lambda: ends.boxes["main"].starts == 2)
            right(at, stays, "main", (0,), 3)
            right(at, ends, "main", (1,), 3)
            await at.ready()
            return status, stays.boxes["main"].starts

    assert (0, 1) == asyncio.run(story())


@pytest.mark.parametrize("how", ["restart", "reboot"])
def test_a_kubelet_that_restarts_changes_nothing_for_pods(plane, tmp_path, how):
    """
    Restarted: running pods are untouched. Rebooted: they start again with the same devices, delivered again.
    """

    async def story():
        async with stage(plane, tmp_path, f"agent-{how}") as at:
            pods = [await at.running(await at.bind(share_pod(f"stay-{i}", 3), i % 2)) for i in range(3)]
            before = [pod.boxes["main"].ids for pod in pods]
            await asyncio.to_thread(getattr(at.kubelet, how), 0.1, 1.0)
            starts = 2 if how == "reboot" else 1
            await at.until(lambda: all(pod.boxes["main"].starts == starts for pod in pods))
            await at.until(lambda: at.kubelet.status()[1] > 0)
            for i, pod in enumerate(pods):
                right(at, pod, "main", (i % 2,), 3)
            late = await at.running(await at.bind(share_pod("late", 3), 1))
            right(at, late, "main", (1,), 3)
            return before == [pod.boxes["main"].ids for pod in pods], [pod.phase for pod in pods]

    assert (True, ["Running"] * 3) == asyncio.run(story())


def test_without_the_api_server_containers_start_by_what_their_sandboxes_say(plane, tmp_path):
    """
    The server is frozen and the agent new: what ran before restarts, and a pod that comes now has its own annotation.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-down", watching=False) as at:
            pods = []
            for i, name in enumerate(("before", "after")):
                await at.bind(share_pod(name, 2), i)
                pods.append(pod_of(await at.client.get(f"{PODS}/{name}"), at.kubelet.resource))
            before, after = pods
            at.kubelet.bind(before)
            await at.until(lambda: before.phase == "Running")
            plane.freeze("kube-apiserver")
            try:
                at.agent.kill()
                at.agent.start()
                await restarts(at, before, 2)
                at.kubelet.bind(after)
                await at.until(lambda: after.phase == "Running")
            finally:
                plane.thaw("kube-apiserver")
            right(at, before, "main", (0,), 2)
            right(at, after, "main", (1,), 2)

    asyncio.run(story())


def test_while_the_runtime_is_away_starts_wait_and_the_node_is_not_ready(plane, tmp_path):
    """
    The gate's device is not to be found, running pods go on; with the runtime's socket back the pod starts by itself.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-alone") as at:
            runs = await at.running(await at.bind(share_pod("runs", 3), 0))
            at.kubelet.runtime.nri.down()
            at.kubelet.runtime.nri.path.unlink()
            uid = await at.bind(share_pod("waits", 3), 1)
            pod = await at.until(lambda: at.node.pods.get(uid))
            said = await told(at, "NRI must be enabled in the container runtime")
            assert "gpushare_node_agent_runtime_connected 0.0" in await asyncio.to_thread(at.agent.page)
            await at.until(lambda: at.kubelet.status()[1] == 6)  # what containers have; nothing for others
            state = pod.boxes["main"].state, pod.boxes["main"].cid, runs.phase
            at.kubelet.runtime.nri.up()
            right(at, await at.running(uid), "main", (1,), 3)
            await at.ready()
            return str(at.kubelet.runtime.nri.path) in said, state, pod.boxes["main"].reason

    assert (True, ("waiting", "", "Running"), "") == asyncio.run(story())


def test_a_runtime_that_restarts_runs_nothing_that_the_agent_did_not_see(plane, tmp_path):
    """
    An agent that is stopped is too late: refused by the plugin after it, and well at the next attempt.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-runtime") as at:
            pod = await at.running(await at.bind(share_pod("stays", 3), 0))
            for times in range(3):
                await asyncio.to_thread(at.kubelet.runtime.restart, 0.05 * times)
                await restarts(at, pod, 2 + times)

            def meanwhile():
                at.kubelet.runtime.remove(pod.boxes["main"])
                at.agent.process.send_signal(signal.SIGSTOP)

            at.kubelet.crash(pod, "main", meanwhile)
            await at.until(lambda: pod.boxes["main"].message)
            refused = pod.boxes["main"].reason, pod.boxes["main"].message
            slowest = max(seconds for method, seconds in at.kubelet.runtime.nri.asked if method == "CreateContainer")
            at.agent.process.send_signal(signal.SIGCONT)
            await at.until(lambda: pod.boxes["main"].starts == 5)
            right(at, pod, "main", (0,), 3)
            await at.until(lambda: not list(at.kubelet.runtime.marks.iterdir()))  # that of the late answer too
            return *refused, slowest

    reason, said, slowest = asyncio.run(story())
    assert ("CreateContainerError", True) == (reason, slowest > 1.5)
    assert "the node agent did not answer" in said


def test_a_device_plugin_that_is_killed_comes_back_with_what_was_offered(plane, tmp_path):
    """
    The agent takes the node's word back while it is away; no agent is needed for it to serve again.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-plugin") as at:
            pod = await at.running(await at.bind(share_pod("stays", 3), 0))
            at.agent.device_plugin.kill()
            said = await told(at, "the device plugin does not run")
            up = [
                line for line in at.agent.page().splitlines() if line.startswith("gpushare_node_agent_device_plugin_up")
            ]
            at.agent.kill()
            await at.until(lambda: at.kubelet.status()[1] == 0)
            at.agent.start()
            await at.until(lambda: at.kubelet.status()[1] > 0)
            await at.ready()
            await restarts(at, pod, 2)
            right(at, pod, "main", (0,), 3)
            return said, up

    said, up = asyncio.run(story())
    assert "start `gpushare device-plugin` with the same directories" in said
    assert ["gpushare_node_agent_device_plugin_up 0.0"] == up


def test_devices_of_an_older_release_keep_the_agent_from_registering(plane, tmp_path):
    """
    The kubelet's file names a card in an ID: not ready with what to do; served again once that file is gone.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-older") as at:
            at.kubelet.state.pods["uid-old"] = {"main": {at.kubelet.resource: ("GPU-0-_-1",)}}
            at.kubelet.keep()
            await asyncio.to_thread(at.kubelet.restart, 0.1, None)
            said = await told(at, "drain the node")
            await at.until(lambda: at.kubelet.status()[1] == 0)
            times = len(at.kubelet.registrations)
            at.kubelet.gone()
            at.kubelet.state.pods.clear()
            (at.kubelet.plugins / CHECKPOINT).unlink()
            at.kubelet.back()
            await at.ready()
            return said, times, len(at.kubelet.registrations)

    said, before, after = asyncio.run(story())
    assert "the kubelet has given containers aliyun.com/gpu-mem devices of another unit or release (GPU-0-_-1)" in said
    assert before + 1 == after


def test_whatever_is_asked_there_is_an_answer(plane, tmp_path):
    """
    Senseless questions on the plugin's socket: no error that fails a pod, and the next pod is right.
    """

    def questions(socket):
        write = lambda message: message.SerializeToString()  # noqa: E731
        said = []
        with grpc.insecure_channel(f"unix:{socket}") as channel:

            def ask(method, request, answer):
                return channel.unary_unary(f"/{api.PLUGIN}/{method}", write, answer.FromString)(
                    request, timeout=PATIENCE_SECONDS
                )

            for ids in ([], ["x"], ["../../etc", "\x00"], ["a" * 5000] * 100):
                request = api.AllocateRequest(container_requests=[{"devices_ids": ids}])
                said.append(len(ask("Allocate", request, api.AllocateResponse).container_responses[0].cdi_devices))
            empty = ask("Allocate", api.AllocateRequest(), api.AllocateResponse)
            said.append(len(empty.container_responses))
        return said

    async def story():
        async with stage(plane, tmp_path, "agent-odd") as at:
            said = await asyncio.to_thread(questions, at.kubelet.plugins / "gpushare.sock")
            pod = await at.running(await at.bind(share_pod("after", 3), 1))
            right(at, pod, "main", (1,), 3)
            return said

    assert [1, 1, 1, 1, 0] == asyncio.run(story())
