# SPDX-License-Identifier: Apache-2.0
"""Orders whose pods are gone before cluster-autoscaler comes for them: nobody is bought for."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest
from e2e.autoscaler_harness import pool_node
from e2e.autoscaler_process import one_pool
from e2e.cluster_autoscaler.harness import beside
from e2e.kubelets import Kubelets
from e2e.sharing import PODS, our_pod

from autoscaler.kube.reconciler import CONFIRMED_SECONDS

if TYPE_CHECKING:
    from e2e.cluster_autoscaler.harness import Beside

FLAG = "--enforce-node-group-min-size"
MORE = 3.0
"""Minutes of cluster-autoscaler's time: eighteen loops."""
ACTIONS = 'gpushare_autoscaler_actions_total{{action="{}",outcome="done"}}'


async def ordered(b: Beside) -> None:
    """Ours waits for cluster-autoscaler, which is away, with an order for one pod."""
    b.theirs.start(FLAG)
    await b.theirs.passes(0.5)
    b.theirs.send(signal.SIGSTOP)
    await b.client.create(our_pod("waits", 10))
    await b.ours.reaches(ACTIONS.format("scale_up"), 1)


async def bought(b: Beside) -> dict[str, int]:
    """What is bought once cluster-autoscaler is back; with a purchase for who comes next, which shows that it is."""
    b.theirs.send(signal.SIGCONT)
    await b.theirs.passes(MORE)
    stale = dict(b.machines.made)
    await b.client.create(our_pod("next", 12))
    await b.client.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/next")
    return stale


@pytest.mark.parametrize("gone", ["deleted", "bound elsewhere"])
def test_an_order_goes_with_its_pod_while_cluster_autoscaler_is_away(plane, tmp_path, gone):
    """
    The pod is deleted, or runs on a node that comes by itself; the order is taken back before anybody has come for it.
    """

    async def story():
        async with beside(plane, tmp_path, one_pool()) as b:
            await ordered(b)
            if gone == "deleted":
                await b.client.delete(f"{PODS}/waits", force=True)
                await b.ours.reaches(ACTIONS.format("cancel_scale_up"), 1)
                return await bought(b)
            async with Kubelets(b.client, [pool_node("by-itself", "")]).alive():
                await b.client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/waits")
                await b.ours.reaches(ACTIONS.format("cancel_scale_up"), 1)
                b.theirs.send(signal.SIGCONT)
                await b.theirs.passes(MORE)
                return dict(b.machines.made)

    assert {} == asyncio.run(story())


def test_an_order_of_a_process_that_stood_still_is_reported_only_once_it_has_looked(plane, tmp_path):
    """
    Ours is frozen with an order in it, the pod deleted, cluster-autoscaler back first: it hears of no order.
    """

    async def story():
        async with beside(plane, tmp_path, one_pool()) as b:
            await ordered(b)
            b.ours.send(signal.SIGSTOP)
            await b.client.delete(f"{PODS}/waits", force=True)
            b.theirs.send(signal.SIGCONT)
            await asyncio.sleep(CONFIRMED_SECONDS + 0.5)
            b.ours.send(signal.SIGCONT)
            return await bought(b)

    assert {} == asyncio.run(story())
