# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` and `gpushare mps` on a node of mode `mps` of a real control plane: pods get their card's server, and
have it again after anything of it has died.

Kubelet and container runtime are stand-ins; a container's program is a real client of the simulated driver, in a mount
namespace as the agent's adjustment says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time

import pytest
from e2e.managed_node import MODE
from e2e.mps_pods import USER, Programs, client_pod, event_of
from e2e.node_harness import PODS, stage
from e2e.node_process import cards
from e2e.sharing import our_pod, sharing
from e2e.test_resize import count, has, status_of, wants
from support.backend_harness import MPS_RUNS, keeper_of, shared_mount
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import AGENT, TRUST_GROUP
from isolation.node.mps.exchange import PIPE, MpsExchange, folder_of
from isolation.simgpu.hardware import Box

GIB, MIB = 1 << 30, 1 << 20
RECOVERY_SECONDS = 30.0
IN_PROGRESS = "PodResizeInProgress"
GROWN = """
rc = begin()
grown, at = alloc(5 * GIB)
cu.cuMemFree_v2(at)
say([rc, grown, alloc(6 * GIB)[0]])
sys.stdin.readline()
"""
OUT_OF_MEMORY = 2
pytestmark = MPS_RUNS


@contextlib.asynccontextmanager
async def stand(plane, tmp_path, name):
    """One node of mode mps with its agent, its keeper, and programs in containers."""
    machine = cards(tmp_path / "cards", 1, "v100-16g")
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_mount(tmp_path / "run"))
        keeper = stack.enter_context(keeper_of(machine, tmp_path))
        async with stage(plane, tmp_path, name, mode="mps", machine=machine) as at:
            programs = Programs(at, tmp_path)
            stack.callback(programs.end)
            yield at, programs, keeper, machine


async def started(at, manifest):
    """The pod once it runs."""
    return await at.running(await at.bind(manifest, 0))


async def refused(at, manifest, words):
    """Once its container does not start for this reason: the first words may be of an agent that was late."""
    uid = await at.bind(manifest, 0)
    pod = await at.until(lambda: at.node.pods.get(uid))
    await at.until(lambda: words in pod.boxes["main"].message)
    assert pod.boxes["main"].state == "waiting"


def test_a_pod_gets_its_server_with_its_limits_and_a_card_is_never_left_without(plane, tmp_path):
    """Pipe, variables, limits of a real client; another user's pod, and any pod without a keeper, does not start."""

    async def story():
        async with stand(plane, tmp_path, "mps-starts") as (at, programs, keeper, _):
            pod = await started(at, client_pod("first", 4, core=50))
            _, said = await asyncio.to_thread(programs.run, pod)
            given = pod.boxes["main"]
            await refused(at, client_pod("stranger", 2, uid=7), "another group or user")
            keeper.kill()
            keeper.wait()
            said_not_ready = await at.client.until(
                lambda n: n["metadata"]["annotations"][AGENT] != "ready", at.node.path, seconds=20
            )
            await refused(at, client_pod("late", 2), "no MPS keeper runs")
            assert said_not_ready
            return given, said, at.agent.page("readyz")

    given, said, page = asyncio.run(story())
    assert given.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert given.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert given.env["CUDA_MPS_PIPE_DIRECTORY"] in given.mounts
    assert not given.missing
    status, got, multiprocessors = json.loads(said)
    assert (status, multiprocessors) == (0, 40)
    assert 3 * GIB < got <= 4 * GIB - 300 * MIB
    assert "no MPS keeper runs" in page


