# SPDX-License-Identifier: Apache-2.0
"""The engine: what it decides, and that its state stays true whatever happens to the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.builders import ask, card, node

from isolation.contract.model import (
    CardChoice,
    Cluster,
    Compute,
    ComputePolicy,
    Mode,
    Node,
    Phase,
    Placement,
    Pod,
    Refusal,
    Request,
    Requirement,
    Rules,
    Slice,
    Taint,
    Why,
)
from isolation.contract.quantity import GIB, gib
from isolation.placement.engine import Engine, PlacementError
from isolation.placement.place import engine_of, place
from isolation.placement.policy import POLICIES


def indices(placed: Placement | Refusal) -> tuple[int, ...]:
    """The card indices of a placement."""
    assert isinstance(placed, Placement), placed
    return tuple(part.index for part in placed.slices)


def test_a_pod_over_four_cards_gets_its_part_of_each_card_of_one_node():
    """N over M: 2 GiB on each of 4 cards of the one node that has them."""
    engine = Engine([node("small", 2), node("large", 4)])

    placed = engine.place(ask(2, cards=4))

    assert ("large", (0, 1, 2, 3)) == (placed.node, indices(placed))
    assert {gib(2)} == {part.bytes for part in placed.slices}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("choice", "expected"), [(CardChoice.BINPACK, {0}), (CardChoice.SPREAD, {0, 1})])
def test_the_nodes_label_decides_between_its_cards_under_every_policy(policy, choice, expected):
    """2 and 3 GiB share a card under binpack and take different cards under spread."""
    engine = Engine([node("n", 2, choice=choice)], policy=policy)
    first = engine.place(ask(2))
    engine.hold("a", ask(2), first)

    second = engine.place(ask(3))

    assert expected == {*indices(first), *indices(second)}


def test_spread_keeps_replicas_of_one_owner_apart_before_it_looks_at_room():
    """A replica's card is avoided even where it is the emptiest."""
    engine = Engine([node("n", 2, choice=CardChoice.SPREAD)])
    engine.hold("other", ask(8), Placement("n", (Slice("GPU-n-1", 1, gib(8)),)))
    replica = ask(1, owner="ReplicaSet/default/web")
    engine.hold("web-1", replica, Placement("n", (Slice("GPU-n-0", 0, gib(1)),)))

    assert (1,) == indices(engine.place(replica))
    assert (0,) == indices(engine.place(ask(1)))


def test_spread_policy_keeps_replicas_on_different_nodes():
    """Under the policy `spread`, the owner's node is the last resort."""
    engine = Engine([node("a", 8), node("b", 1)], policy="spread")
    replica = ask(1, owner="ReplicaSet/default/web")
    first = engine.place(replica)
    engine.hold("web-1", replica, first)

    second = engine.place(replica)
    engine.hold("web-2", replica, second)

    assert {"a", "b"} == {first.node, second.node}
    assert isinstance(engine.place(replica), Placement)


