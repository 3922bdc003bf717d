# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` on a real control plane while something fails: nothing is given twice, nothing lost.

The kubelet is the stand-in with a device manager; pods are bound by hand with records, as our scheduler does.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest
from e2e.kubelets import share_pod
from e2e.node_stage import PODS, right, stage
from support.waiting import PATIENCE_SECONDS

from isolation.contract import kubelet_api as api
from isolation.contract.quantity import GIB


def test_ids_that_the_kubelet_gives_again_wait_for_the_old_process(plane, tmp_path):
    """
    A force-deleted pod's process lives on: the next owner of its memory starts when it is gone, not before.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-forced", number=1) as at:
            units = at.cards[0].allocatable_bytes // GIB
            old = await at.running(await at.bind(share_pod("old", units), 0))
            at.kubelet.linger = 1.5
            await at.client.delete(f"{PODS}/old", force=True)
            await at.until(lambda: at.kubelet.status()[1] and old.uid not in at.kubelet.known)
            uid = await at.bind(share_pod("new", units), 0)
            new = await at.until(lambda: at.node.pods.get(uid))
            await at.until(lambda: new.boxes["main"].attempts)
            together = 0
            while new.phase != "Running":
                together += old.phase == "Gone" and new.boxes["main"].starts > 0
                assert not (new.boxes["main"].starts and old.phase != "Gone"), "both live"
                await asyncio.sleep(0.01)
            right(at, new, "main", (0,), units)

    asyncio.run(story())


def test_an_agent_killed_at_any_moment_comes_back_to_what_runs(plane, tmp_path):
    """
    Pods run on; those that start meanwhile start; the book is as it was, nothing is given twice.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-killed", pace=0.03) as at:
            pods = []
            for i, moment in enumerate((None, 0.0, 0.03, 0.06, 0.1, 0.2)):
                await at.until(lambda: at.kubelet.status()[1] > 0)
                uid = await at.bind(share_pod(f"kill-{i}", 2), i % 2)
                pod = await at.until(lambda uid=uid: at.node.pods.get(uid))
                if moment is not None:
                    await asyncio.sleep(moment)
                    at.agent.kill()
                    at.agent.start()
                await at.until(lambda pod=pod: pod.phase in ("Running", "Failed"))
                pods.append((i, pod))
            alive = [(i, pod) for i, pod in pods if pod.phase == "Running"]
            await at.until(lambda: {pod.uid for _, pod in alive} <= {uid for uid, _ in at.agent.book()})
            for i, pod in alive:
                right(at, pod, "main", (i % 2,), 2)
            given = [ident for _, pod in alive for ident in pod.boxes["main"].ids]
            assert len(set(given)) == len(given)
            at.kubelet.crash(alive[0][1], "main")
            await at.until(lambda: alive[0][1].boxes["main"].starts == 2)
            await at.remove(*(pod.name for _, pod in pods))
            await at.until(lambda: at.agent.book() == {})
            return [i for i, _ in alive]

    assert 0 in asyncio.run(story())


@pytest.mark.parametrize("how", ["restart", "reboot"])
def test_a_kubelet_that_starts_anew_changes_nothing_for_pods(plane, tmp_path, how):
    """
    Restarted: running pods are untouched. Rebooted: they start again with the same devices, delivered anew.
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


def test_without_the_api_server_pods_that_are_bound_still_start(plane, tmp_path):
    """
    The server is frozen after the binding was seen: the container starts, and restarts, without it.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-down") as at:
            first = await at.running(await at.bind(share_pod("before", 2), 0))
            kept = at.agent.run_dir / "pods.json"
            await at.until(lambda: first.uid in kept.read_text())
            plane.freeze("kube-apiserver")
            try:
                at.agent.kill()
                at.agent.start()
                await at.until(lambda: at.kubelet.status()[1] == 0)
                await at.until(lambda: at.kubelet.status()[1] > 0)
                at.kubelet.crash(first, "main")
                await at.until(lambda: first.boxes["main"].starts == 2)
            finally:
                plane.thaw("kube-apiserver")
            right(at, first, "main", (0,), 2)

    asyncio.run(story())


