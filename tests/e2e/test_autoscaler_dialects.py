# SPDX-License-Identifier: Apache-2.0
"""Pending pods of other systems make the autoscaler buy what they need: it sees them in our words alone."""

from __future__ import annotations

import asyncio

import pytest
from e2e.admission_harness import PODS, Stand, webhooked
from e2e.autoscaler_harness import pool, pool_node, profile_of, stage
from support.dialect_pods import hami, kai

from isolation.contract.dialects import Offered
from isolation.contract.names import CORE_STEPS
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.core.webhook import ReviewContext

TEMPLATE = profile_of(pool_node("any", "gpu-a"))


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
        async with stage(plane, tmp_path, pools) as s:
            stand = Stand(plane)
            stand.systems = parse_serving(",".join(CORE_STEPS))
            known = Offered(stand.systems.dialects, lambda _rules, **_: frozenset({15 * GIB}))
            stand.world = ReviewContext(stand.world.is_shared, offered=known)
            # Only while they are made: the scheduler of this stage has another name than the one that may bind.
            async with webhooked(s.client, stand):
                for at in range(count):
                    pod["metadata"]["name"] = f"p{at}"
                    await s.client.call("POST", PODS, pod)
            await s.turns(lambda: s.all_bound(count), why="all run")
            return await s.machines.replicas("gpu-a")

    assert nodes == asyncio.run(story())