def test_random_differs_by_seed_and_repeats_for_a_seed():
    """The seed is the only source of chance."""
    nodes = [node(f"n{i}") for i in range(50)]

    def draw(seed: int) -> list[str]:
        engine = Engine(nodes, policy="random", seed=seed)
        return [engine.place(ask(1)).node for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(set(draw(1))) > 10


@pytest.mark.parametrize(
    ("request_", "nodes", "why", "words"),
    [
        (ask(20), [node(size=16)], Why.CARD_TOO_SMALL, "at most that per card"),
        (ask(1, cards=5), [node(cards=4)], Why.TOO_FEW_CARDS, "at most 4"),
        (ask(1), [node(mode=Mode.EXCLUSIVE)], Why.MODE, "ack.node.gpu.schedule=cgpu or share"),
        (ask(1, core=30), [node(mode=Mode.CGPU)], Why.MODE, "core_mem"),
        (ask(1), [node(mode=Mode.CORE_MEM)], Why.MODE, "cgpu or share"),
        (ask(cards=1, whole=True), [node(mode=Mode.SHARE)], Why.MODE, "default"),
        (ask(1), [node(ready=False)], Why.NOT_READY, "ready"),
        (ask(1), [node(cordoned=True)], Why.NOT_READY, "uncordon"),
        (ask(1, rules=Rules(models=frozenset({"A10"}))), [node(model="T4")], Why.RULES, "card models"),
        (ask(1, cpu_milli=2000), [node(cpu_milli=1000)], Why.CPU, "2000 mCPU"),
        (ask(1, memory_bytes=2 * GIB), [node(memory_bytes=GIB)], Why.MEMORY, "2 GiB"),
        (ask(1), [node(pods=0)], Why.PODS, "maxPods"),
        (ask(1), [], Why.NO_NODES, "no nodes"),
    ],
)
def test_a_refusal_says_what_to_change(request_, nodes, why, words):
    """Every way to be refused has its own code and names the number or name to change."""
    refused = Engine(nodes).place(request_)

    assert isinstance(refused, Refusal)
    assert why is refused.why
    assert words in refused.reason


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("b", taints=(Taint("gpu", "yes"),), labels={"zone": "x"})], "b: taint gpu=yes:NoSchedule"),
        ([node("a", labels={"zone": "y"})], "a: labels do not match"),
        ([node("a", mode=Mode.EXCLUSIVE, labels={"zone": "x"})], "a: mode is default"),
    ],
)
def test_a_refusal_by_rules_shows_one_node_and_what_stands_in_the_way(nodes, words):
    """Of many nodes, one is named with its own taint, label or mode."""
    picky = Rules(terms=((Requirement("zone", "In", ("x",)),),))

    assert words in Engine(nodes).place(ask(1, rules=picky)).reason


def test_room_in_sum_but_on_no_card_is_called_fragmented():
    """The case node-sum autoscalers miss."""
    engine = Engine([node("n", 2)])
    for at in (0, 1):
        engine.hold(f"p{at}", ask(8), Placement("n", (Slice(f"GPU-n-{at}", at, gib(8)),)))

    refused = engine.place(ask(10))

    assert Why.FRAGMENTED is refused.why
    assert "7 GiB" in refused.reason


def test_an_unhealthy_card_takes_nobody_and_keeps_what_it_has():
    """Health takes away room to come, not what is held."""
    fine = node("n", 1)
    engine = Engine([fine])
    engine.hold("a", ask(5), engine.place(ask(5)))

    engine.put_node(replace(fine, cards=(card(node="n", healthy=False),)))
    refused = engine.place(ask(1))
    assert Why.CARD_TOO_SMALL is refused.why
    assert "1 without a healthy card that is large enough" in refused.reason
    assert "No card of these nodes is healthy: node annotation gpushare.dev/unhealthy-cards says why" in refused.reason
    engine.put_node(fine)

    assert ((gib(10), 100),) == engine.room("n")


def test_a_whole_card_wants_nothing_else_on_it_and_nothing_comes_beside_it():
    """Exclusive cards are counted, not measured."""
    engine = Engine([node("n", 2, mode=Mode.EXCLUSIVE)])
    whole = ask(cards=1, whole=True)
    engine.hold("a", whole, engine.place(whole))

    assert (1,) == indices(engine.place(whole))
    assert Why.CARDS is engine.place(ask(cards=2, whole=True)).why
    engine.release("a")
    assert (0, 1) == indices(engine.place(ask(cards=2, whole=True)))


def test_the_fleet_refuses_what_it_cannot_take_and_change_nothing():
    """A double hold, an unknown node, an unknown card and a full card are errors."""
    engine = Engine([node("n", 1, 10)])
    good = engine.place(ask(6))
    engine.hold("a", ask(6), good)

    for uid, wrong in [("a", good), ("b", good), ("b", Placement("x")), ("b", Placement("n", (Slice("?", 0, 1),)))]:
        with pytest.raises(PlacementError):
            engine.hold(uid, ask(6), wrong)
    with pytest.raises(KeyError):
        engine.release("b")

    assert ((gib(4), 100),) == engine.room("n")


