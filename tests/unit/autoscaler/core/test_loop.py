# SPDX-License-Identifier: Apache-2.0
"""A turn: what is decided, what still holds when it is done, and what is remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.builders import ask, node
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.decide import decide
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import CancelDrain, Drain, Evict, Plan, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState

LIMITS = ScalingLimits(min_pod_age_seconds=0, min_replicas=1, make_room_max_moves_per_pod=0)
NOW = 10_000.0
PATIENT = AutoscalerState(unneeded={"light": 0.0})


class Script:
    """A world that shows one observation after the other and keeps what was done to it."""

    def __init__(self, *observations):
        self.shows = list(observations)
        self.done = []
        self.settled = 0.0

    async def observe(self):
        """The next one."""
        return self.shows.pop(0)

    async def settle(self, seconds):
        """Time passes at once."""
        self.settled += seconds

    async def nominate(self, homes):
        """Kept."""
        self.homes = homes

    async def apply(self, step):
        """Kept."""
        self.done.append(step)


def light_and_busy(*, pods_on_light=1, **rest):
    """A node to drain and one to receive."""
    busy, light = node("busy", 1, 15, pool="p"), node("light", 1, 15, pool="p")
    pods = [pod(ask(8, owner="R/b"), on=on_card(busy, 0, 8))]
    pods += [pod(ask(1, owner=f"R/{i}"), on=on_card(light, 0, 1)) for i in range(pods_on_light)]
    return busy, light, seen([pool()], pods, [busy, light], at=NOW, **rest), pods


def draining(*, reserved=True, pods_on_light=1, since=NOW):
    """The same, with the light node on its way out."""
    busy, light, _, pods = light_and_busy(pods_on_light=pods_on_light)
    going = replace(light, cordoned=True)
    machines = [PoolMachine("busy", "p", MachineState.READY), PoolMachine("light", "p", MachineState.DRAINING, since)]
    after = seen([pool()], pods, [busy, going], machines=machines, at=NOW)
    homes = {p.uid: SuccessorReservation(p.uid, p.request, on_card(busy, 0, 1)) for p in pods[1:]} if reserved else {}
    return replace(after, reserved=homes), pods[1:]


def test_waiting_pod_buys_a_node_with_a_reason():
    """
    The reason names the pod and what is missing, for an Event.
    """
    full = node("full", 1, 4)
    plan, memory = decide(seen([pool()], [pod(ask(5), "train")], [full]), LIMITS, AutoscalerState())

    (buy,) = plan.steps
    assert ("p", True, True) == (buy.pool, "default/train" in buy.reason, "5 GiB" in buy.reason)
    assert memory.demand is not None


def test_pool_below_its_smallest_size_is_filled():
    """
    Without a single pod.
    """
    plan, _ = decide(seen([pool(min_nodes=2)], []), LIMITS, AutoscalerState())

    assert [("p", ()), ("p", ())] == [(step.pool, step.pods) for step in plan.steps]


def test_nothing_is_drained_while_pods_wait_for_machines_or_after_a_purchase():
    """
    A node that is given back while one is bought would be a flap.
    """
    *_, calm, _ = light_and_busy()
    waiting = replace(calm, pending=(pod(ask(15)),))

    def kinds(observation, memory):
        return [type(step) for step in decide(observation, LIMITS, memory)[0].steps]

    assert [Drain] == kinds(calm, PATIENT)
    assert [ScaleUp] == kinds(waiting, PATIENT)
    assert [] == kinds(calm, replace(PATIENT, last_add=NOW - LIMITS.scale_down_delay_after_add_seconds + 1))


def test_drain_goes_on_eviction_by_eviction_and_ends_with_the_node():
    """
    A pod with a home is evicted, one whose owner is on the move waits; an empty node goes once its taint is old enough.
    """
    observation, (moving,) = draining()
    plan, memory = decide(observation, LIMITS, AutoscalerState())
    delay = LIMITS.node_delete_delay_after_taint_seconds
    soon, _ = decide(draining(pods_on_light=0, since=NOW - delay + 1)[0], LIMITS, AutoscalerState())
    last, _ = decide(draining(pods_on_light=0, since=NOW - delay)[0], LIMITS, AutoscalerState())

    assert [(Evict, moving.uid)] == [(type(step), step.pod) for step in plan.steps]
    assert ((), [RemoveNode]) == (soon.steps, [type(step) for step in last.steps])
    acted = memory.record(plan, LIMITS)
    assert ((NOW,), {"R/0": NOW}) == (acted.moves, dict(acted.moved))


def test_drain_is_called_off_when_a_home_is_lost_or_time_is_up():
    """
    The node takes pods again rather than leaving one homeless.
    """
    lost, _ = draining(reserved=False)
    late, _ = draining(since=NOW - LIMITS.drain_timeout_seconds)

    assert [CancelDrain, CancelDrain] == [
        type(decide(each, LIMITS, AutoscalerState())[0].steps[0]) for each in (lost, late)
    ]


def test_machine_that_does_not_come_is_given_up_and_its_pool_rests():
    """
    The pool is not asked again until its time has passed, and longer each time.
    """
    machines = [PoolMachine("p-1", "p", MachineState.BOOTING, 0.0)]
    stuck = seen([pool()], [pod(ask(5))], machines=machines, at=LIMITS.max_node_provision_seconds)

    plan, memory = decide(stuck, LIMITS, AutoscalerState())
    once = memory.record(plan, LIMITS)
    again = once.record(replace(plan, at=once.backoffs["p"].until + 1), LIMITS)

    assert [RemoveFailedNode] == [type(step) for step in plan.steps]
    assert (300, 600) == (once.backoffs["p"].seconds, again.backoffs["p"].seconds)
    assert {"p"} == once.pools_in_backoff(plan.at + 299)
    assert frozenset() == once.pools_in_backoff(plan.at + 300)


def test_recheck_drops_what_no_longer_holds():
    """
    The pod found room meanwhile, a pod came onto the node to drain, the home is taken.
    """
    waiting = pod(ask(5))
    buy = Plan(NOW, (ScaleUp("p", (waiting.uid,), "for it"),))
    busy, light, before, pods = light_and_busy()
    drain = decide(before, LIMITS, PATIENT)[0]
    newcomer = pod(ask(1), on=on_card(light, 0, 1))
    crowded = seen([pool()], [*pods, newcomer], [busy, light])
    taken = seen([pool()], [*pods, pod(ask(7), on=on_card(busy, 0, 7))], [busy, light])

    assert buy.steps == buy.still_valid(seen([pool()], [waiting])).steps
    assert () == buy.still_valid(seen([pool()], [])).steps
    assert () == buy.still_valid(seen([pool(max_nodes=0)], [waiting])).steps
    assert drain.steps == drain.still_valid(before).steps
    assert () == drain.still_valid(crowded).steps
    assert () == drain.still_valid(taken).steps


def test_recheck_of_steps_on_a_draining_node():
    """
    Evict, Delete and Keep hold on a draining node in the right condition, and on no other.
    """
    observation, (moving,) = draining()
    empty, _ = draining(pods_on_light=0)
    *_, ready, _ = light_and_busy()
    evict, delete, keep = Evict(moving.uid, "light", "R/0", ""), RemoveNode("light", ""), CancelDrain("light", "")

    def holds(step, fresh):
        return bool(Plan(NOW, (step,)).still_valid(fresh).steps)

    assert (True, False) == (holds(evict, observation), holds(evict, ready))
    assert (False, True, False) == (holds(delete, observation), holds(delete, empty), holds(delete, ready))
    assert (True, False) == (holds(keep, observation), holds(keep, ready))


def test_turn_settles_rechecks_and_acts():
    """
    What vanished while the cluster settled is not done; what stands is.
    """
    waiting = pod(ask(5))
    stands = Script(seen([pool()], [waiting]), seen([pool()], [waiting]))
    vanishes = Script(seen([pool()], [waiting]), seen([pool()], []))
    idle = Script(seen([pool()], []))

    plans = [asyncio.run(reconcile(world, LIMITS, AutoscalerState()))[0] for world in (stands, vanishes, idle)]

    assert [1, 0, 0] == [len(plan.steps) for plan in plans]
    assert [1, 0, 0] == [len(world.done) for world in (stands, vanishes, idle)]
    assert [LIMITS.action_validation_delay_seconds, LIMITS.action_validation_delay_seconds, 0] == [
        w.settled for w in (stands, vanishes, idle)
    ]


@pytest.mark.parametrize("gone", [True, False])
def test_owner_with_a_pod_on_the_move_waits(gone):
    """
    Between eviction and the successor's start, no other replica is touched.
    """
    observation, (first, second) = draining(pods_on_light=2)
    same = {uid: replace(home, request=first.request) for uid, home in observation.reserved.items()}
    replica = replace(second, request=first.request)
    away = {} if gone else {first.uid: replace(first, deleting=True)}
    on_light = away | {second.uid: replica}
    moving = replace(
        observation, reserved=same, pods=dict(on_light), on={"light": on_light, "busy": observation.on["busy"]}
    )

    plan, _ = decide(moving, LIMITS, AutoscalerState())

    assert () == plan.steps
