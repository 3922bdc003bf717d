# SPDX-License-Identifier: Apache-2.0
"""MIG instances as cards: who may use them, who is refused with which reason, and by every policy alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.bin_packing import Bin
from isolation.contract.model import (
    Card,
    CardRules,
    Compute,
    ComputePolicy,
    Instance,
    Mode,
    Node,
    Placement,
    Request,
    Rules,
    Why,
)
from isolation.contract.quantity import GIB
from isolation.placement.engine import Engine
from isolation.placement.node_rules import could_host
from isolation.placement.policy import POLICIES
from isolation.simgpu.mig import PROFILES, layouts


def node(name, *cards, mode=Mode.CGPU, policy=ComputePolicy.FIXED):
    """A node of these cards, with room for everything else."""
    made = tuple(replace(card, uuid=f"{name}-{at}", index=at) for at, card in enumerate(cards))
    return Node(name, made, mode, cpu_milli=1 << 40, memory_bytes=1 << 50, policy=policy)


def part(profile="1g.10gb", gib=9):
    """A MIG instance."""
    return Card("", 0, gib * GIB, model="A100", instance=Instance("GPU-0", profile))


WHOLE = Card("", 0, 79 * GIB, model="A100")


def ask(gib=4, cards=1, core=0, **more):
    """Parts of cards."""
    return Request(cards=cards, card_bytes=gib * GIB, card_core=core, **more)


def reason(found):
    """Why it was refused, and what the people read."""
    return found.why, found.reason


def test_instances_are_filled_like_cards():
    engine = Engine([node("n", part(), part("2g.20gb", 19))])
    for at, (gib, card) in enumerate(((19, "n-1"), (9, "n-0"))):
        placed = engine.place(ask(gib))
        assert [card] == [slice_.uuid for slice_ in placed.slices]
        engine.hold(str(at), ask(gib), placed)
    assert Why.CARDS is engine.place(ask(1)).why


@pytest.mark.parametrize(
    ("request_", "mode", "policy", "said"),
    [
        (ask(cards=2), Mode.CGPU, ComputePolicy.FIXED, "CUDA opens only one MIG instance per process"),
        (ask(core=30), Mode.CORE_MEM, ComputePolicy.FIXED, "a share of compute within a MIG instance is not promised"),
        (
            ask(compute=Compute(online=False)),
            Mode.CORE_MEM,
            ComputePolicy.PRIORITY,
            "a share of compute within a MIG instance is not promised",
        ),
    ],
)
def test_what_an_instance_cannot_give_is_refused_with_the_reason(request_, mode, policy, said):
    """By the whole fleet, by one node, and in a few words for a node; a whole card beside takes it."""
    engine = Engine([node("n", part(), part(), mode=mode, policy=policy)])

    why, text = reason(engine.place(request_))
    assert (Why.INSTANCES, True) == (why, said in text.replace("A share", "a share"))
    assert said in engine.place_on(request_, "n").reason
    assert {Why.INSTANCES: ["n"]} == engine.why_not(request_, ["n"])
    assert not could_host(request_, engine.nodes["n"])
    engine.put_node(node("m", part(), WHOLE, WHOLE, mode=mode, policy=policy))
    placed = engine.place(request_)
    assert {"m-1", "m-2"} >= {one.uuid for one in placed.slices}
    assert could_host(request_, engine.nodes["m"])


def test_a_node_that_is_divided_later_takes_no_more_pods_on_several_cards():
    """Answers for pods alike were given before."""
    engine = Engine([node("n", WHOLE, WHOLE)])
    assert isinstance(engine.place(ask(cards=2)), Placement)
    engine.put_node(node("n", *[part()] * 14))
    assert Why.INSTANCES is engine.place(ask(cards=2)).why
    engine.put_node(node("n", WHOLE, WHOLE))
    assert isinstance(engine.place(ask(cards=2)), Placement)


def test_whole_instances_are_counted_by_profile():
    """As the vendor's plugin serves them; a whole card is none, and an instance is no whole card."""
    engine = Engine([node("n", part(), part(), part("3g.40gb", 39), WHOLE, mode=Mode.EXCLUSIVE)])
    wanted = {
        profile: Request(cards=1, whole=True, rules=Rules(cards=CardRules(profile=profile)))
        for profile in ("1g.10gb", "3g.40gb", "7g.80gb")
    }
    wanted[""] = Request(cards=1, whole=True)
    got = {}
    for profile, request in wanted.items():
        found = []
        while isinstance(placed := engine.place(request), Placement):
            engine.hold(f"{profile}{len(found)}", request, placed)
            found += [one.index for one in placed.slices]
        got[profile] = sorted(found)
        assert could_host(request, engine.nodes["n"]) == bool(found)
    assert {"1g.10gb": [0, 1], "3g.40gb": [2], "7g.80gb": [], "": [3]} == got
    assert "no card is a MIG instance of profile 7g.80gb" in engine.place(wanted["7g.80gb"]).reason


MIXES = {name: tuple(layouts(profiles)) for name, profiles in PROFILES.items()}


@given(
    model=st.sampled_from(["a100-80g", "h100-80g"]),
    boards=st.lists(st.integers(-1, 238), min_size=1, max_size=4),
    asks=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 3), st.sampled_from([0, 0, 25])), min_size=1, max_size=24
    ),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_on_every_mix_of_profiles_placements_are_right_and_refusals_true(model, boards, asks, policy):
    """
    Against the amounts themselves, card by card: nothing is placed where it does not fit or may not be, and nothing is
    refused that fits. The autoscaler's count of one node agrees.
    """
    cards = [
        card
        for at in boards
        for card in ([part(p.profile.name, p.profile.mib >> 10) for p in MIXES[model][at]] if at >= 0 else [WHOLE])
    ]
    for mode in (Mode.CGPU, Mode.CORE_MEM):
        fleet = node("n", *cards, mode=mode)
        engine, room = Engine([fleet], policy=policy), {c.uuid: [c.allocatable_bytes, 100] for c in fleet.cards}
        first = True
        for at, (gib, count, core) in enumerate(asks):
            request = ask(gib, count, core if mode is Mode.CORE_MEM else 0)
            if mode is Mode.CORE_MEM and not core:
                continue
            may = [c for c in fleet.cards if c.instance is None or (count == 1 and not request.card_core)]
            fits = [c for c in may if room[c.uuid][0] >= gib * GIB and room[c.uuid][1] >= request.card_core]
            placed = engine.place(request)
            assert isinstance(placed, Placement) == (len(fits) >= count)
            if first:
                assert (Bin(fleet).take(request) is not None) == (len(fits) >= count)
            if not isinstance(placed, Placement):
                continue
            first = False
            assert {one.uuid for one in placed.slices} <= {card.uuid for card in fits}
            engine.hold(str(at), request, placed)
            for one in placed.slices:
                room[one.uuid][0] -= gib * GIB
                room[one.uuid][1] -= request.card_core
