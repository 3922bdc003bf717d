# SPDX-License-Identifier: Apache-2.0
"""Pending pods of other systems make the autoscaler buy what they need: it sees them in our words alone."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from e2e.admission_stand import PODS, Stand, webhooked
from e2e.autoscaler_stage import pool, pool_node, profile_of, stage
from support.dialect_pods import hami, kai

from isolation.contract.dialects import Offered
from isolation.contract.names import CARD_COUNT, CARD_UNITS, CORE_STEPS
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.core.webhook import ReviewContext


def labelled(name, of):
    """A node with the labels of its agent, by which admission keeps pods from cards that are too small."""
    return pool_node(name, of, **{CARD_UNITS: "15", CARD_COUNT: "2"})


TEMPLATE = profile_of(labelled("any", "gpu-a"))


@pytest.mark.parametrize(
    ("count", "pod", "nodes"),
    [(3, hami(gpumem="8192", gpucores=None), 2), (5, kai(**{"gpu-fraction": "0.5"}), 2)],
    ids=["hami", "kai"],
)
def test_pending_pods_of_another_system_bring_the_right_number_of_nodes(plane, tmp_path, count, pod, nodes):
    """
    Of two cards with 15 GiB each: two of 8 GiB fit a node, or four halves of a card.
    """

    async def story():
        pools = pool("gpu-a", max_nodes=9, profile=TEMPLATE)
        async with contextlib.AsyncExitStack() as stack:
            s = await stack.enter_async_context(stage(plane, tmp_path, pools, node_of=labelled))
            stand = Stand(plane)
            stand.systems = parse_serving(",".join(CORE_STEPS))
            known = Offered(stand.systems.dialects, lambda _rules, **_: frozenset({15 * GIB}))
            stand.world = ReviewContext(stand.world.is_shared, offered=known)
            await stack.enter_async_context(webhooked(s.client, stand))
            for at in range(count):
                pod["metadata"]["name"] = f"p{at}"
                await s.client.call("POST", PODS, pod)
            await s.turns(lambda: s.all_bound(count), why="all run")
            return await s.machines.replicas("gpu-a")

    assert nodes == asyncio.run(story())
