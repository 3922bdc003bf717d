# SPDX-License-Identifier: Apache-2.0
"""NodeGroupForNode for every node of a large cluster: the fleet is walked once per look, the answers stay the same."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from support.rpc_harness import GENERATIONS, channel_to

from autoscaler.apis.rpc import cloud_provider, provider_groups
from autoscaler.apis.rpc.cloud_provider import CloudProvider, GroupIndex
from autoscaler.apis.rpc.core.node_groups import GroupInstance, NodeGroup
from autoscaler.apis.rpc.provider_groups import OfferedPool, ProviderGroups
from autoscaler.providers import base
from isolation.contract.cluster_autoscaler_annotations import Ours

WORDS = st.sampled_from(["", "a", "b", "c", "d"])
GROUPS = st.lists(st.lists(st.builds(GroupInstance, WORDS, WORDS), max_size=4), max_size=4).map(
    lambda found: tuple(NodeGroup(f"g{at}", instances=tuple(some)) for at, some in enumerate(found))
)


@given(GROUPS, WORDS, WORDS)
def test_the_index_says_what_a_search_through_the_groups_says(groups, provider_id, name):
    """
    IDs and names that stand twice, in several groups, as each other, or nowhere.
    """
    found = next((group.name for group in groups if group.find(provider_id, name) is not None), "")

    assert found == GroupIndex(groups).of(provider_id, name).nodeGroup.id


class Fleet:
    """A provider of one pool."""

    name = "fleet"

    def __init__(self, size):
        self.nodes = tuple(base.ProviderInstance(f"fleet://n{at}", f"n{at}") for at in range(size))

    async def pools(self):
        """The one."""
        return (base.PoolState("a", len(self.nodes), self.nodes),)

    async def grow(self, _pool, by, _seen=None):
        """Granted."""
        return len(self.nodes) + by


def test_a_loop_of_calls_walks_the_fleet_once_and_every_change_is_reported_at_once(monkeypatch):
    """
    Counted: machines read, whatever is asked; an order, an increase and the next look each show in the next answer.
    """
    size = 300
    read = []
    monkeypatch.setattr(
        provider_groups, "_instance", lambda one, plain=provider_groups._instance: read.append(one) or plain(one)
    )
    built = []
    monkeypatch.setattr(cloud_provider, "GroupIndex", lambda groups: built.append(groups) or GroupIndex(groups))

    async def run():
        fleet = Fleet(size)
        state = ProviderGroups([OfferedPool("a", fleet, ours=Ours(buys=True))])
        async with channel_to(CloudProvider(state)) as channel:
            client = GENERATIONS[1].provider(channel)

            async def list_templates(at):
                found = await client["NodeGroupForNode"](node={"providerID": f"fleet://n{at}", "name": f"n{at}"})
                return found.nodeGroup.id, found.nodeGroup.minSize

            await client["Refresh"]()
            first = [await list_templates(at) for at in (*range(size), size + 1)]
            cost = len(read)
            state.command("a", size + 1)
            ordered = await list_templates(0)
            await client["NodeGroupIncreaseSize"](id="a", delta=1)
            bought = await list_templates(0)
            fleet.nodes = fleet.nodes[1:]
            await client["Refresh"]()
            return first, cost, ordered, bought, await list_templates(0), len(built)

    first, cost, ordered, bought, gone, indexes = asyncio.run(run())
    assert [("a", 0)] * size + [("", 0)] == first
    assert size == cost
    assert (("a", size + 1), ("a", 0), ("", 0)) == (ordered, bought, gone)
    assert indexes <= 5