@pytest.mark.parametrize("which", ["daemon", "server"])
def test_after_a_daemon_or_server_died_its_pods_get_an_event_and_run_again_within_half_a_minute(
    plane, tmp_path, which, record_property
):
    async def story():
        async with stand(plane, tmp_path, f"mps-{which}") as (at, programs, _, machine):
            pods = [await started(at, client_pod(name, 2)) for name in ("a", "b")]
            running = [(await asyncio.to_thread(programs.run, pod))[0] for pod in pods]
            uuid = at.cards[0].uuid
            exchange = MpsExchange(at.agent.run_dir)
            before = exchange.servers()[uuid].generation
            pid = (folder_of(at.agent.run_dir, uuid) / PIPE / "nvidia-cuda-mps-control.pid").read_text()
            with contextlib.closing(Box(machine)) as box:
                serving = [one.pid for one in box.clients(0) if one.name.startswith(b"nvidia-cuda-mps")]
            began = time.monotonic()
            os.kill(int(pid) if which == "daemon" else serving[0], signal.SIGKILL)
            codes = [await asyncio.to_thread(one.wait, PATIENCE_SECONDS) for one in running]
            for pod in pods:
                at.kubelet.crash(pod, "main")  # the runtime notices, the kubelet starts it again
            await at.until(lambda: all(pod.boxes["main"].starts == 2 for pod in pods))
            again = [(await asyncio.to_thread(programs.run, pod))[1] for pod in pods]
            took = time.monotonic() - began
            after = exchange.servers()[uuid].generation
            events = [await event_of(at, pod) for pod in pods]
            metrics = at.agent.page()
            await at.remove("a", "b")
            return codes, again, took, before, after, events, metrics

    codes, again, took, before, after, events, metrics = asyncio.run(story())
    assert codes == [-signal.SIGKILL] * 2, "the agent ended them: they waited for input and noticed nothing"
    assert all(one.startswith("[0, ") for one in again), again
    assert before != after
    assert took < RECOVERY_SECONDS
    for found in events:
        [event] = found
        assert event["type"] == "Warning"
        assert f"the MPS {which} died" in event["note"]
        assert event["reportingInstance"] == f"gpushare-node/mps-{which}"
    assert "gpushare_node_agent_mps_failed_containers_total 2.0" in metrics
    record_property("seconds", round(took, 1))


def test_a_resize_that_mps_does_not_pass_on_waits_for_the_restart_and_says_so(plane, tmp_path):
    """Larger than its start: restart asked for, old limits, then the new ones. Smaller, up to its start: at once."""

    async def story():
        async with sharing(plane, tmp_path), stand(plane, tmp_path, "mps-resize") as (at, programs, *_):
            manifest = our_pod("grows", 4, nodeSelector={MODE: "mps"}, securityContext=USER)
            manifest["metadata"]["annotations"] = {TRUST_GROUP: "ml"}
            pod = await at.running((await at.client.create(manifest))["metadata"]["uid"])
            await asyncio.to_thread(programs.run, pod)
            await wants(at, "grows", 6)
            pending = await at.client.until(
                lambda p: (now := status_of(p)) and now.condition == IN_PROGRESS and now.message, f"{PODS}/grows"
            )
            await count(at, 15 - 2)  # booked
            await asyncio.sleep(3.0)
            waits = status_of(await at.client.get(f"{PODS}/grows"))
            promised = at.agent.hold(pod.uid, "main")["cards"][0]["bytes"]
            programs.end()
            at.kubelet.crash(pod, "main")
            await has(at, pod, 6)
            await at.until(lambda: pod.boxes["main"].container)  # its first starts can be too early for the new server
            _, said = await asyncio.to_thread(programs.run, pod, GROWN)
            await wants(at, "grows", 3)
            await has(at, pod, 3)
            await wants(at, "grows", 5)
            await has(at, pod, 5)
            return status_of(pending), waits, promised, said, pod.boxes["main"].starts

    pending, waits, promised, said, starts = asyncio.run(story())
    assert pending.reason == waits.reason == "Error"
    assert "4 GiB and 100 % of compute: restart it" in waits.message
    assert promised == 4 * GIB
    assert json.loads(said) == [0, 0, OUT_OF_MEMORY]
    assert starts == 2
