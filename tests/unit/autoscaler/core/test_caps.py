# SPDX-License-Identifier: Apache-2.0
"""The limits of the whole fleet: what is not bought, what is not removed, and that it is said why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import ask, node
from support.pools_builder import pod, pool, seen

from autoscaler.core.decide import decide
from autoscaler.core.disruption_budget import count_removals_left
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import Drain, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.core.scale_up import FleetGrowth
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.state import ControllerState, decode, encode

NOW = 100_000.0
LIMITS = ScalingLimits(min_replicas=1)


def bought(limits, pools, standing=0, waiting=6):
    """Which pools grow for pods that fill a node each, and the plan."""
    nodes = [node(f"n{at}", 1, 15, pool=pools[0].name) for at in range(standing)]
    full = [pod(ask(15), f"w{at}", created=NOW) for at in range(waiting)]
    machines = [PoolMachine(one.name, one.pool, MachineState.DELETING, NOW) for one in nodes]
    plan, memory = decide(seen(pools, full, nodes, machines=machines, at=NOW), limits, AutoscalerState())
    return [step.pool for step in plan.steps if isinstance(step, ScaleUp)], plan, memory


def test_the_fleet_grows_to_max_nodes_total_and_no_further():
    """
    Over all pools, with machines on their way out, which are still paid for; whoever goes on waiting is told why.
    """
    pools, limits = [pool("a", max_nodes=2), pool("b", price=2)], replace(LIMITS, max_nodes_total=5)
    grown, plan, memory = bought(limits, pools, standing=1)
    assert ["a", "a", "b", "b"] == grown
    reasons = {why.reason for why in memory.demand.capped.values()}
    assert all("b (the fleet is at max_nodes_total, 5 nodes)" in why for why in reasons)
    assert ("no scale-up for 1 pending pods: the fleet is at max_nodes_total, 5 nodes",) == plan.capped
    assert 5 == len(bought(LIMITS, pools, standing=1)[0])


def test_the_fleet_costs_no_more_than_max_cost_per_hour():
    """
    What is too slow is left out, whatever its priority, and the cheaper pool goes on.
    """
    costly, cheap = replace(pool("costly", price=3.0), priority=5), pool("cheap", price=0.7)
    grown, plan, _ = bought(replace(LIMITS, max_cost_per_hour=7.4), [costly, cheap])
    assert ["costly", "costly", "cheap", "cheap"] == grown
    assert ("no scale-up for 2 pending pods: one more node would exceed max_cost_per_hour, 7.4",) == plan.capped


def test_ten_nodes_of_a_tenth_cost_one():
    """
    Prices are decimal fractions, sums of them are not.
    """
    tenths = pool("a", price=0.1)
    growth = FleetGrowth(replace(LIMITS, max_cost_per_hour=1.0), cost=1.0)
    for _ in range(10):
        assert "" == growth.refuses(tenths)
        growth.count(tenths)
    assert growth.refuses(tenths)


def test_a_pools_smallest_size_is_bought_within_the_fleets_limits():
    """
    Its operator wants both: the fleet's limit goes before the pool's wish.
    """
    grown, _, _ = bought(replace(LIMITS, max_nodes_total=3), [pool("a", min_nodes=5)], waiting=0)
    assert ["a"] * 3 == grown


def emptied(count, removals=(), limits=LIMITS, state=MachineState.DRAINING):
    """What is decided about so many machines that may go, and what is remembered of it."""
    machines = [PoolMachine(f"n{at}", "p", state, NOW - 10_000) for at in range(count)]
    nodes = [node(machine.name, 1, 15, pool="p") for machine in machines]
    memory = AutoscalerState(removals=removals, unneeded=dict.fromkeys((one.name for one in nodes), 0.0))
    plan, after = decide(seen([pool()], [], nodes, machines=machines, at=NOW), limits, memory)
    return plan, after.record(plan, limits)


@pytest.mark.parametrize(
    ("state", "kind"), [(MachineState.DRAINING, RemoveNode), (MachineState.FAILED, RemoveFailedNode)]
)
def test_no_more_machines_go_in_an_hour_than_the_limit_says(state, kind):
    """
    What went within the hour counts, what went before does not; failed machines are machines.
    """
    limits = replace(LIMITS, max_node_removals_per_hour=4)
    plan, memory = emptied(5, (NOW - 3601, NOW - 3599, NOW - 10), limits, state)
    assert [kind, kind] == [type(step) for step in plan.steps]
    assert ("3 empty or failed nodes are not removed yet: max_node_removals_per_hour is 4",) == plan.capped
    assert (NOW - 3599, NOW - 10, NOW, NOW) == memory.removals
    assert 5 == len(emptied(5, (NOW,) * 500, replace(LIMITS, max_node_removals_per_hour=0), state)[0].steps)


def test_no_node_is_drained_that_could_not_be_removed_this_hour():
    """
    Pods are not moved off a node that then stands empty.
    """
    limits = replace(LIMITS, max_node_removals_per_hour=4)
    plan, _ = emptied(6, (NOW - 10,), limits, MachineState.READY)
    assert [Drain] * 3 == [type(step) for step in plan.steps]


def test_removals_are_remembered_by_the_next_leader():
    """
    Also where an older program wrote what is remembered.
    """
    memory = AutoscalerState(removals=(NOW - 10.0, NOW))
    text = encode(ControllerState(memory, epoch=1))
    assert memory.removals == decode(text, NOW).memory.removals
    assert () == decode(text.replace("removals", "unknown"), NOW).memory.removals
    assert 2 == count_removals_left(memory.removals, replace(LIMITS, max_node_removals_per_hour=4), NOW)


def test_what_was_never_a_machine_is_no_removal():
    """
    An order taken back removes nothing, and a failed machine with a node counts when it goes, not when it is tainted.
    """
    steps = (
        RemoveFailedNode("p/0", "p", "x"),
        RemoveFailedNode("n1", "p", "x", has_node=True),
        RemoveFailedNode("id-7", "p", "x"),
    )
    plan = replace(emptied(0)[0], steps=steps)
    assert (NOW,) == AutoscalerState().record(plan, LIMITS).removals
