# SPDX-License-Identifier: Apache-2.0
"""One turn around the loop: what may not be done is not done, and nobody rests for what nobody refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.builders import ask
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.decide import decide
from autoscaler.core.limits import Limits
from autoscaler.core.plan import Evict, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.core.config import Config, PoolConfig
from autoscaler.kube.core.inhibition import Hold, Why
from autoscaler.kube.guard import GuardedWorld, Manners
from autoscaler.kube.telemetry.metrics import Telemetry
from autoscaler.providers.registry import PoolSource
from isolation.contract.codec.cursor import At
from isolation.contract.model import Refusal
from isolation.contract.model import Why as Code
from isolation.kube.core.errors import UnreachableError

LIMITS = Limits(action_validation_delay_seconds=0.0)
POOL = pool("gpu-a", 2)


class World:
    """Two pods wait for whole nodes; each step is answered as it is told, then done."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.applied, self.expected = [], []

    async def observe(self):
        """One node that is full, two pods that wait for both cards of one."""
        full = POOL.node("full")
        runs = pod(ask(15), on=on_card(full, 0, 15))
        return seen([POOL], [runs, pod(ask(15, 2), "a"), pod(ask(15, 2), "b")], [full], at=1000.0)

    async def settle(self, seconds):
        """At once."""

    async def nominate(self, homes):
        """Noted."""
        self.expected.append(homes)

    async def apply(self, step):
        """As told."""
        self.applied.append(step)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def turned(world, hold=lambda: None):
    """One turn: what became of it, and the memory."""
    guard = GuardedWorld(world, Manners(hold, Telemetry(), lambda: 0.0))
    before = AutoscalerState()
    _, memory = asyncio.run(reconcile(guard, LIMITS, before, guard.decide))
    return guard, guard.settled(memory, before)


def test_with_nothing_in_the_way_all_of_it_is_done():
    """
    Two nodes for two pods, remembered as bought.
    """
    world = World()
    guard, memory = turned(world)

    assert [ScaleUp, ScaleUp] == [type(step) for step in world.applied]
    assert (2, 1000.0, 1) == (len(guard.turn.done), memory.last_add, len(world.expected))


@pytest.mark.parametrize("why", [Why.DRY_RUN, Why.SWITCH, Why.STANDBY, Why.STATE, Why.STOPPING])
def test_with_a_hold_it_is_decided_and_not_done(why):
    """
    The plan can be looked at, nothing is written, nothing is remembered as done.
    """
    world = World()
    guard, memory = turned(world, lambda: Hold(why, "x"))

    assert ([], [], []) == (world.applied, world.expected, guard.turn.done)
    assert [ScaleUp, ScaleUp] == [type(step) for step in guard.turn.decided.steps]
    assert float("-inf") == memory.last_add


def test_a_right_that_ends_between_two_steps_stops_the_second():
    """
    The Lease is asked about before each.
    """
    world = World()
    guard, _ = turned(world, lambda: Hold(Why.STANDBY, "lost") if world.applied else None)

    assert (1, 1, 1) == (len(world.applied), len(guard.turn.done), len(guard.turn.withheld))


class Wholesale(World):
    """One that does purchases of a pool as one, and has room for the first only."""

    async def buy(self, steps):
        """As told."""
        self.applied.append(tuple(steps))
        if self.answers:
            raise self.answers.pop(0)
        return [None, *[Refusal(Code.NOT_READY, "no more of them")] * (len(steps) - 1)]


@pytest.mark.parametrize(
    ("answers", "hold", "calls", "became"),
    [
        pytest.param((), None, 1, (1, 1, 0, 0), id="the second is refused"),
        pytest.param((UnreachableError("no route"),), None, 1, (0, 0, 2, 0), id="nobody knows of either"),
        pytest.param((), Hold(Why.STANDBY, "lost"), 0, (0, 0, 0, 0), id="nothing may be done"),
    ],
)
def test_purchases_done_as_one_are_told_one_by_one(answers, hold, calls, became):
    """
    Done, refused, broken off: each step counts as what became of it.
    """
    world = Wholesale(*answers)
    guard, _ = turned(world, lambda: hold)

    told = tuple(len(some) for some in (guard.turn.done, guard.turn.refused, guard.turn.failed, guard.turn.withheld))
    assert calls == len(world.applied)
    assert became == told


def test_a_step_that_breaks_off_ends_the_turn():
    """
    What follows was planned on a cluster that could be told.
    """
    world = World(UnreachableError("no route"))
    guard, memory = turned(world)

    assert (1, 1, 1) == (len(world.applied), len(guard.turn.failed), len(guard.turn.withheld))
    assert float("-inf") == memory.last_add


def test_a_refused_step_does_not_stop_the_others():
    """
    A pool that somebody else changed is looked at anew in the next turn; the second purchase goes on.
    """
    world = World(Refusal(Code.NOT_READY, "somebody was faster"))
    guard, _ = turned(world)

    assert (2, 1, 1) == (len(world.applied), len(guard.turn.refused), len(guard.turn.done))


def test_only_a_refused_eviction_makes_its_owner_rest():
    """
    One that was withheld does not; one that broke off may have happened, and counts against the hour.
    """
    steps = {name: Evict(name, "n", f"ReplicaSet/{name}", "x") for name in ("refused", "withheld", "broken")}
    guard = GuardedWorld(World(), Manners(lambda: None, Telemetry(), lambda: 0.0))
    guard.turn.seen = seen([POOL], [], [], at=1000.0)
    guard.turn.refused.append((steps["refused"], "budget"))
    guard.turn.withheld.append((steps["withheld"], "lost"))
    guard.turn.failed.append((steps["broken"], "no route"))
    rest = Backoff(1300.0, 300.0)

    memory = guard.settled(AutoscalerState(refused={step.owner: rest for step in steps.values()}), AutoscalerState())

    assert {"ReplicaSet/refused": rest} == memory.refused
    assert ((1000.0,), {"ReplicaSet/broken": 1000.0}) == (memory.moves, memory.moved)


@pytest.mark.parametrize(
    ("priorities", "max_nodes", "expected"),
    [((0, 0), 9, ["cheap", "cheap"]), ((0, 5), 9, ["dear", "dear"]), ((0, 5), 1, ["cheap", "dear"])],
    ids=["price-alone", "priority-first", "the-next-one-when-full"],
)
def test_a_pool_of_a_higher_priority_is_asked_first(priorities, max_nodes, expected):
    """
    Whatever it costs; when it may not grow any more, the other one takes over.
    """
    sources = [PoolSource(name, "scale", At({})) for name in ("cheap", "dear")]
    config = Config(tuple(PoolConfig(s.pool, s, priority=p) for s, p in zip(sources, priorities, strict=True)))
    pools = [pool("cheap", price=1.0), pool("dear", price=9.0, max_nodes=max_nodes)]
    turn_ = seen(pools, [pod(ask(12)), pod(ask(12))])

    plan, _ = decide(replace(turn_, pools=config.ranked(turn_.pools)), LIMITS, AutoscalerState())

    assert expected == sorted(step.pool for step in plan.steps)
