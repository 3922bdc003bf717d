# SPDX-License-Identifier: Apache-2.0
"""Orders that cluster-autoscaler has not come for are taken back once nobody waits; what it has come for is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.autoscaler_harness import LIMITS, Api, Machines, a_pod, run
from support.builders import ask
from support.pools_builder import pod, pool, seen

from autoscaler.apis.rpc.provider_groups import OfferedPool, OrderingProvider, ProviderGroups
from autoscaler.core.decide import decide
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import Nomination
from autoscaler.core.plan import CancelScaleUp, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from isolation.contract.cluster_autoscaler_annotations import Ours

PODS = "/api/v1/pods"


class Story:
    """One pool that is ordered; pods come and go."""

    def __init__(self, *pods, units=2):
        self.machines = Machines()
        self.relay = ProviderGroups([OfferedPool("a", self.machines, ours=Ours(buys=True))])
        self.api = Api([], [a_pod(name, units=units) for name in pods])

    def played(self, play):
        """`play(stand, turned)`, where `turned()` makes a turn and says what it did."""

        async def story(stand):
            memory = AutoscalerState()

            async def turned():
                nonlocal memory
                stand.seconds += 10
                plan, memory = await reconcile(stand.world, LIMITS, memory)
                return [type(step) for step in plan.steps]

            found = await play(stand, turned), memory.backoffs
            assert not found[1], "no pool rests for it"
            return found[0]

        return run(self.api, OrderingProvider(self.relay, self.machines), story, stale_seconds=1e9)

    async def ends(self, name):
        """A pod is gone, and everybody has heard."""
        self.api.put(PODS, a_pod(name), "DELETED")
        await self.api.delivered()


def test_an_order_goes_with_the_last_pod_that_it_is_for():
    """
    At the next look, and the pool does not rest: who comes next is ordered for at once.
    """
    story = Story("p1")

    async def play(_stand, turned):
        steps, sizes = [await turned()], [story.relay.commanded("a")]
        await story.ends("p1")
        for _ in range(2):
            steps.append(await turned())
            sizes.append(story.relay.commanded("a"))
        story.api.put(PODS, a_pod("p2"), "ADDED")
        await story.api.delivered()
        return [*steps, await turned()], [*sizes, story.relay.commanded("a")]

    steps, sizes = story.played(play)
    assert [[ScaleUp], [CancelScaleUp], [], [ScaleUp]] == steps
    assert [1, 0, 0, 1] == sizes
    assert 0 == story.machines.target


def test_an_order_that_was_carried_out_in_between_is_not_taken_back():
    """
    cluster-autoscaler came after the look and before the step: the machine is bought and stays the provider's.
    """
    story = Story("p1")

    async def play(stand, turned):
        await turned()
        await story.ends("p1")
        await stand.world.observe()
        await story.relay.refresh()
        await story.relay.grow("a", 1)
        return await stand.world.apply(CancelScaleUp("a/0", "a", "nobody waits"))

    assert "carried out" in story.played(play).reason
    assert (1, 0) == (story.machines.target, story.relay.commanded("a"))


def test_of_several_orders_as_many_go_as_nobody_waits_for():
    """
    The one that still waits keeps its machine, whichever of the names that has.
    """
    story = Story("p1", "p2", "p3", units=8)

    async def play(_stand, turned):
        await turned()
        ordered = story.relay.commanded("a")
        for name in ("p1", "p2"):
            await story.ends(name)
        return ordered, await turned(), story.relay.commanded("a"), await turned()

    ordered, back, left, after = story.played(play)
    assert 3 == ordered
    assert [CancelScaleUp] * 2 == back
    assert (1, []) == (left, after)


def test_what_is_not_bought_yet_is_not_bought_for_a_pod_that_has_gone():
    """
    Steps before it took long: the watch knows more than the plan. For a pool's smallest size nobody need wait.
    """
    story = Story("p1", "p2")

    async def play(stand, _turned):
        await stand.world.observe()
        await story.ends("p1")
        steps = [ScaleUp("a", ("p1",), "x"), ScaleUp("a", (), "x"), ScaleUp("a", ("p1", "p2"), "x")]
        return [why is None for why in await stand.world.buy(steps)]

    assert [False, True, True] == story.played(play)
    assert 2 == story.relay.commanded("a")


@pytest.mark.parametrize(
    ("ordered", "min_nodes", "homes", "expected"),
    [
        pytest.param(2, 0, (), ["p/1", "p/0"], id="nobody waits"),
        pytest.param(1, 0, (), ["p/1"], id="one is asked for at the provider"),
        pytest.param(0, 0, (), [], id="all are"),
        pytest.param(2, 1, (), ["p/1"], id="the smallest size"),
        pytest.param(2, 0, ("p/1",), ["p/0"], id="one is needed"),
    ],
)
def test_orders_that_nobody_needs_are_found(ordered, min_nodes, homes, expected):
    """
    Never below the pool's smallest size.
    """
    machines = [PoolMachine(f"p/{number}", "p", MachineState.REQUESTED, float(number)) for number in range(2)]
    pods = [pod(ask(5)) for _ in homes]
    found = replace(
        seen([pool(min_nodes=min_nodes)], pods, machines=machines, at=10.0),
        ordered={"p": ordered} if ordered else {},
        nominations={one.uid: Nomination(name, (0,)) for one, name in zip(pods, homes, strict=True)},
    )

    plan, _ = decide(found, ScalingLimits(), AutoscalerState())

    assert expected == [step.node for step in plan.steps if isinstance(step, CancelScaleUp)]