def test_an_over_committed_card_has_no_room_and_never_wraps():
    """What is found in reality is booked; free memory below zero reads as none."""
    where = Placement("n", (Slice("GPU-n-0", 0, gib(10)),))
    pods = tuple(Pod(f"u{i}", f"p{i}", request=ask(10), placement=where) for i in range(3))
    engine = engine_of(Cluster((node("n", 1, 15),), pods))

    assert ((gib(-15), 100),) == engine.room("n")
    assert Why.CARDS is engine.place(ask(1)).why


def test_finished_pods_hold_nothing_and_terminating_ones_still_do():
    """A pod asked to end holds its memory until its containers have ended."""
    where = Placement("n", (Slice("GPU-n-0", 0, gib(10)),))
    done = Pod("a", "a", request=ask(10), placement=where, phase=Phase.DONE)
    ending = Pod("b", "b", request=ask(10), placement=where, deleting=True, phase=Phase.RUNNING)

    assert isinstance(place(ask(15), Cluster((node("n"),), (done,))), Placement)
    assert isinstance(place(ask(6), Cluster((node("n"),), (ending,))), Refusal)


SIZES = st.integers(1, 16)
REQUESTS = st.one_of(
    st.builds(ask, SIZES, st.integers(1, 3)),
    st.builds(ask, SIZES, st.integers(1, 2), core=st.sampled_from([5, 30, 60, 100])),
    st.builds(lambda cards: ask(cards=cards, whole=True), st.integers(1, 3)),
    st.builds(lambda cpu: Request(cpu_milli=cpu), st.integers(0, 3000)),
    st.builds(lambda size, cpu: ask(size, cpu_milli=cpu, owner="o"), SIZES, st.integers(0, 2000)),
)
NODES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([4, 10, 15]),
        st.sampled_from([Mode.SHARE, Mode.CGPU, Mode.CORE_MEM, Mode.EXCLUSIVE]),
        st.sampled_from(list(CardChoice)),
        st.sampled_from([1000, 4000]),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=4,
)


def built(specs: list[tuple[int, int, Mode, CardChoice, int, int]]) -> list[Node]:
    """Nodes from a drawn description."""
    return [
        node(f"n{i}", cards, size, mode=mode, choice=choice, cpu_milli=cpu, pods=pods)
        for i, (cards, size, mode, choice, cpu, pods) in enumerate(specs)
    ]


def served(request: Request, n: Node) -> bool:
    """Whether the node's mode serves the request, written out once more."""
    if not request.cards:
        return True
    if request.whole:
        return n.mode is Mode.EXCLUSIVE
    return n.mode is Mode.CORE_MEM if request.card_core else n.mode in (Mode.SHARE, Mode.CGPU)


