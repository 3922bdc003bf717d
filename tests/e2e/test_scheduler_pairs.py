# SPDX-License-Identifier: Apache-2.0
"""Two pairs of kube-scheduler and extender: one leads, and when any part of it dies the other does, in time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time

import pytest
from e2e.kubelets import Kubelets
from e2e.scheduler_pairs import kept, leader, pairs, start_ours
from e2e.sharing import PODS, bound, card_node, our_pod, taken, untainted, workload

SLOWER = 25
"""So many times what a binding usually costs in the same run may come on top: an election is several of them."""


def own_host_names():
    """Whether a process may get a host name of its own here."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not own_host_names(), reason="host names of their own need root and unshare")


async def bound_after(client, name):
    """Seconds until a new pod is bound; before anything has died, what that takes on this machine as busy as it is."""
    began = time.monotonic()
    await client.create(our_pod(name, 1))
    await client.until(lambda p: p["spec"].get("nodeName"), f"{PODS}/{name}")
    return time.monotonic() - began


@pytest.mark.parametrize("dies", ["both", "ours", "theirs"])
def test_a_dead_leader_is_followed_as_soon_as_its_leases_have_run_out(plane, tmp_path, dies):
    """
    The pair or the kube-scheduler alone is killed in mid-crowd, or our part, which the kubelet starts again:
    binding goes on in ten seconds, and as much more as this machine is slow.
    """
    nodes = [card_node(f"pair-{i}") for i in range(2)]

    async def story():
        async with pairs(plane, tmp_path) as (client, made), Kubelets(client, nodes).alive():
            await untainted(client)
            first = await leader(made)
            usual = await bound_after(client, "before")
            await client.create(workload("Deployment", "pair", 50, our_pod("x", 2)))
            await client.until(lambda p: len(bound(p)) >= 10, PODS, labelSelector="app=pair")
            if dies != "theirs":
                made[first].end(signal.SIGKILL)
            if dies != "ours":
                plane.kill(f"kube-{first}")
            if dies == "ours":
                start_ours(made[first])
                usual += await made[first].answers("/readyz") / SLOWER
            alive = {name: ours for name, ours in made.items() if dies == "ours" or name != first}
            async with kept(plane, tmp_path, alive):
                took = await bound_after(client, "after")
                await client.until(lambda p: len(bound(p)) == 50, PODS, labelSelector="app=pair")
                listed = await client.get(PODS)
            return took, usual, taken(listed["items"])

    took, usual, cards = asyncio.run(story())
    print(f"{dies} killed: a new pod was bound after {took:.1f} s")  # noqa: T201
    assert max(cards.values()) <= 15
    assert 102 == sum(cards.values())
    assert took <= 10 + SLOWER * usual


def test_a_kube_scheduler_that_loses_its_lease_takes_us_along(plane, tmp_path):
    """
    The pair that has lost gives our Lease back at once; never do both answer.
    """

    async def story():
        async with pairs(plane, tmp_path) as (client, made), Kubelets(client, [card_node("moves")]).alive():
            await untainted(client)
            first = await leader(made)
            usual = await bound_after(client, "before")
            other = "b" if first == "a" else "a"
            plane.kill(f"kube-{first}")
            both = 0
            end = time.monotonic() + 12
            async with kept(plane, tmp_path, {other: made[other]}):
                while time.monotonic() < end:
                    # once more at the end: one after the other is no crime, and this process may have stood still
                    asked = [*made.values(), *made.values()][:3]
                    both += [(await ours.probe("/leader"))[0] for ours in asked] == [200] * 3
                return first, other, await leader(made), both, await bound_after(client, "moved"), usual

    first, other, now, both, took, usual = asyncio.run(story())
    assert other == now != first
    assert 0 == both
    assert took < 5 + SLOWER * usual
