# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster moves pods: nobody forgotten, nobody homeless, no card over its room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask
from support.embedded_fleet import QUICK, a_few, check_frame, check_homes, check_room, check_served, counts, live
from support.pools_builder import arrival, fleet, pool

from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import CancelDrain, Drain
from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.fake_cluster import SCHEDULE_SECONDS
from isolation.contract.model import CardChoice, Mode, Request
from isolation.contract.quantity import gib

PLENTY = replace(QUICK, min_moves_per_hour=600, min_pod_age_seconds=20.0, move_cooldown_seconds=60.0)


def test_drained_pod_moves_to_its_reserved_home_and_keeps_its_work():
    """
    The successor has a new identity, runs within a scheduling step and ends when the first would have.
    """
    pods = [
        arrival(0, "stays", ask(10), lifetime=2000),
        arrival(0, "ends", ask(12), lifetime=150),
        arrival(0, "moves", ask(3), lifetime=1000, namespace="team"),
    ]
    embedded = EmbeddedCluster(fleet(pool(cards=1, size=15), standing=2), pods, seed=1, limits=PLENTY)
    embedded.advance(10)
    before = {p.name: (p.uid, p.placement.node) for p in embedded.cluster.state.pods.values()}

    live(embedded, 500, check_room, check_frame, check_homes)

    after = {p.name: (p.uid, p.placement.node) for p in embedded.cluster.state.pods.values()}
    assert before["moves"][1] == before["ends"][1] != before["stays"][1]
    assert (before["stays"], before["stays"][1]) == (after["stays"], after["moves"][1])
    assert before["moves"][0] != after["moves"][0]
    assert {"pods_moved": 1, "nodes_removed": 1}.items() <= counts(embedded).items()
    embedded.advance(1000 - embedded.now + SCHEDULE_SECONDS + 1)
    assert {"stays"} == {p.name for p in embedded.cluster.state.pods.values()}


def test_pod_whose_end_falls_into_its_move_finishes_once():
    """
    The old pod is being ended, the successor has the last second of the work.
    """
    ends = 12.0
    pods = [arrival(0, "stays", ask(10)), arrival(0, "ends", ask(12), ends), arrival(0, "moves", ask(3), 400)]
    embedded = EmbeddedCluster(fleet(pool(size=15), standing=2), pods, seed=1, limits=PLENTY)
    while not counts(embedded)["pods_moved"]:
        embedded.advance(1)
    moved = next(h.at for h in embedded.frame().events if h.kind == "move")
    again = [*pods[:2], replace(pods[2], lifetime=moved)]
    late = EmbeddedCluster(fleet(pool(size=15), standing=2), again, seed=1, limits=PLENTY)

    late.advance(moved + 60)

    assert {"pods_moved": 1, "pods_finished": 2}.items() <= counts(late).items()


def test_bare_pod_is_never_moved():
    """
    Nobody would make it again: its node stays however empty it is.
    """
    bare = replace(arrival(0, "bare", ask(1)), request=replace(ask(1), owner=""))
    pods = [arrival(0, "big", ask(12)), bare]
    embedded = EmbeddedCluster(fleet(pool(size=12), standing=2), pods, seed=1, limits=PLENTY)

    embedded.advance(600)

    assert (2, 0) == (len(embedded.cluster.state.on), counts(embedded)["pods_moved"])


requests = st.one_of(
    st.builds(ask, st.integers(1, 15), st.sampled_from([1, 1, 2])),
    st.builds(lambda size, core: ask(size, core=core), st.integers(1, 12), st.sampled_from([5, 20, 50, 100])),
    st.builds(lambda cards: ask(cards=cards, whole=True), st.integers(1, 2)),
    st.just(Request(cpu_milli=2000, memory_bytes=gib(2))),
)
churn = st.lists(st.tuples(st.floats(0, 200), requests, st.floats(20, 400)), min_size=1, max_size=50)


@a_few
@given(churn, st.integers(0, 99), st.sampled_from(list(CardChoice)))
def test_churn_never_leaves_a_pod_homeless_a_card_over_or_a_pod_forgotten(life, seed, choice):
    """
    Random fleets, pods and ends: every invariant at every step, and everything is given back at last.
    """
    room = {"cpu_milli": 16_000, "memory_bytes": gib(64), "pods": 20, "choice": choice}
    pools = [
        pool("mem", 2, 15, mode=Mode.CGPU, **room),
        pool("core", 2, 12, mode=Mode.CORE_MEM, price=2, **room),
        pool("whole", 2, 40, mode=Mode.EXCLUSIVE, price=4, **room),
    ]
    pods = [arrival(at, f"p{i}", request, lifetime) for i, (at, request, lifetime) in enumerate(sorted(life, key=str))]
    pods.sort(key=lambda each: each.at)
    embedded = EmbeddedCluster(fleet(*pools, standing=1), pods, seed=seed, limits=PLENTY)

    live(embedded, 500, check_room, check_homes, check_served)
    live(embedded, 900, check_room, check_frame, check_homes, step=10)

    summary = embedded.summary()
    hopeless = sum(1 for each in pods if each.request.card_core and each.request.card_bytes > gib(12))
    assert (0, 0) == (summary["pending_fragmented_pods"], summary["unserved_pods"])
    assert (len(pods) - hopeless, hopeless) == (summary["pods_finished"], summary["pods_waiting"])
    assert len(embedded.cluster.state.on) == 0
    assert not embedded.cluster.state.reserved


def test_reservation_of_a_drain_called_off_does_not_cut_the_next_one_short():
    """
    Each drain's homes lapse in their own time, although the pod is the same.
    """
    moves = arrival(0, "moves", ask(3))
    pods = [arrival(0, "stays", ask(10)), arrival(0, "ends", ask(12), lifetime=20), moves]
    embedded = EmbeddedCluster(
        fleet(pool(size=15), standing=2), pods, seed=1, limits=replace(PLENTY, max_moves_per_hour=1)
    )
    embedded.advance(30)
    world = embedded.cluster
    (pod,) = [each for each in world.state.pods.values() if each.name == "moves"]
    target = next(name for name in world.state.on if name != pod.placement.node)
    placed = replace(pod.placement, node=target, slices=(replace(pod.placement.slices[0], **card_of(world, target)),))

    def drain(until: float) -> None:
        drive(
            world.apply(
                Drain(pod.placement.node, (SuccessorReservation(pod.uid, pod.request, placed, 0, until),), "test")
            )
        )

    drain(embedded.now + 5)
    drive(world.apply(CancelDrain(pod.placement.node, "test")))
    drain(embedded.now + 60)
    world.clock.run_until(embedded.now + 6)

    assert [pod.uid] == list(world.state.reserved)


def card_of(world, name: str) -> dict:
    card = world.state.engine.nodes[name].cards[0]
    return {"uuid": card.uuid, "index": card.index}


def drive(step) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        step.send(None)