class Brute:
    """The fleet by brute force: sums over holds, nothing incremental."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.held: dict[str, tuple[Request, Placement]] = {}

    def free(self, n: Node) -> list[tuple[int, int]]:
        """Per card, what no hold has."""
        parts = [p for _, placed in self.held.values() if placed.node == n.name for p in placed.slices]
        return [
            (
                c.allocatable_bytes - sum(p.bytes for p in parts if p.uuid == c.uuid),
                100 - sum(p.core for p in parts if p.uuid == c.uuid),
            )
            for c in n.cards
        ]

    def blocks(self, request: Request, n: Node) -> set[Why]:
        """Everything that keeps the request off the node; empty: it fits."""
        on = [r for r, placed in self.held.values() if placed.node == n.name]
        free, each = self.free(n), (request.card_bytes, request.card_core)
        out = set()
        if not served(request, n):
            out.add(Why.MODE)
        if len(n.cards) < request.cards:
            out.add(Why.TOO_FEW_CARDS)
        if sum(request.whole or c.allocatable_bytes >= each[0] for c in n.cards) < request.cards:
            out.add(Why.CARD_TOO_SMALL)
        if request.whole:
            fitting = sum(f == (c.allocatable_bytes, 100) for f, c in zip(free, n.cards, strict=True))
        else:
            fitting = sum(f[0] >= each[0] and f[1] >= each[1] for f in free)
        if request.cards and fitting < request.cards:
            sums = (
                sum(f[0] for f in free) >= each[0] * request.cards
                and sum(f[1] for f in free) >= each[1] * request.cards
            )
            out.add(Why.FRAGMENTED if sums and not request.whole else Why.CARDS)
        if n.cpu_milli - sum(r.cpu_milli for r in on) < request.cpu_milli:
            out.add(Why.CPU)
        if len(on) >= n.pods:
            out.add(Why.PODS)
        return out


@settings(max_examples=examples(150), deadline=None)
@given(NODES, st.lists(st.tuples(REQUESTS, st.booleans()), max_size=25), st.sampled_from(sorted(POLICIES)))
def test_the_fleet_agrees_with_brute_force_and_refusals_are_true(specs, steps, policy):
    """
    A pod that fits somewhere is placed, on cards that have the room; a refusal's code is a true
    one; no card is ever over; what is free is always offered minus the sum of the holds.
    """
    nodes = built(specs)
    engine, brute = Engine(nodes, policy=policy, seed=3), Brute(nodes)
    for at, (request, keep) in enumerate(steps):
        engine.arrive(request)
        answer = engine.place(request)
        blocks = {n.name: brute.blocks(request, n) for n in nodes}
        if isinstance(answer, Refusal):
            assert all(blocks.values())
            assert any(answer.why in found for found in blocks.values())
        else:
            assert not blocks[answer.node]
            assert request.cards == len({p.uuid for p in answer.slices})
            engine.hold(str(at), request, answer)
            brute.held[str(at)] = (request, answer)
            if not keep:
                engine.release(str(at))
                del brute.held[str(at)]
        for n in nodes:
            assert brute.free(n) == list(engine.room(n.name))
            assert all(size >= 0 and core >= 0 for size, core in engine.room(n.name))


@settings(max_examples=examples(80), deadline=None)
@given(
    NODES,
    st.lists(REQUESTS, min_size=1, max_size=70),
    st.sampled_from(["potential", "fgd", "best-fit", "binpack", "spread"]),
)
def test_remembered_answers_are_those_of_a_fresh_engine(specs, requests, policy):
    """Incremental equals from scratch, across refreshes of the mix, forks, lost and changed nodes."""
    nodes = built(specs)
    engine = Engine(nodes, policy=policy)
    for at, request in enumerate(requests):
        engine.arrive(request)
        answer = engine.place(request)
        assert answer == engine.fork().place(request)
        if isinstance(answer, Placement):
            engine.hold(str(at), request, answer)
        if at % 7 == 3:
            engine.drop_node(nodes[at % len(nodes)].name)
        if at % 7 == 5:
            engine.put_node(nodes[(at - 2) % len(nodes)])


def test_a_fork_shares_nothing_that_changes():
    """What-if leaves the original alone, and the other way round."""
    engine = Engine([node("n", 1, 10)])
    twin = engine.fork()
    twin.hold("a", ask(6), twin.place(ask(6)))
    twin.put_node(node("m", 4))

    assert ((gib(10), 100),) == engine.room("n")
    assert ["n"] == list(engine.nodes)
    engine.hold("b", ask(10), engine.place(ask(10)))
    assert {"a"} == set(twin.holds)


def test_fleets_grow_past_every_first_guess():
    """More nodes and more cards per node than the arrays began with."""
    engine = Engine([node(f"n{i}", 1 + i % 16, 16) for i in range(100)])
    assert 16 == len(indices(engine.place(ask(1, cards=16))))
    with pytest.raises(ValueError, match="65 cards"):
        engine.put_node(node("huge", 65))
    for i in range(100):
        engine.drop_node(f"n{i}")
    assert Why.NO_NODES is engine.place(ask(1)).why


def test_an_unknown_policy_names_those_there_are():
    """The error carries the fix."""
    with pytest.raises(ValueError, match="potential, fgd, best-fit"):
        Engine(policy="best")


PRIORITY, FIXED = ComputePolicy.PRIORITY, ComputePolicy.FIXED
OFFLINE = Compute(online=False)


@pytest.mark.parametrize(
    ("mode", "policy", "memory", "compute", "offline"),
    [
        (Mode.CORE_MEM, FIXED, False, True, False),
        (Mode.CORE_MEM, ComputePolicy.BURST, False, True, False),
        (Mode.CORE_MEM, ComputePolicy.NONE, False, True, False),
        (Mode.CORE_MEM, ComputePolicy.WEIGHT, True, True, False),
        (Mode.CORE_MEM, PRIORITY, True, True, True),
        (Mode.CGPU, FIXED, True, False, False),
        (Mode.CGPU, PRIORITY, True, False, True),
        (Mode.SHARE, PRIORITY, True, False, False),
    ],
)
def test_pods_with_and_without_compute_meet_where_the_policy_holds_them_apart(mode, policy, memory, compute, offline):
    """Weights and priorities limit who has no guarantee; offline pods need a node that makes them yield."""
    engine = Engine([node("n", mode=mode, policy=policy)])
    found = [isinstance(engine.place(one), Placement) for one in (ask(2), ask(2, core=30), ask(2, compute=OFFLINE))]
    assert [memory, compute, offline] == found


def test_who_has_no_guarantee_takes_none_of_the_cards_compute():
    """A card whose compute is promised in full takes pods with a weight as long as it has memory."""
    engine = Engine([node("n", mode=Mode.CORE_MEM, policy=PRIORITY)])
    engine.hold("all", ask(2, core=100), engine.place(ask(2, core=100)))
    assert isinstance(engine.place(ask(2, core=5)), Refusal)
    for name, one in (("a", ask(2)), ("b", ask(2, compute=OFFLINE))):
        engine.hold(name, one, engine.place(one))
    assert ((gib(9), 0),) == engine.room("n")


def test_the_refusal_of_an_offline_pod_names_the_policy():
    """What to label, and what stands in the way."""
    found = Engine([node("n", mode=Mode.CORE_MEM)]).place(ask(2, compute=OFFLINE))
    assert "compute policy is fixed, but offline pods need priority" in found.reason
    assert "gpushare.dev/compute-policy=priority" in found.reason


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random"}))
@pytest.mark.parametrize("choice", list(CardChoice))
def test_online_pods_keep_away_from_cards_with_offline_ones_and_these_from_the_others(policy, choice):
    """On one node and between nodes, whatever else the policy would prefer; where there is no other card they meet."""
    nodes = [node(name, 2, mode=Mode.CORE_MEM, policy=PRIORITY, choice=choice) for name in ("a", "b")]
    engine, kinds = Engine(nodes, policy=policy), (Compute(), OFFLINE)
    engine.hold("first", ask(1, compute=OFFLINE), engine.place(ask(1, compute=OFFLINE)))
    where = {kind: set() for kind in kinds}
    for step in range(6):
        for kind in kinds:
            found = engine.place(ask(2, compute=kind))
            engine.hold(f"{step} {kind.online}", ask(2, compute=kind), found)
            where[kind].add((found.node, *indices(found)))
    assert not where[kinds[0]] & where[kinds[1]]

    alone = Engine([node("n", mode=Mode.CORE_MEM, policy=PRIORITY)], policy=policy)
    alone.hold("offline", ask(1, compute=OFFLINE), alone.place(ask(1, compute=OFFLINE)))
    assert isinstance(alone.place(ask(2)), Placement)


def test_a_card_forgets_an_offline_pod_that_is_gone():
    """And a node that changes remembers those that it has."""
    nodes = [node("n", 2, mode=Mode.CORE_MEM, policy=PRIORITY, choice=CardChoice.BINPACK)]
    engine = Engine(nodes)
    engine.hold("offline", ask(4, compute=OFFLINE), engine.place(ask(4, compute=OFFLINE)))
    apart = engine.place(ask(2))
    engine.put_node(replace(nodes[0], labels={"x": "y"}))
    assert apart == engine.place(ask(2))
    engine.hold("same", ask(4), engine.place(ask(4)))
    engine.release("offline")
    assert indices(engine.place(ask(2))) == indices(apart)
