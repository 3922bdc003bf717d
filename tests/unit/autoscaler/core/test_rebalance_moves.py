# SPDX-License-Identifier: Apache-2.0
"""Moves that make room for a pod: when one is made, who is never moved, and when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import ask
from support.moves_harness import FULL, LIMITS, NOW, steps_of, two_nodes, waiting_for_six
from support.pools_builder import pod, pool, seen

from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import Evict, Move, Plan, ScaleUp
from autoscaler.core.state import AutoscalerState, Backoff
from isolation.contract.model import Placement


def test_one_move_makes_room_for_a_pod_that_no_pool_may_grow_for():
    """
    The home is reserved elsewhere, and the reason names who is served.
    """
    observation, mover = waiting_for_six()

    (move,) = steps_of(observation)

    assert (mover.uid, "left", "right", "make_room") == (
        move.pod,
        move.node,
        move.reservation.placement.node,
        move.kind,
    )
    assert "waits" in move.reason
    assert (move,) == Plan(NOW, (move,)).still_valid(observation).steps


def test_a_node_is_not_bought_where_a_move_will_do_and_is_where_none_may():
    """
    The same pods, with a pool that may grow.
    """
    observation, _ = waiting_for_six()
    growing = replace(observation, pools={"p": pool()})

    assert [Move] == [type(step) for step in steps_of(growing)]
    assert [ScaleUp] == [type(step) for step in steps_of(growing, replace(LIMITS, make_room_max_moves_per_pod=0))]


def protected(case):
    """An observation, limits and a memory under which the mover must stay."""
    observation, mover = waiting_for_six()
    limits, memory = LIMITS, AutoscalerState()
    match case:
        case "bare or opted out":
            observation, _ = waiting_for_six(evictable=False)
        case "young":
            observation, _ = waiting_for_six(created=NOW - 599)
        case "single replica":
            limits = replace(LIMITS, min_replicas=2)
        case "disruption budget":
            observation = replace(observation, guarded={mover.uid: "a budget allows none"})
        case "eviction refused lately":
            memory = AutoscalerState(refused={"R/mover": Backoff(NOW + 1, 300)})
        case "moved lately":
            observation, _ = waiting_for_six(created=NOW - 2000)
            memory = AutoscalerState(moved={"R/mover": NOW - 2001})
        case "no moves left this hour":
            memory = AutoscalerState(moves=(NOW - 10,) * LIMITS.min_moves_per_hour)
        case "not worth it":
            limits = replace(LIMITS, disruption_cost_ratio=1e-6)
        case "on its way already":
            home = SuccessorReservation("gone", mover.request, Placement("right"))
            observation = replace(observation, reserved={"gone": home})
    return observation, limits, memory


CASES = (
    "bare or opted out",
    "young",
    "single replica",
    "disruption budget",
    "eviction refused lately",
    "moved lately",
    "no moves left this hour",
    "not worth it",
    "on its way already",
)


@pytest.mark.parametrize("case", CASES)
def test_who_may_not_move_is_not_moved_for_anybody(case):
    """
    Each protection by itself is enough.
    """
    assert () == steps_of(*protected(case))


def test_nobody_moves_where_it_would_help_nobody():
    """
    The pod would still not fit; and a home that is none is not used.
    """
    nodes, mover, others = two_nodes()
    too_large = seen([FULL], [mover, *others, pod(ask(8), created=NOW)], list(nodes), at=NOW)
    nodes, mover, others = two_nodes(free=3)
    homeless = seen([FULL], [mover, *others, pod(ask(6), created=NOW)], list(nodes), at=NOW)

    assert ((), ()) == (steps_of(too_large), steps_of(homeless))


def test_while_the_mover_ends_nothing_is_bought_for_whom_it_makes_room():
    """
    The room it leaves is counted, and its successor has its own.
    """
    observation, mover = waiting_for_six()
    growing = replace(observation, pools={"p": pool()})
    (move,) = steps_of(growing)
    ending = replace(mover, deleting=True)
    on = {"left": {**growing.on["left"], mover.uid: ending}, "right": growing.on["right"]}
    engine = growing.engine.fork()
    engine.hold(move.reservation.hold, mover.request, move.reservation.placement)
    successor = pod(mover.request, "successor", created=NOW)
    after = replace(
        growing,
        pods={**growing.pods, mover.uid: ending, successor.uid: successor},
        on=on,
        engine=engine,
        pending=(*growing.pending, successor),
        reserved={mover.uid: move.reservation},
    )

    assert () == steps_of(after)


def test_a_move_cut_off_before_its_eviction_goes_on():
    """
    A home reserved for a pod that still runs on a node that stays: whoever made it ended too early.
    """
    observation, mover = waiting_for_six()
    (move,) = steps_of(observation)
    engine = observation.engine.fork()
    engine.hold(move.reservation.hold, mover.request, move.reservation.placement)
    after = replace(observation, reserved={mover.uid: move.reservation}, engine=engine)

    (evict,) = (step for step in steps_of(after) if isinstance(step, Evict))

    assert (mover.uid, "left") == (evict.pod, evict.node)
    assert (evict,) == Plan(NOW, (evict,)).still_valid(after).steps


def test_a_move_does_not_outlive_its_reason():
    """
    Neither when the pod has its place, nor when the home is taken, nor when its node is gone.
    """
    observation, mover = waiting_for_six()
    (move,) = plan = steps_of(observation)
    taken = observation.engine.fork()
    taken.hold("other", ask(4), move.reservation.placement)
    machines = {**observation.machines, "right": PoolMachine("right", "p", MachineState.DRAINING)}
    others = (
        replace(observation, pending=()),
        replace(observation, engine=taken),
        replace(observation, machines=machines),
        replace(observation, on={**observation.on, "left": {}}),
        replace(observation, reserved={mover.uid: move.reservation}),
    )

    assert [()] * 5 == [Plan(NOW, plan).still_valid(fresh).steps for fresh in others]
