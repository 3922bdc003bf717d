# SPDX-License-Identifier: Apache-2.0
"""Mode mps through the scheduler's cache: binds, replicas that decide at once, and what is written on the pod."""

from __future__ import annotations

import random
from dataclasses import replace

from support.builders import ask, node
from support.scheduler_cache_builders import build_cache

from isolation.contract.codec import decode_allocation, encode_allocation
from isolation.contract.model import Mode, Phase, Pod, Refusal, Rules, Trust, Why
from isolation.contract.names import ACK
from isolation.scheduler.core.cache import AssumedPlacement

MPS = Rules(mps=True)


def mps(cards=2):
    return replace(node("n", cards, 16, mode=Mode.MPS), labels={ACK.mode_label: "mps"})


def pod(name, group="ml", uid=1000, size=2):
    request = replace(ask(size), rules=MPS, group=group, uid=uid)
    return Pod(name, name, namespace=group, request=request)


def card(found):
    assert isinstance(found, AssumedPlacement), found
    return found.placement.slices[0].index


def test_binds_of_one_group_share_a_card_and_another_gets_another_or_waits():
    made = build_cache(mps())
    first, same, other = (card(made.assume(one, "n", 0.0)) for one in (pod("a"), pod("b"), pod("c", "web")))
    assert first == same != other
    refused = made.assume(pod("d", "ops"), "n", 0.0)
    assert isinstance(refused, Refusal)
    assert refused.why is Why.TRUST
    made.forget("c")
    assert other == card(made.assume(pod("d", "ops"), "n", 0.0))


def test_the_record_says_beside_whom_the_pod_may_be():
    one = pod("a")
    found = build_cache(mps()).assume(one, "n", 0.0)
    assert isinstance(found, AssumedPlacement)
    record = decode_allocation(encode_allocation(one.uid, one.request, found.placement))
    assert record.trust == Trust("ml", 1000)


def test_a_pod_that_was_bound_while_nobody_looked_keeps_strangers_off_its_card():
    made = build_cache(mps(1))
    found = build_cache(mps(1)).assume(pod("a"), "n", 0.0)
    assert isinstance(found, AssumedPlacement)
    made.set_pod(replace(pod("a"), placement=found.placement, phase=Phase.RUNNING))
    assert isinstance(made.assume(pod("b", "web"), "n", 0.0), Refusal)
    assert card(made.assume(pod("c"), "n", 0.0)) == 0
    made.remove_pod("a")
    assert isinstance(made.assume(pod("b", "web"), "n", 0.0), Refusal), "c is still there"


def test_interleaved_binds_echoes_and_ends_leave_no_card_with_two_groups_or_users():
    dice = random.Random(5)  # noqa: S311 (a test)
    made = build_cache(mps(4))
    there: dict[str, tuple[Pod, int]] = {}
    for step in range(2_000):
        if dice.random() < 0.6:
            one = pod(f"p{step}", f"g{dice.randrange(4)}", dice.randrange(2), dice.choice((1, 4, 8)))
            found = made.assume(one, "n", float(step))
            if isinstance(found, AssumedPlacement):
                there[one.uid] = (one, card(found))
                if dice.random() < 0.5:
                    made.set_pod(replace(one, placement=found.placement, phase=Phase.RUNNING))
        elif there:
            gone = dice.choice(sorted(there))
            made.remove_pod(gone)
            del there[gone]
        by_card: dict[int, set[object]] = {}
        for one, at in there.values():
            by_card.setdefault(at, set()).add(one.request.trust)
        assert all(len(trusts) == 1 for trusts in by_card.values()), step