def test_ids_given_twice_by_the_kubelet_start_only_one_pod(plane, tmp_path):
    """
    A stranger's List during an Allocate: the kubelet offers held IDs, the agent's book gives others, nobody shares.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-twice-given", number=1) as at:
            units = at.cards[0].allocatable_bytes // GIB
            pods = []
            for i in range(4):
                old = await at.running(await at.bind(share_pod(f"old-{i}", 2), 0))
                uid = await at.bind(share_pod(f"new-{i}", 2), 0)
                await at.until(lambda uid=uid: uid in at.kubelet.known)
                await at.client.delete(f"{PODS}/{old.name}", force=True)
                for _ in range(20):
                    at.kubelet.books.collect(at.kubelet._active())  # what a List does to the kubelet's books
                    await asyncio.sleep(0.002)
                pods.append(await at.running(uid))
                assert units >= 2 * len(pods) + 2
            given = [ident for pod in pods for ident in pod.boxes["main"].ids]
            for pod in pods:
                right(at, pod, "main", (0,), 2)
            return len(given), len(set(given))

    given, different = asyncio.run(story())
    assert given == different


ODD = (
    {"available_deviceIDs": [], "must_include_deviceIDs": [], "allocation_size": 0},
    {"available_deviceIDs": ["x"], "must_include_deviceIDs": ["y"], "allocation_size": -5},
    {"available_deviceIDs": ["a-_-0"] * 3000, "must_include_deviceIDs": ["-_-", ""], "allocation_size": 2000},
    {"available_deviceIDs": ["../../etc", "a\nb", "\x00", "é" * 500], "allocation_size": 2**31 - 1},
)


def test_whatever_is_asked_there_is_an_answer(plane, tmp_path):
    """
    Senseless questions on the plugin's socket: no error that fails a pod, nobody starts, and the next pod is right.
    """

    def questions(socket):
        write = lambda message: message.SerializeToString()  # noqa: E731
        said = []
        with grpc.insecure_channel(f"unix:{socket}") as channel:

            def ask(method, request, answer):
                return channel.unary_unary(f"/{api.PLUGIN}/{method}", write, answer.FromString)(
                    request, timeout=PATIENCE_SECONDS
                )

            for odd in ODD:
                request = api.PreferredAllocationRequest(container_requests=[odd])
                answer = ask("GetPreferredAllocation", request, api.PreferredAllocationResponse)
                said.append(len(answer.container_responses))
            for ids in ([], ["x"], ["../../etc", "\x00"], ["a" * 5000] * 100):
                request = api.AllocateRequest(container_requests=[{"devices_ids": ids}])
                said.append(len(ask("Allocate", request, api.AllocateResponse).container_responses[0].cdi_devices))
                request = api.PreStartContainerRequest(devices_ids=ids)
                with pytest.raises(grpc.RpcError):
                    ask("PreStartContainer", request, api.PreStartContainerResponse)
            empty = ask("Allocate", api.AllocateRequest(), api.AllocateResponse)
            said.append(len(empty.container_responses))
        return said

    async def story():
        async with stage(plane, tmp_path, "agent-odd") as at:
            said = await asyncio.to_thread(questions, at.kubelet.plugins / "gpushare.sock")
            pod = await at.running(await at.bind(share_pod("after", 3), 1))
            right(at, pod, "main", (1,), 3)
            at.agent.kill()
            at.agent.start()
            await at.until(lambda: at.kubelet.status()[1] == 0)
            await at.until(lambda: at.kubelet.status()[1] > 0)
            late = await at.running(await at.bind(share_pod("late", 3), 0))
            right(at, late, "main", (0,), 3)
            assert "cannot load saved allocations" not in at.agent.words()
            return said, [path.name for path in tmp_path.rglob("etc")]

    said, outside = asyncio.run(story())
    assert ([1] * 8 + [0], []) == (said, outside)
