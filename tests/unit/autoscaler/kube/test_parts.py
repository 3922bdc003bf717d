# SPDX-License-Identifier: Apache-2.0
"""What the turn at scale stands on: a part of a fleet measured alone, a mixture learnt again, steps taken together."""

from __future__ import annotations

import asyncio

import pytest
from support.builders import ask, node

from autoscaler.core.plan import CancelDrain, RemoveNode, ScaleUp
from autoscaler.core.reconcile import apply_steps, group_steps
from isolation.contract.model import Refusal, Why
from isolation.placement.engine import Engine


def held(names):
    """Nodes with two cards and a pod on each."""
    engine = Engine([node(name, 2) for name in names])
    engine.relearn([ask(10), ask(5)])
    for name in names:
        engine.hold(f"on-{name}", ask(8), engine.place_on(ask(8), name))
    return engine


@pytest.mark.parametrize("names", [(), ("a",), ("b", "c"), ("a", "b", "c")], ids="+".join)
def test_fragments_of_some_nodes_are_those_of_a_fleet_of_them(names):
    """
    As if there were no others; the fleet itself stays as it is.
    """
    whole = held(("a", "b", "c"))
    before = whole.fragments()

    found = whole.fragments(names)

    assert held(names).fragments() == pytest.approx(found)
    assert before == whole.fragments()


def test_a_mixture_learnt_again_knows_nothing_else_and_no_order():
    """
    Whatever was learnt before is gone; the same requests in another order are the same mixture.
    """
    one, other = Engine([node("n", 2)]), Engine([node("n", 2)])
    one.teach([ask(3)] * 50)

    one.relearn([ask(10), ask(5), ask(5)])
    other.relearn([ask(5), ask(10), ask(5)])

    assert other.learner.counts == one.learner.counts
    assert 3 == one.learner.arrived
    assert other.place(ask(5)) == one.place(ask(5))


A1, A2, B1 = ScaleUp("a", (), "1"), ScaleUp("a", (), "2"), ScaleUp("b", (), "1")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([A1, B1, A2], [[A1, A2], [B1]], id="by pool"),
        pytest.param(
            [A1, CancelDrain("n", ""), A2], [[A1], [CancelDrain("n", "")], [A2]], id="never past another step"
        ),
        pytest.param(
            [RemoveNode("m", ""), RemoveNode("n", "")],
            [[RemoveNode("m", "")], [RemoveNode("n", "")]],
            id="others alone",
        ),
    ],
)
def test_purchases_that_follow_each_other_are_taken_together(steps, expected):
    """
    Of one pool, in their order; nothing else changes its place.
    """
    assert expected == group_steps(steps)


class Plain:
    """A world that knows single steps only."""

    def __init__(self):
        self.done = []

    async def apply(self, step):
        """Refuses the second."""
        self.done.append(step)
        return Refusal(Why.NOT_READY, "no") if step is A2 else None


class Wholesale(Plain):
    """One that can do purchases as one."""

    async def buy(self, steps):
        """All of them."""
        self.done.append(tuple(steps))
        return [None] * len(steps)


@pytest.mark.parametrize(
    ("world", "steps", "done", "refused"),
    [
        pytest.param(Plain, [A1, A2], [A1, A2], [False, True], id="one by one"),
        pytest.param(Wholesale, [A1, A2], [(A1, A2)], [False, False], id="as one"),
        pytest.param(Wholesale, [A2], [A2], [True], id="a single one"),
        pytest.param(Wholesale, [CancelDrain("n", "")], [CancelDrain("n", "")], [False], id="no purchase"),
    ],
)
def test_a_world_is_asked_for_what_it_can(world, steps, done, refused):
    """
    Each step has its own answer either way.
    """
    stand = world()

    found = asyncio.run(apply_steps(stand, steps))

    assert done == stand.done
    assert refused == [why is not None for why in found]
