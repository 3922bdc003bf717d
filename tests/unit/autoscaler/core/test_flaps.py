# SPDX-License-Identifier: Apache-2.0
"""What counts as undone too soon, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import ask
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.flapping import FlapDetector
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.plan import CancelDrain, Drain, Evict, Plan, RemoveNode, ScaleUp

HOUR = 3600.0
OURS = pool("gpu-a", 2)
OWNER = "ReplicaSet/default/web"


def reading(at, *names, state=MachineState.READY, pods=()):
    """A pool with these nodes, all in one state."""
    nodes = [OURS.node(name) for name in names]
    return seen([OURS], list(pods), nodes, machines=[PoolMachine(name, OURS.name, state) for name in names], at=at)


def add(flaps, at, step, within=HOUR, *, seen_then=None):
    """One turn with one step that is taken at once."""
    flaps.observe(seen_then or reading(at, step.node), Plan(at, (step,)), within)
    return flaps.record(step, at)


@pytest.mark.parametrize(
    ("within", "later", "expected"),
    [(HOUR, 3599.0, "gpu-a"), (HOUR, 3600.0, None), (360.0, 359.0, "gpu-a"), (360.0, 361.0, None)],
    ids=["within-the-hour", "after-it", "within-a-tenth", "after-a-tenth"],
)
def test_a_node_emptied_soon_after_it_became_usable_is_a_flap(within, later, expected):
    """
    In the tempo of the limits in force: what they allow is none.
    """
    flaps = FlapDetector()
    flaps.observe(reading(0.0), Plan(0.0), within)
    flaps.observe(reading(100.0, "n1"), Plan(100.0), within)

    assert expected == add(flaps, 100.0 + later, Drain("n1", (), "x"), within)


def test_a_node_that_stood_when_it_began_is_not_judged():
    """
    After a restart nobody knows when it came; one that came since is known.
    """
    flaps = FlapDetector()
    flaps.observe(reading(0.0, "old"), Plan(0.0), HOUR)
    flaps.observe(reading(10.0, "old", "new"), Plan(10.0), HOUR)
    both = reading(20.0, "old", "new")

    assert add(flaps, 20.0, Drain("old", (), "x"), seen_then=both) is None
    assert "gpu-a" == add(flaps, 30.0, Drain("new", (), "x"), seen_then=both)


def test_a_name_that_is_used_again_is_another_node():
    """
    The time of a node that has gone is forgotten.
    """
    flaps = FlapDetector()
    flaps.observe(reading(0.0), Plan(0.0), HOUR)
    flaps.observe(reading(10.0, "n1"), Plan(10.0), HOUR)
    flaps.observe(reading(4000.0), Plan(4000.0), HOUR)
    flaps.observe(reading(5000.0, "n1"), Plan(5000.0), HOUR)

    assert "gpu-a" == add(flaps, 6000.0, Drain("n1", (), "x"))


def test_a_drain_called_off_is_a_flap_once():
    """
    One begun by somebody else, or long ago, is none.
    """
    flaps = FlapDetector()

    assert add(flaps, 0.0, CancelDrain("n1", "x")) is None
    assert add(flaps, 10.0, Drain("n1", (), "x")) is None
    assert "gpu-a" == add(flaps, 900.0, CancelDrain("n1", "x"))
    assert add(flaps, 910.0, CancelDrain("n1", "x")) is None


@pytest.mark.parametrize(
    ("born", "later", "expected"),
    [(101.0, 3000.0, "gpu-a"), (5.0, 3000.0, None), (101.0, 3601.0, None)],
    ids=["its-successor", "its-sibling", "an-hour-on"],
)
def test_a_pod_moved_again_is_a_flap(born, later, expected):
    """
    Replicas of one owner that move one after the other are none.
    """
    where = OURS.node("n1")
    first = pod(replace(ask(2), owner=OWNER), on=on_card(where, 0, 2), created=0.0)
    second = pod(replace(ask(2), owner=OWNER), on=on_card(where, 1, 2), created=born)
    flaps = FlapDetector()

    def evict(each, at):
        then = reading(at, "n1", pods=(first, second))
        return add(flaps, at, Evict(each.uid, "n1", OWNER, "x"), seen_then=then)

    assert evict(first, 100.0) is None
    assert expected == evict(second, 100.0 + later)


def test_buying_after_giving_back_is_no_flap():
    """
    Other pods may come: what was given back could not know them.
    """
    flaps = FlapDetector()
    assert add(flaps, 0.0, RemoveNode("n1", "empty")) is None

    flaps.observe(reading(60.0), Plan(60.0), HOUR)
    assert flaps.record(ScaleUp("gpu-a", (), "x"), 60.0) is None
