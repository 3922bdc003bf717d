# SPDX-License-Identifier: Apache-2.0
"""How many nodes of which pool waiting pods need, counted card by card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask, node
from support.pools_builder import nodes_by_hand, on_card, pod, pool, seen

from autoscaler.core.bin_packing import Bin
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.scale_up import compute_demand
from isolation.contract.model import Mode, Request, Requirement, Rules, Taint, Toleration, Why
from isolation.contract.quantity import gib

LIMITS = ScalingLimits()


def bought(found) -> list[str]:
    return [lot.pool for lot in found.planned_nodes]


def test_scales_from_zero_by_the_pools_card_profile():
    """
    A pool without a single node is known by its template.
    """
    waiting = [pod(ask(8)) for _ in range(3)]

    found = compute_demand(seen([pool(cards=2, size=15)], waiting), LIMITS)

    assert ["p", "p"] == bought(found)


@pytest.mark.parametrize("beyond", [0, 1, 5])
def test_a_times_n_plus_k_pods_need_n_plus_one_nodes(beyond):
    """
    Equal pods that fill N nodes exactly need one more for the rest, and none without a rest.
    """
    per_node, nodes = 6, 4  # 2 cards of 15 GiB take three 5-GiB pods each
    waiting = [pod(ask(5)) for _ in range(per_node * nodes + beyond)]

    found = compute_demand(seen([pool(cards=2, size=15)], waiting), LIMITS)

    assert nodes + (beyond > 0) == len(found.planned_nodes)


def test_fragmented_pod_that_fits_by_sum_only_gets_a_node():
    """
    Four cards with 4 GiB free each are 16 GiB in sum and no room for 5: a node is bought.
    """
    full = node("n", 4, 15)
    running = [pod(ask(11), on=on_card(full, index, 11)) for index in range(4)]
    fragmented = pod(ask(5))

    found = compute_demand(seen([pool("p", 4)], [*running, fragmented], [full]), LIMITS)

    assert ["p"] == bought(found)
    assert Why.FRAGMENTED == found.refusals[fragmented.uid].why


def test_pod_with_room_on_a_standing_node_buys_nothing():
    """
    What stands comes first.
    """
    waiting = pod(ask(5))

    found = compute_demand(seen([pool()], [waiting], [node("n", 1, 15)]), LIMITS)

    assert ([], [waiting.uid]) == (found.planned_nodes, found.fits)


@pytest.mark.parametrize("state", [MachineState.REQUESTED, MachineState.BOOTING, MachineState.NO_DEVICES])
def test_machine_that_is_coming_counts_as_room(state):
    """
    Nothing is bought twice: three pods, one of them beyond what the coming node takes, buy one.
    """
    waiting = [pod(ask(10)) for _ in range(3)]
    machines = [PoolMachine("p-1", "p", state)]

    found = compute_demand(seen([pool(cards=2)], waiting, machines=machines), LIMITS)

    assert ["p"] == bought(found)
    assert {waiting[0].uid: "p-1", waiting[1].uid: "p-1"} == {uid: h.machine for uid, h in found.nominations.items()}


def test_node_being_drained_is_kept_before_one_is_bought():
    """
    A cordoned node on its way out serves who waits.
    """
    going = node("going", 1, 15, cordoned=True)
    waiting = pod(ask(5))
    machines = [PoolMachine("going", "p", MachineState.DRAINING)]

    found = compute_demand(seen([pool()], [waiting], [going], machines=machines), LIMITS)

    assert ([], ["going"]) == (found.planned_nodes, list(found.keep))


def test_pod_for_an_isolated_pool_never_grows_another_mode():
    """
    Compute shares need core_mem, whole cards an exclusive pool, whatever else is cheaper.
    """
    pools = [
        pool("share", mode=Mode.SHARE, price=0.1),
        pool("both", mode=Mode.CORE_MEM, price=5),
        pool("whole", mode=Mode.EXCLUSIVE, price=9),
    ]

    found = compute_demand(seen(pools, [pod(ask(2, core=30)), pod(ask(whole=True))]), LIMITS)

    assert ["both", "whole"] == sorted(bought(found))


def test_selector_and_taint_of_a_template_bind():
    """
    A pod that selects cgpu never grows the share pool, and a taint keeps out who does not tolerate it.
    """
    cgpu_only = Rules(terms=((Requirement("pool", "In", ("cgpu",)),),))
    tolerates = Rules(tolerations=frozenset({Toleration("team", exists=True)}))
    pools = [
        pool("share", mode=Mode.SHARE, labels={"pool": "share"}, price=1),
        pool("cgpu", mode=Mode.CGPU, labels={"pool": "cgpu"}, price=3),
        pool("tainted", mode=Mode.CGPU, taints=(Taint("team"),), price=0.5),
    ]

    def grows(rules):
        return bought(compute_demand(seen(pools, [pod(ask(2, rules=rules))]), LIMITS))

    assert [["cgpu"], ["tainted"], ["share"]] == [grows(cgpu_only), grows(tolerates), grows(Rules())]


def test_pod_that_no_pool_could_host_is_named_with_the_true_reason():
    """
    20 GiB on cards of 15 buy nothing.
    """
    huge = pod(ask(20))

    found = compute_demand(seen([pool(size=15)], [huge]), LIMITS)

    assert [] == found.planned_nodes
    assert Why.CARD_TOO_SMALL == found.unplaceable[huge.uid].why
    assert "15 GiB" in found.unplaceable[huge.uid].reason


def test_largest_size_and_closed_pools_cap_the_purchase():
    """
    What a pool may not give is said of the pods that miss it.
    """
    waiting = [pod(ask(10)) for _ in range(3)]

    found = compute_demand(seen([pool(max_nodes=2)], waiting), LIMITS)
    shut = compute_demand(seen([pool(max_nodes=2)], waiting), LIMITS, in_backoff={"p"})

    assert (["p", "p"], 1) == (bought(found), len(found.capped))
    assert "at its maximum of 2 nodes" in found.capped[waiting[2].uid].reason
    assert ([], 3) == (bought(shut), len(shut.capped))
    assert "in backoff after a failed scale-up" in shut.capped[waiting[0].uid].reason


def test_a_pool_that_is_unknown_is_not_said_to_be_full():
    """
    Its bounds are what stands because nobody can ask for more, not because its operator wanted so few.
    """
    waits = pod(ask(5))
    found = compute_demand(seen([replace(pool(max_nodes=0), known=False)], [waits]), LIMITS)

    assert "no pool can scale up now: p (provider state unknown); " in found.capped[waits.uid].reason


def test_pool_is_chosen_by_cost_for_what_it_serves():
    """
    Many small pods go to one slow large node, a single one to a cheap small node.
    """
    pools = [pool("large", 8, 15, price=6), pool("small", 1, 15, price=1)]

    many = compute_demand(seen(pools, [pod(ask(15)) for _ in range(8)]), LIMITS)
    single = compute_demand(seen(pools, [pod(ask(15))]), LIMITS)

    assert (["large"], ["small"]) == (bought(many), bought(single))


def test_cpu_only_pods_grow_the_pool_without_cards():
    """
    A pod without cards is served where it is cheap.
    """
    pools = [pool("gpu", 4, price=4), pool("cpu", 0, mode=Mode.NONE, price=1)]

    found = compute_demand(seen(pools, [pod(Request(cpu_milli=1000))]), LIMITS)

    assert ["cpu"] == bought(found)


def test_cpu_memory_and_pod_count_of_a_node_bind_too():
    """
    Cards to spare are no use to a node that is out of CPU, memory or pods.
    """
    waiting = [pod(ask(1, cpu_milli=600)) for _ in range(4)]

    by_cpu = compute_demand(seen([pool(cards=8, cpu_milli=1000)], waiting), LIMITS)
    by_pods = compute_demand(seen([pool(cards=8, pods=2)], waiting), LIMITS)

    assert (4, 2) == (len(by_cpu.planned_nodes), len(by_pods.planned_nodes))


shapes = st.lists(st.tuples(st.integers(1, 15), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=60)


@given(shapes, st.sampled_from([4, 8]))
def test_never_more_nodes_than_first_fit_decreasing_needs(sizes, cards):
    """
    The purchase equals first-fit-decreasing over cards, found independently, and serves everybody.
    """
    waiting = [pod(ask(each, wanted)) for each, wanted in sizes]

    found = compute_demand(seen([pool(cards=cards, size=15)], waiting), LIMITS)

    assert nodes_by_hand(sizes, cards, 15) == len(found.planned_nodes)
    assert {each.uid for each in waiting} == {each.uid for lot in found.planned_nodes for each in lot.pods}


@given(shapes, st.integers(0, 6))
def test_every_pod_is_answered_exactly_once(sizes, largest):
    """
    Served, coming, hopeless or capped: nobody is forgotten and nobody counted twice.
    """
    waiting = [pod(ask(each, wanted)) for each, wanted in sizes]
    machines = [PoolMachine("p-1", "p", MachineState.BOOTING)] if largest else []

    found = compute_demand(seen([pool(cards=2, max_nodes=largest)], waiting, machines=machines), LIMITS)
    answers = [
        *(each.uid for lot in found.planned_nodes for each in lot.pods),
        *found.nominations,
        *found.fits,
        *found.unplaceable,
        *found.capped,
    ]

    assert sorted(each.uid for each in waiting) == sorted(answers)
    assert len(found.planned_nodes) + len(machines) <= largest


@given(shapes)
def test_bin_never_gives_more_than_a_card_has(sizes):
    """
    Card by card, whatever is taken.
    """
    empty = node("n", 4, 15)
    room = Bin(empty)
    given_bytes = [0] * 4
    for each, wanted in sizes:
        for position in room.take(ask(each, wanted)) or ():
            given_bytes[position] += gib(each)

    assert all(amount <= gib(15) for amount in given_bytes)
