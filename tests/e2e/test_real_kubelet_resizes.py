# SPDX-License-Identifier: Apache-2.0
"""Random resizes on a real node, under our scheduler, while pods come and go and everything is killed in turn."""

from __future__ import annotations

import asyncio

import pytest
from e2e.scheduler_pairs import pairs
from realkubelet.harness import play, real_node
from realkubelet.pods import MEMORY, PODS, container, facts, pod_of
from realkubelet.resizes import ResizeChurn
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec.resize import encode_wanted
from isolation.contract.names import RESIZE, SCHEDULER

ACCOUNT = "system:serviceaccount:gpushare-system:gpushare-scheduler"


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def test_whatever_is_resized_and_killed_no_card_has_more_than_it_can_give(stage, tmp_path, budget):
    """
    0 overcommitted, in records and limits; in the end all of them say the same. 0 pods are refused by the kubelet, but
    for those that it admits before the device plugin has found it again.
    """

    async def story(client):
        account = stage.plane.kubeconfig_for(ACCOUNT, ("system:masters",))
        async with pairs(stage.plane, tmp_path, account) as (_, schedulers):
            return await ResizeChurn(stage, client, schedulers, tmp_path, seed=7).run(70 * budget, every=10)

    found = play(stage, story)
    assert ([], {}, []) == (found.overcommitted, dict(found.rejected), found.differs), found
    assert found.asked >= 70 * budget
    assert found.evicted > 0
    assert found.in_force > 0


def test_a_limit_that_grows_is_in_force_within_200_ms_of_the_agents_word(stage, tmp_path):
    """
    Programs ask for more every millisecond, and five times their pods grow: from the moment the agent has written a
    limit until its program is given the memory. Of 20 times the median: a busy machine may hold up a program.
    """
    first, steps, at_once = 1, 5, 2

    async def story(client):
        async with pairs(stage.plane, tmp_path, stage.plane.kubeconfig_for(ACCOUNT, ("system:masters",))):
            return [await asyncio.gather(*(grown(client, f"grows-{n}-{i}") for i in range(at_once))) for n in range(2)]

    async def grown(client, name):
        """Milliseconds of each step; then it goes."""
        box = container("main", first, "512", *["+1024"] * steps)
        await client.create(pod_of(name, box, schedulerName=SCHEDULER))
        pod, took = await stage.running_pod(client, name), []
        for step in range(1, steps + 1):
            wanted = {"metadata": {"annotations": {RESIZE: encode_wanted({"main": {MEMORY: first + step}})}}}
            await client.merge(f"{PODS}/{name}", wanted)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(given := facts(said(pod)).get("given", [])) < step:  # noqa: ASYNC110 (another process writes it)
                    await asyncio.sleep(0.01)
            written = stage.limits_files(pod)["main"].stat().st_mtime_ns
            took.append((int(given[-1]) - written) / 1e6)
        await client.delete(f"{PODS}/{name}")
        return took

    def said(pod):
        meta = pod["metadata"]
        return stage.node.said(meta["namespace"], meta["name"], meta["uid"], "main")

    took = sorted(ms for both in play(stage, story) for each in both for ms in each)
    median = took[len(took) // 2]
    print(f"{len(took)} steps: median {median:.0f} ms, at most {took[-1]:.0f} ms")  # noqa: T201
    assert took[0] >= 0, "the program was given memory before its limit was written"
    assert median <= 200
