# SPDX-License-Identifier: Apache-2.0
"""Who buys and who drains: what is cluster-autoscaler's by a pool's settings is not done here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.autoscaler_harness import Api, Machines, Stand, a_node, a_pod, drained, run, two
from support.builders import ask, node
from support.pools_builder import pod, pool, seen

from autoscaler.core.decide import decide
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import CancelDrain, RemoveFailedNode, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.cluster import KubeCluster
from autoscaler.kube.config.reader import read_config
from autoscaler.kube.core.config import ConfigError
from isolation.contract.cluster_autoscaler_annotations import Ours, Scaler

POOL = "pools: [{{name: a, provider: scale, settings: {{name: a}}, {}}}]"
LIMITS = ScalingLimits(action_validation_delay_seconds=0.0, min_node_age_seconds=0.0)
BOTH = Ours(buys=True, drains=True)


def test_each_pool_says_who_buys_and_who_drains():
    """
    Both are gpushare's unless the file says otherwise.
    """
    (usual,) = read_config(POOL.format("max_nodes: 1").encode()).pools
    (other,) = read_config(POOL.format("scale_up: cluster-autoscaler, scale_down: gpushare").encode()).pools
    assert BOTH == usual.ours
    assert Ours(drains=True) == other.ours


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("scale_up: ca", "f.yaml:1: pools[0].scale_up: "),
        ("scale_down: nobody", "f.yaml:1: pools[0].scale_down: "),
        ("scale_up: cluster-autoscaler, spare_nodes: 1", "gpushare buys no nodes here"),
    ],
)
def test_a_mistake_is_said_with_what_may_stand_there(said, answer):
    """
    Spare nodes are ours to buy.
    """
    with pytest.raises(ConfigError, match=re.escape(answer)) as raised:
        read_config(POOL.format(said).encode(), "f.yaml")
    assert "gpushare" in str(raised.value)


def bought(*pools, pods=()):
    """Pools of which one turn buys, and why others are not."""
    plan, memory = decide(seen(list(pools), list(pods), []), ScalingLimits(), AutoscalerState())
    return [step.pool for step in plan.steps if isinstance(step, ScaleUp)], memory.demand


def test_what_cluster_autoscaler_buys_is_not_bought():
    """
    Neither for a pod nor for the smallest size; another pool is asked, and the pod is told if there is none.
    """
    theirs, ours = replace(pool("theirs", min_nodes=1), buys=False), pool("ours", price=9)
    waits = pod(ask(4))

    assert ["ours"] == bought(theirs, ours, pods=[waits])[0]
    assert ["ours"] == bought(replace(theirs, buys=True, min_nodes=0, price=10), ours, pods=[waits])[0]
    none, bought_here = bought(theirs, pods=[waits])
    assert [] == none
    assert "theirs (cluster-autoscaler buys its nodes)" in bought_here.capped[waits.uid].reason


@pytest.mark.parametrize(
    ("has_node", "buys", "drains", "given_up"),
    [
        (False, True, False, True),
        (False, False, False, False),
        (False, False, True, True),
        (True, True, False, False),
        (True, False, True, True),
    ],
)
def test_a_failed_machine_is_given_up_by_who_ordered_or_drains_it(has_node, buys, drains, given_up):
    """
    Without a node it is an order.
    """
    here = replace(pool(), buys=buys, drains=drains)
    found = seen([here], [], [], machines=[PoolMachine("m", "p", MachineState.FAILED)])
    found = replace(found, with_node=frozenset({"m"} if has_node else ()))
    plan, _ = decide(found, ScalingLimits(), AutoscalerState())
    assert given_up == any(isinstance(step, RemoveFailedNode) for step in plan.steps)


def drains(stand, who):
    """The stand's pool, drained by somebody from now on."""
    pools = tuple(replace(one, scale_down=who) for one in stand.world._pools)
    stand.world = KubeCluster(stand.world._parts, pools, LIMITS, stand.world.state)


@pytest.mark.parametrize("ours", [True, False])
def test_what_cluster_autoscaler_drains_keeps_its_nodes_and_pods(ours):
    """
    A node that would go stays, and no pod is moved off it.
    """
    pods = [a_pod("p1", "n1"), a_pod("p2", "n2", units=1), a_pod("p3", "n2", units=5, app="other")]
    api = Api([a_node("n1"), a_node("n2")], pods)

    async def story(stand):
        drains(stand, Scaler.GPUSHARE if ours else Scaler.CLUSTER_AUTOSCALER)
        steps, memory = [], AutoscalerState()
        for stand.seconds in (0.0, 700.0, 1100.0):
            await stand.heard()
            plan, memory = await reconcile(stand.world, LIMITS, memory)
            steps += plan.steps
        return steps, dict((await stand.world.observe()).blocked)

    steps, blocked = run(api, Machines("n1", "n2"), story, stale_seconds=1e9)
    assert ours == bool(steps)
    why = "cluster-autoscaler drains pool a, and moves its pods"
    assert ours or {why} == set(blocked.values())


def test_a_drain_under_way_is_called_off_when_the_setting_changes():
    """
    The node takes pods again, and is cluster-autoscaler's.
    """

    async def story(stand: Stand):
        await stand.world.observe()
        await stand.world.apply(drained())
        drains(stand, Scaler.CLUSTER_AUTOSCALER)
        await stand.heard()
        plan, _ = await reconcile(stand.world, LIMITS, AutoscalerState())
        return plan.steps, (await stand.heard()).machines["n1"].state

    steps, state = run(two(), Machines("n1", "n2"), story)
    assert ["cluster-autoscaler drains pool a"] == [step.reason for step in steps if isinstance(step, CancelDrain)]
    assert MachineState.READY is state


def test_empty_nodes_of_both_kinds_of_pools():
    """
    The one of ours goes after its time, the other is left.
    """
    pools = [pool("p"), replace(pool("q"), drains=False)]
    found = seen(pools, [], [node("mine", pool="p"), node("yours", pool="q")], at=1e5)
    _, memory = decide(found, ScalingLimits(), AutoscalerState())
    assert ["mine"] == list(memory.unneeded)
