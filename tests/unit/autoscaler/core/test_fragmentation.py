# SPDX-License-Identifier: Apache-2.0
"""fragmented pod pods: what node sums promise and no card can keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.builders import ask, node
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.observation import SuccessorReservation
from isolation.contract.model import Refusal, Request

FULL = node("p-1", 4, 15, pool="p")
"""Its four cards have 1 GiB free each once `RUNNING` runs."""
RUNNING = [pod(ask(14), on=on_card(FULL, index, 14)) for index in range(4)]


def test_room_in_sum_only_makes_a_fragmented_pod():
    """
    Four cards with 1 GiB free each are 4 GiB in sum and no room for a pod of 2.
    """
    waiting = pod(ask(2))

    assert (waiting,) == find_fragmented(seen([pool("p", 4)], [*RUNNING, waiting], [FULL]), [waiting])


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(ask(1), id="a card has the room"),
        pytest.param(ask(5), id="not even the sum has it"),
        pytest.param(ask(20), id="no card is so large"),
        pytest.param(ask(2, core=10), id="the mode does not serve it"),
        pytest.param(ask(cards=1, whole=True), id="whole cards"),
        pytest.param(Request(cpu_milli=1), id="no cards at all"),
        pytest.param(replace(ask(2), cpu_milli=10**9), id="sums over nodes see that CPU is short"),
    ],
)
def test_other_pods_are_not_fragmented(request_):
    """
    Only the sum over cards misleads.
    """
    waiting = pod(request_)

    assert () == find_fragmented(seen([pool("p", 4)], [*RUNNING, waiting], [FULL]), [waiting])


def test_room_by_card_on_any_node_makes_no_fragmented_pod():
    """
    The scheduler has only to get there.
    """
    waiting, other = pod(ask(2)), node("p-2", 4, 15, pool="p")

    assert () == find_fragmented(seen([pool("p", 4)], [*RUNNING, waiting], [FULL, other]), [waiting])


def test_nodes_that_take_no_pods_and_homes_that_are_kept_count_as_taken():
    """
    A draining node has no room, and room reserved for a pod that moves is nobody else's.
    """
    waiting, moving, other = pod(ask(2)), pod(ask(14)), node("p-2", 1, 15, pool="p")
    reading = seen([pool("p", 4)], [*RUNNING, waiting], [FULL, other])
    drained = replace(reading, machines=reading.machines | {"p-2": PoolMachine("p-2", "p", MachineState.DRAINING)})
    home = SuccessorReservation(moving.uid, moving.request, on_card(other, 0, 14))
    reading.engine.hold(home.hold, home.request, home.placement)
    kept = replace(reading, reserved={moving.uid: home})

    assert (waiting,) == find_fragmented(drained, [waiting])
    assert (waiting,) == find_fragmented(kept, [waiting])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 15)), max_size=8),
    st.tuples(st.integers(1, 8), st.sampled_from([1, 1, 2, 4])),
)
def test_engine_agrees_about_every_card(held, wanted):
    """
    No pod that the engine would place is fragmented; one that it refuses is, exactly if the sums have the room.
    """
    free, running = [15] * 4, []
    for index, size in held:
        if free[index] >= size:
            free[index] -= size
            running.append(pod(ask(size), on=on_card(FULL, index, size)))
    waiting = pod(ask(*wanted))
    reading = seen([pool("p", 4)], [*running, waiting], [FULL])

    refused = isinstance(reading.engine.place(waiting.request), Refusal)

    misled = refused and sum(free) >= wanted[0] * wanted[1]
    assert misled == bool(find_fragmented(reading, [waiting]))
