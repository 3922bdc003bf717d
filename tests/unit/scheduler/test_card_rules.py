# SPDX-License-Identifier: Apache-2.0
"""Rules about single cards (HAMi's lists of types and UUIDs) hold in the scheduler, and cannot fill its memory."""

from __future__ import annotations

import pytest

from isolation.contract.model import Card, CardRules, Mode, Node, Placement, Request, Rules
from isolation.contract.quantity import GIB
from isolation.scheduler.core.capacity import RULES_KEPT, Capacity

NODE = Node(
    "n1",
    (
        Card("GPU-a", 0, 16 * GIB, model="Tesla T4"),
        Card("GPU-b", 1, 16 * GIB, model="A10"),
        Card("GPU-c", 2, 16 * GIB, model="Tesla T4"),
    ),
    Mode.CGPU,
    ready=True,
)


def capacity():
    made = Capacity("potential", GIB)
    made.set_node(NODE)
    return made


def asks(cards=1, **rules):
    return Request(cards, 2 * GIB, rules=Rules(cards=CardRules(**{key: frozenset(v) for key, v in rules.items()})))


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        (asks(), {"GPU-a", "GPU-b", "GPU-c"}),
        (asks(uuids=["GPU-b"]), {"GPU-b"}),
        (asks(not_uuids=["GPU-a", "GPU-b"]), {"GPU-c"}),
        (asks(models=["A10"]), {"GPU-b"}),
        (asks(2, not_models=["A10"]), {"GPU-a", "GPU-c"}),
        (asks(uuids=["GPU-elsewhere"]), set()),
        (asks(2, models=["A10"]), set()),
    ],
)
def test_a_pod_gets_cards_that_its_rules_allow(request_, allowed):
    """Also when others have taken what comes first."""
    of, held = capacity(), set()
    for number in range(8):
        found = of.place_on(request_, "ml", "n1")
        assert isinstance(found, Placement) == bool(allowed)
        if not allowed:
            assert None not in of.why_not(request_, ["n1"])
            return
        held |= {part.uuid for part in found.slices}
        of.hold(f"pod-{number}", "ml", request_, found)
    assert held <= allowed


def test_rules_that_nobody_uses_any_more_are_forgotten():
    """A tenant may write others in every pod; what was learnt of requests stays."""
    of = capacity()
    for number in range(3 * RULES_KEPT):
        ask = asks(not_uuids=[f"GPU-{number}"])
        of.engine.arrive(of.strip_request(ask))
        found = of.place_on(ask, "ml", "n1")
        assert isinstance(found, Placement)
        if number < 3:
            of.hold(f"pod-{number}", "ml", ask, found)

    assert of.engine.eligibility_groups <= RULES_KEPT + 1
    assert 3 * RULES_KEPT == of.engine.learner.arrived == sum(of.engine.learner.counts.values())
    assert {part.uuid for part in of.place_on(asks(uuids=["GPU-b"]), "ml", "n1").slices} == {"GPU-b"}
    for number in range(3):
        of.free(f"pod-{number}")
    assert all(free == (16 * GIB, 100) for free in of.engine.room("n1"))
