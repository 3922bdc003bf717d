# SPDX-License-Identifier: Apache-2.0
"""Which nodes can go, and how fast their pods may move."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask, node
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.disruption_budget import Budget
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.scale_down import find_removals, find_unneeded
from isolation.contract.quantity import gib

LIMITS = ScalingLimits()
NOW = 10_000.0


def drained(observation, limits=LIMITS, **budget) -> dict[str, list[str]]:
    """Nodes that go now, and where their pods go."""
    unneeded = dict.fromkeys(sorted(find_unneeded(observation, limits)), 0.0)
    found = find_removals(observation, limits, unneeded, Budget(limits, NOW, **budget))
    return {each.node: [home.placement.node for home in each.reservations] for each in found}


def running(where, size, index=0, owner="", **rest):
    request = ask(size, owner=owner or f"ReplicaSet/default/{where.name}-{index}")
    return pod(request, on=on_card(where, index, size), **rest)


def test_empty_node_goes_and_the_smallest_size_stays():
    """
    Three empty nodes of a pool that keeps one: two go.
    """
    nodes = [node(f"n{i}", pool="p") for i in range(3)]

    assert {"n0": [], "n1": []} == drained(seen([pool(min_nodes=1)], [], nodes, at=NOW))


def test_pods_are_rehomed_card_by_card_or_the_node_stays():
    """
    6 GiB free in sum are no home for 4 GiB when no single card has them.
    """
    busy = node("busy", 2, 15, pool="p")
    light = node("light", 1, 15, pool="p")
    tight = [running(busy, 12, 0), running(busy, 12, 1), running(light, 4)]
    roomy = [running(busy, 12, 0), running(busy, 11, 1), running(light, 4)]

    assert {} == drained(seen([pool()], tight, [busy, light], at=NOW))
    assert {"light": ["busy"]} == drained(seen([pool()], roomy, [busy, light], at=NOW))


def test_two_nodes_never_count_on_the_same_room():
    """
    There is one home of 5 GiB; of two nodes that need it, one goes.
    """
    busy, one, two = node("busy", 1, 15, pool="p"), node("one", 1, 15, pool="p"), node("two", 1, 15, pool="p")
    pods = [running(busy, 10), running(one, 5), running(two, 5)]

    found = drained(seen([pool()], pods, [busy, one, two], at=NOW))

    assert 1 == len(found)


def test_node_that_receives_is_not_drained_in_the_same_round():
    """
    Two light nodes: one moves into the other, which then stays.
    """
    nodes = [node("one", 1, 15, pool="p"), node("two", 1, 15, pool="p")]
    pods = [running(nodes[0], 2), running(nodes[1], 2)]

    assert {"one": ["two"]} == drained(seen([pool()], pods, nodes, at=NOW))


def test_what_may_not_move_keeps_its_node():
    """
    Bare pods, young pods, and pods moved not long ago.
    """
    busy, light = node("busy", 1, 15, pool="p"), node("light", 1, 15, pool="p")

    def with_light(**rest):
        pods = [running(busy, 10), running(light, 2, owner="ReplicaSet/default/x", **rest)]
        return seen([pool()], pods, [busy, light], at=NOW)

    assert {"light": ["busy"]} == drained(with_light())
    assert {} == drained(with_light(evictable=False))
    assert {} == drained(with_light(created=NOW - LIMITS.min_pod_age_seconds + 1))
    moved = {"ReplicaSet/default/x": NOW - 1000}
    assert {} == drained(with_light(created=NOW - 999), moved=moved)
    assert {"light": ["busy"]} == drained(with_light(created=NOW - 2000), moved=moved)


def test_the_hours_budget_ends_drains():
    """
    No drain begins whose moves the hour does not have.
    """
    busy, light = node("busy", 2, 15, pool="p"), node("light", 2, 15, pool="p")
    pods = [running(busy, 10), running(busy, 1, 1), running(light, 2), running(light, 2, 1)]
    observation = seen([pool()], pods, [busy, light], at=NOW)
    spent = tuple(NOW - 10 for _ in range(LIMITS.max_moves_per_hour - 1))

    assert [] == list(drained(observation, moves=spent))
    assert ["light"] == list(drained(observation, moves=tuple(at - 3600 for at in spent)))


def test_node_waits_out_its_time_and_its_load():
    """
    Above the threshold it is no candidate, before its time it does not go.
    """
    half, empty = node("half", 1, 10, pool="p"), node("empty", 1, 10, pool="p")
    observation = seen([pool()], [running(half, 6)], [half, empty], at=NOW)

    assert {"empty"} == find_unneeded(observation, LIMITS)
    assert set() == find_unneeded(replace(observation, kept=frozenset({"empty"})), LIMITS)
    assert () == find_removals(observation, LIMITS, {"empty": NOW - 599}, Budget(LIMITS, NOW))


def test_evictions_move_one_pod_of_an_owner_at_a_time():
    """
    Replicas follow each other; an owner with a pod on the move waits; the round has its limit.
    """
    where = node("n", 4, 15)
    replicas = [running(where, 1, index, owner="A") for index in range(2)]
    others = [running(where, 1, 2, owner="B"), running(where, 1, 3, owner="C")]
    budget = Budget(replace(LIMITS, max_moves_per_cycle=2), NOW)

    first = budget.choose_evictions([*replicas, *others], ())
    restless = budget.choose_evictions([*replicas, *others], ("A",))

    assert ([replicas[0], others[0]], others) == (list(first), list(restless))


placements = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(1, 7)), max_size=14)


@given(placements)
def test_whatever_is_drained_every_pod_has_a_true_home(spots):
    """
    All homes of a round together fit on the nodes that stay, card by card, counted by hand.
    """
    nodes = [node(f"n{i}", 2, 15, pool="p") for i in range(6)]
    free = {(each.name, index): gib(15) for each in nodes for index in range(2)}
    pods = []
    for at, index, size in spots:
        if free[f"n{at}", index] >= gib(size):
            free[f"n{at}", index] -= gib(size)
            pods.append(running(nodes[at], size, index, owner=f"R/{len(pods)}"))
    observation = seen([pool(min_nodes=1)], pods, nodes, at=NOW)

    unneeded = dict.fromkeys(sorted(find_unneeded(observation, LIMITS)), 0.0)
    found = find_removals(observation, LIMITS, unneeded, Budget(LIMITS, NOW))
    gone = {each.node for each in found}
    for each in found:
        assert {p.uid for p in observation.on[each.node].values()} == {home.pod for home in each.reservations}
        for home in each.reservations:
            for part in home.placement.slices:
                free[home.placement.node, part.index] -= part.bytes
    assert gone.isdisjoint(home.placement.node for each in found for home in each.reservations)
    assert all(room >= 0 for room in free.values())
    assert len(gone) < len(nodes)
