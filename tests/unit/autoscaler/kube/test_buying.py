# SPDX-License-Identifier: Apache-2.0
"""Purchases: a provider that refuses, is silent or sells less, and what is known of it afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.autoscaler_harness import LIMITS, Api, Machines, Stand, a_node, a_pod, run, two

from autoscaler.core.plan import ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.providers.base import (
    ChangedError,
    DeniedError,
    OutOfStockError,
    ProviderUnreachableError,
)


def test_a_pool_that_will_not_sell_rests_and_is_asked_again_later():
    """
    The provider says no at once: the next turn gives the pool up for a while; then it is tried again.
    """
    api = Api([], [a_pod("p1")])
    machines = Machines(trouble=OutOfStockError("none left"))

    async def story(stand):
        memory, bought = AutoscalerState(), []
        for seconds in (0, 10, 20, 30, 400):
            stand.seconds = float(seconds)
            plan, memory = await reconcile(stand.world, LIMITS, memory)
            bought.append(sum(isinstance(step, ScaleUp) for step in plan.steps))
        return bought, set(memory.backoffs)

    assert ([1, 0, 0, 0, 1], {"a"}) == run(api, machines, story, stale_seconds=1e9)


@pytest.mark.parametrize(
    "trouble", [ChangedError("somebody else"), ProviderUnreachableError("no answer")], ids=["changed", "lost"]
)
def test_a_purchase_of_unknown_outcome_is_looked_at_again(trouble):
    """
    The pool does not rest: the next reading tells what became of it.
    """

    async def story(stand):
        _, memory = await reconcile(stand.world, LIMITS, AutoscalerState())
        return memory.backoffs, [condition.kind for condition in stand.world.conditions()]

    closed, kinds = run(Api([], [a_pod("p1")]), Machines(trouble=trouble), story)
    assert {} == closed
    assert [ConditionKind.PROVIDER] == kinds


def test_a_machine_that_was_bought_is_expected_by_who_it_is_for_also_after_a_restart():
    """
    With the state lost, what the provider was asked for is still coming: nothing is bought twice.
    """
    machines = Machines()

    async def story(stand):
        plan, memory = await reconcile(stand.world, LIMITS, AutoscalerState())
        fresh = Stand(stand.api, machines)
        async with fresh:
            again, _ = await reconcile(fresh.world, LIMITS, AutoscalerState())
        once_more, _ = await reconcile(stand.world, LIMITS, memory)
        return len(plan.steps), again.steps, once_more.steps, set(once_more.nominations)

    assert (1, (), (), {"p1"}) == run(Api([], [a_pod("p1")]), machines, story)
    assert 1 == machines.target


def test_a_pod_for_which_nodes_come_in_vain_is_not_bought_for_without_end():
    """
    The profile promises a label that real nodes have not: after two nodes nothing more is bought, and it says why.
    """
    api, machines = Api([], [a_pod("p1", selector={"disk": "fast"})]), Machines()

    async def story(stand):
        memory = AutoscalerState()
        for number in range(1, 7):
            for seconds in (1, 100):
                stand.seconds += seconds
                _, memory = await reconcile(stand.world, replace(LIMITS, min_node_age_seconds=1e6), memory)
            if machines.target > len(machines.nodes):
                machines.nodes.append(f"n{number}")
                api.put("/api/v1/nodes", a_node(f"n{number}"), "ADDED")
                await api.delivered()
        return (
            machines.target,
            dict(stand.world.unanswered()),
            [condition.kind for condition in stand.world.conditions()],
        )

    target, unanswered, kinds = run(api, machines, story, stale_seconds=1e9)
    assert 2 == target
    assert {"p1"} == unanswered.keys()
    assert [ConditionKind.UNMODELLED] == kinds


class Counter(Machines):
    """Sells so many at once and so many at all, and counts what it is asked."""

    def __init__(self, *nodes, at_once=99, stock=99):
        super().__init__(*nodes)
        self.at_once, self.stock, self.asked = at_once, stock, []

    async def grow(self, pool, by, seen=None):
        """As a provider."""
        self.asked.append(by)
        if by > self.stock:
            raise OutOfStockError("none left")
        if by > self.at_once:
            raise DeniedError("not so many at once")
        self.stock -= by
        return await super().grow(pool, by, seen)


def bought_at_once(counter, count=5):
    """So many nodes in one turn: what each step became, and the machines that stand then."""

    async def story(stand):
        await stand.world.observe()
        refused = await stand.world.buy([ScaleUp("a", (), f"want {number}") for number in range(count)])
        return [why is None for why in refused], sorted(stand.world.state.machines), stand.world.conditions()

    return run(two(), counter, story)


@pytest.mark.parametrize(
    ("sells", "asked", "done"),
    [
        pytest.param({}, [5], 5, id="all in one call"),
        pytest.param({"at_once": 2}, [5, 2, 2, 1], 5, id="not so many at once"),
        pytest.param({"stock": 3}, [5, 2, 2, 1, 1], 3, id="has fewer"),
        pytest.param({"stock": 0}, [5, 2, 1], 0, id="has none"),
    ],
)
def test_a_turns_purchases_of_a_pool_are_as_few_calls_as_it_takes(sells, asked, done):
    """
    The first steps are served first; the others are refused, and the pool is known to be dry.
    """
    counter = Counter("n1", "n2", **sells)

    became, machines, conditions = bought_at_once(counter)

    assert asked == counter.asked
    assert [True] * done + [False] * (5 - done) == became
    assert ["n1", "n2", *[f"a/{number}" for number in range(done)]] == sorted(
        machines, key=lambda name: ("/" in name, name)
    )
    assert 2 + done == counter.target
    assert (done < 5) is bool(conditions)


def test_purchases_on_an_old_target_are_refused_as_one():
    """
    Somebody else has bought since the reading: nothing is bought, and every step says so.
    """
    counter = Counter("n1", "n2")

    async def story(stand):
        await stand.world.observe()
        counter.target += 1
        return await stand.world.buy([ScaleUp("a", (), "want")] * 3)

    refused = run(two(), counter, story)

    assert [3] == counter.asked
    assert 3 == len([why for why in refused if why is not None and "somebody else" in why.reason])
