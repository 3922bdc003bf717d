# SPDX-License-Identifier: Apache-2.0
"""
A card that turns unhealthy under a running pod, on a real control plane: no newcomers, and well again.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from e2e.kubelets import share_pod
from e2e.node_harness import MEMORY, right, stage

from isolation.contract.codec import decode_cards
from isolation.contract.names import CARDS, UNHEALTHY_CARDS
from isolation.simgpu.hardware import open_box


def page(agent):
    """Its figures about unhealthy cards."""
    return dict(
        re.findall(r'^gpushare_node_agent_(?:unhealthy_cards\{reason="(\w+)"\}) ([0-9.]+)$', agent.page(), re.MULTILINE)
    )


def broken(tmp_path, card, what, value):
    """As `gpushare simgpu inject` does."""
    with open_box(tmp_path / "cards") as box:
        box.inject(card, what, value)


@pytest.mark.parametrize("how", ["back", "declared"])
def test_an_unhealthy_card_keeps_its_pods_and_gets_no_others_until_it_is_well(plane, tmp_path, how):
    """
    Its free units are unhealthy, node and metrics say why; a program's XID does nothing; gone and back, or declared
    well by removing the memory, it is offered again.
    """

    async def story():
        async with stage(plane, tmp_path, f"agent-unhealthy-{how}") as at:
            each = at.cards[0].allocatable_bytes >> 30
            pod = await at.running(await at.bind(share_pod("stays", 3), 0))

            async def until(healthy, amount):
                def is_reported(node):
                    cards = decode_cards(node["metadata"]["annotations"][CARDS])
                    return healthy == [c.healthy for c in cards] and amount == int(
                        node["status"]["allocatable"][MEMORY]
                    )

                return (await at.client.until(is_reported, at.node.path))["metadata"]["annotations"].get(
                    UNHEALTHY_CARDS
                )

            await asyncio.to_thread(broken, tmp_path, 1, "xid", 31)
            await asyncio.to_thread(broken, tmp_path, 0, "xid", 119)
            why = await until([False, True], each + 3)
            figures = await asyncio.to_thread(page, at.agent)
            right(at, pod, "main", (0,), 3)
            if how == "back":
                await asyncio.to_thread(broken, tmp_path, 0, "lost", 1)
                await at.until(lambda: "true" in re.findall(r'"gone": (\w+)', unhealthy.read_text()))
                await asyncio.to_thread(broken, tmp_path, 0, "lost", 0)
            else:
                unhealthy.unlink()
            after = await until([True, True], 2 * each)
            phase = pod.phase
            return at.cards[0].uuid, why, figures, after, phase, await asyncio.to_thread(page, at.agent)

    unhealthy = tmp_path / "run" / "unhealthy-cards.json"
    uuid, why, figures, after, phase, well = asyncio.run(story())
    assert (f"{uuid}: XID 119", None, "Running") == (why, after, phase)
    assert {"xid": "1.0", "ecc": "0.0", "driver": "0.0", "lost": "0.0", "mig": "0.0", "row_remap": "0.0"} == figures
    assert {"0.0"} == set(well.values())
