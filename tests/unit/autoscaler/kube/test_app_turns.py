# SPDX-License-Identifier: Apache-2.0
"""One reconcile cycle: what may not be done is not done, and nobody is backed off for what nobody refused."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.builders import ask
from support.pools_builder import on_card, pod, pool, seen
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import Evict, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.core.config import Config, PoolConfig
from autoscaler.kube.core.inhibition import Cause, Inhibition
from autoscaler.kube.cycle import Cycle
from autoscaler.kube.reconciler import CONFIRMED_SECONDS, Reconciler
from autoscaler.kube.telemetry.metrics import Telemetry
from autoscaler.providers.registry import PoolSource
from isolation.contract.codec.cursor import At
from isolation.contract.model import Refusal, Why
from isolation.kube.core.errors import UnreachableError

LIMITS = ScalingLimits(action_validation_delay_seconds=0.0)
POOL = pool("gpu-a", 2)


class World:
    """Two pods wait for whole nodes; each step is answered as it is reported, then done."""

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


def new_cycle(world, inhibition=lambda: None):
    """Around a world, as the reconciler makes it."""
    return Cycle(world, Telemetry(), inhibition=inhibition, clock=lambda: 0.0)


def reconciled(world, inhibition=lambda: None):
    """One cycle that has ended, and the memory."""
    cycle, before = new_cycle(world, inhibition), AutoscalerState()

    _, memory = asyncio.run(reconcile(cycle, LIMITS, before, cycle.decide))
    return cycle, cycle.finish(memory, before)


def test_with_nothing_in_the_way_all_of_it_is_done():
    """
    Two nodes for two pods, remembered as bought.
    """
    world = World()
    cycle, memory = reconciled(world)

    assert [ScaleUp, ScaleUp] == [type(step) for step in world.applied]
    assert (2, 1000.0, 1) == (len(cycle.done), memory.last_add, len(world.expected))


def test_orders_stand_from_the_look_on_and_not_from_the_end_of_the_cycle():
    """
    A process that stood still for seven seconds in between confirms nothing: the pods may be gone.
    """
    cycle, _ = reconciled(World())
    confirmed = []
    for age in (0.0, 2.0, 7.0):
        standing = SimpleNamespace(
            last=cycle,
            cluster=SimpleNamespace(now=lambda age=age: 1000.0 + age),
            backends=SimpleNamespace(config=SimpleNamespace(limits=LIMITS)),
            _given=SimpleNamespace(relay=SimpleNamespace(confirm=confirmed.append)),
        )
        Reconciler._confirm_orders(standing, "done")

    valid = max(CONFIRMED_SECONDS, 3 * LIMITS.scan_interval_seconds)
    assert [valid, valid - 2, valid - 7] == confirmed


def test_the_event_loop_goes_on_while_it_is_decided(monkeypatch):
    """
    The decision waits for something that only the loop can give: on the loop itself it would never end.
    """
    given = threading.Event()

    def decide_later(*arguments):
        assert given.wait(PATIENCE_SECONDS), "the event loop stood still"
        return decide(*arguments)

    monkeypatch.setattr("autoscaler.kube.cycle.decide", decide_later)
    cycle = new_cycle(World())

    async def story():
        asyncio.get_running_loop().call_later(0.05, given.set)
        return await cycle.decide(await cycle.observe(), LIMITS, AutoscalerState())

    plan, _ = asyncio.run(story())
    assert [ScaleUp, ScaleUp] == [type(step) for step in plan.steps]


@pytest.mark.parametrize("why", [Cause.DRY_RUN, Cause.SWITCH, Cause.STANDBY, Cause.STATE, Cause.STOPPING])
def test_while_inhibited_it_is_decided_and_not_done(why):
    """
    The plan can be looked at, nothing is written, nothing is remembered as done.
    """
    world = World()
    cycle, memory = reconciled(world, lambda: Inhibition(why, "x"))

    assert ([], [], []) == (world.applied, world.expected, cycle.done)
    assert [ScaleUp, ScaleUp] == [type(step) for step in cycle.plan.steps]
    assert float("-inf") == memory.last_add


def test_a_right_that_ends_between_two_steps_stops_the_second():
    """
    The Lease is asked about before each.
    """
    world = World()
    cycle, _ = reconciled(world, lambda: Inhibition(Cause.STANDBY, "lost") if world.applied else None)

    assert (1, 1, 1) == (len(world.applied), len(cycle.done), len(cycle.inhibited))


class Wholesale(World):
    """One that does purchases of a pool as one, and has room for the first only."""

    async def buy(self, steps):
        """As told."""
        self.applied.append(tuple(steps))
        if self.answers:
            raise self.answers.pop(0)
        return [None, *[Refusal(Why.NOT_READY, "no more of them")] * (len(steps) - 1)]


@pytest.mark.parametrize(
    ("answers", "hold", "calls", "became"),
    [
        pytest.param((), None, 1, (1, 1, 0, 0), id="the second is refused"),
        pytest.param((UnreachableError("no route"),), None, 1, (0, 0, 2, 0), id="nobody knows of either"),
        pytest.param((), Inhibition(Cause.STANDBY, "lost"), 0, (0, 0, 0, 0), id="nothing may be done"),
    ],
)
def test_purchases_done_as_one_are_reported_one_by_one(answers, hold, calls, became):
    """
    Done, refused, broken off: each step counts as what became of it.
    """
    world = Wholesale(*answers)
    cycle, _ = reconciled(world, lambda: hold)

    counts = tuple(len(some) for some in (cycle.done, cycle.refused, cycle.failed, cycle.inhibited))
    assert calls == len(world.applied)
    assert became == counts


def test_a_step_that_breaks_off_ends_the_turn():
    """
    What follows was planned on a cluster that could be reported.
    """
    world = World(UnreachableError("no route"))
    cycle, memory = reconciled(world)

    assert (1, 1, 1) == (len(world.applied), len(cycle.failed), len(cycle.inhibited))
    assert float("-inf") == memory.last_add


def test_a_refused_step_does_not_stop_the_others():
    """
    A pool that somebody else changed is looked at again in the next turn; the second purchase goes on.
    """
    world = World(Refusal(Why.NOT_READY, "somebody was faster"))
    cycle, _ = reconciled(world)

    assert (2, 1, 1) == (len(world.applied), len(cycle.refused), len(cycle.done))


def test_only_a_refused_eviction_makes_its_owner_rest():
    """
    One that was withheld does not; one that broke off may have happened, and counts against the hour.
    """
    steps = {name: Evict(name, "n", f"ReplicaSet/{name}", "x") for name in ("refused", "inhibited", "failed")}
    cycle = new_cycle(World())
    cycle.observation = seen([POOL], [], [], at=1000.0)
    cycle.refused.append((steps["refused"], "budget"))
    cycle.inhibited.append((steps["inhibited"], "lost"))
    cycle.failed.append((steps["failed"], "no route"))
    rest = Backoff(1300.0, 300.0)

    memory = cycle.finish(AutoscalerState(refused={step.owner: rest for step in steps.values()}), AutoscalerState())

    assert {"ReplicaSet/refused": rest} == memory.refused
    assert ((1000.0,), {"ReplicaSet/failed": 1000.0}) == (memory.moves, memory.moved)


@pytest.mark.parametrize(
    ("priorities", "max_nodes", "expected"),
    [((0, 0), 9, ["cheap", "cheap"]), ((0, 5), 9, ["costly", "costly"]), ((0, 5), 1, ["cheap", "costly"])],
    ids=["price-alone", "priority-first", "the-next-one-when-full"],
)
def test_a_pool_of_a_higher_priority_is_asked_first(priorities, max_nodes, expected):
    """
    Whatever it costs; when it may not grow any more, the other one takes over.
    """
    sources = [PoolSource(name, "scale", At({})) for name in ("cheap", "costly")]
    config = Config(tuple(PoolConfig(s.pool, s, priority=p) for s, p in zip(sources, priorities, strict=True)))
    pools = [pool("cheap", price=1.0), pool("costly", price=9.0, max_nodes=max_nodes)]
    turn_ = seen(pools, [pod(ask(12)), pod(ask(12))])

    plan, _ = decide(replace(turn_, pools=config.ranked(turn_.pools)), LIMITS, AutoscalerState())

    assert expected == sorted(step.pool for step in plan.steps)
