# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster grows by what is asked: no node too many, nobody refused without a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask
from support.embedded_fleet import QUICK, a_few, check_room, check_served, counts, live
from support.pools_builder import arrival, fleet, nodes_by_hand, pool

from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.fake_cluster import SCHEDULE_SECONDS
from isolation.contract.model import CardChoice


@pytest.mark.parametrize("choice", [CardChoice.POLICY, CardChoice.BINPACK, CardChoice.SPREAD])
def test_a_times_n_plus_one_pods_bring_n_plus_one_nodes_and_their_end_brings_it_back(choice):
    """
    From zero to four nodes for 19 equal pods at six a node, and back to zero.
    """
    pods = [arrival(0, f"p{i}", ask(5), lifetime=200) for i in range(19)]
    embedded = EmbeddedCluster(fleet(pool(cards=2, size=15, choice=choice)), pods, seed=1, limits=QUICK)

    live(embedded, 120, check_room)
    grown = (len(embedded.cluster.state.on), counts(embedded)["nodes_added"], len(embedded.cluster.scheduler.pending))
    live(embedded, 400, check_room)

    assert (4, 4, 0) == grown
    assert (0, 4) == (len(embedded.cluster.provider.machines), counts(embedded)["nodes_removed"])


def test_boot_delay_is_seen_and_bridged_without_buying_twice():
    """
    While the machine boots the frame says so, the pod's reason names it, and nothing more is bought.
    """
    embedded = EmbeddedCluster(fleet(pool(), boot=100), [arrival(0, "p", ask(5))], seed=1, limits=QUICK)

    embedded.advance(60)
    booting = embedded.frame()
    embedded.advance(60)
    ready = embedded.frame()

    assert [(1, 1)] == [(each.nodes, each.booting) for each in booting.pools]
    assert ["booting"] == [each.state for each in booting.nodes]
    assert "node p-1 is being added for it" in booting.waiting[0].reason
    assert ([(1, 0)], ()) == ([(each.nodes, each.booting) for each in ready.pools], ready.waiting)
    assert 1 == counts(embedded)["nodes_added"]


def test_fragmented_pod_is_rescued():
    """
    A pod that fits by sums over a node but by no card is counted while it waits, and gets a node of its own.
    """
    pods = [arrival(0, f"p{i}", ask(9)) for i in range(4)] + [arrival(40, "fragmented", ask(8))]
    embedded = EmbeddedCluster(fleet(pool(cards=4), standing=1), pods, seed=1, limits=QUICK)

    embedded.advance(70)
    meanwhile = embedded.frame()
    embedded.advance(50)

    summary = embedded.summary()
    assert (1, "fragmented") == (meanwhile.fragmented, meanwhile.waiting[0].pod.removeprefix("default/"))
    assert 0 == embedded.frame().fragmented
    assert (1, 1, 0, 0, 0) == tuple(
        summary[name]
        for name in (
            "nodes_added",
            "fragmented_pods_placed",
            "pending_fragmented_pods",
            "unserved_pods",
            "pods_waiting",
        )
    )


def test_pod_that_nobody_can_host_is_refused_once_with_its_reason():
    """
    And nothing is bought for it.
    """
    embedded = EmbeddedCluster(fleet(pool(size=15)), [arrival(0, "huge", ask(20))], seed=1, limits=QUICK)

    embedded.advance(300)
    frame = embedded.frame()

    assert [("refuse", "default/huge")] == [(h.kind, h.subject) for h in frame.events]
    assert "card_too_small" == frame.waiting[0].why
    assert {"pods_refused": 1, "nodes_added": 0}.items() <= counts(embedded).items()


def test_provider_without_stock_is_left_alone_and_another_pool_serves():
    """
    The cheap pool has one machine; the second pod gets a node of the slow one.
    """
    cheap, costly = pool("cheap", price=1), pool("costly", price=5)
    supplies = fleet(cheap, costly)
    scarce = replace(supplies, supplies=(replace(supplies.supplies[0], stock=1), supplies.supplies[1]))
    embedded = EmbeddedCluster(scarce, [arrival(0, f"p{i}", ask(10)) for i in range(2)], seed=1, limits=QUICK)

    live(embedded, 200, check_served, step=0.5)

    assert {"cheap-1", "costly-1"} == set(embedded.cluster.state.on)
    assert 0 == len(embedded.cluster.scheduler.pending)
    assert 1 == counts(embedded)["nodes_failed"]
    assert any(h.kind == "out_of_stock" for h in embedded.frame().events)


def test_machine_that_boots_for_ever_is_discarded():
    """
    After the time it may take; the pod's reason says that the pool could not deliver.
    """
    embedded = EmbeddedCluster(fleet(pool(), boot=10_000), [arrival(0, "p", ask(5))], seed=1, limits=QUICK)

    live(embedded, 130, check_served, step=0.5)

    assert 1 == counts(embedded)["nodes_failed"]
    assert "in backoff after a failed scale-up" in embedded.frame().waiting[0].reason


batch = st.lists(st.tuples(st.integers(1, 15), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=40)


@a_few
@given(batch, st.integers(0, 99))
def test_a_batch_gets_no_node_more_than_first_fit_decreasing_needs(sizes, seed):
    """
    End to end: bought, booted, placed as planned, everybody runs.
    """
    pods = [arrival(0, f"p{i}", ask(each, wanted)) for i, (each, wanted) in enumerate(sizes)]
    embedded = EmbeddedCluster(fleet(pool(cards=4)), pods, seed=seed, limits=QUICK)

    live(embedded, 100, check_room, step=5)

    assert 0 == len(embedded.cluster.scheduler.pending)
    assert nodes_by_hand(sizes, 4, 15) == counts(embedded)["nodes_added"]


several = st.lists(st.tuples(st.integers(1, 14), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=40)


@a_few
@given(several, st.integers(0, 99))
def test_what_is_coming_is_kept_for_whom_it_was_bought_whatever_pool_it_is_of(sizes, seed):
    """
    Machines of several pools boot at different speeds: nothing is bought after the first turn that buys.
    """
    pools = [
        pool("b", 1, 14, price=1, max_nodes=2),
        pool("a", 4, 15, price=3.2, max_nodes=2),
        pool("c", 2, 15, price=1.9, max_nodes=2),
        pool("d", 8, 20, price=6),
    ]
    supplies = [replace(each, boot_seconds=15.0 * at + 20) for at, each in enumerate(fleet(*pools).supplies)]
    pods = [arrival(0, f"p{i}", ask(each, wanted)) for i, (each, wanted) in enumerate(sizes)]
    embedded = EmbeddedCluster(replace(fleet(*pools), supplies=tuple(supplies)), pods, seed=seed, limits=QUICK)

    embedded.advance(12)
    at_once = counts(embedded)["nodes_added"]
    live(embedded, 150, check_room, step=5)

    assert 0 == len(embedded.cluster.scheduler.pending)
    assert at_once == counts(embedded)["nodes_added"]


@pytest.mark.parametrize("boot", [30, 37.0, 37.2, 37.5])
def test_pods_take_the_places_that_the_purchase_was_counted_on(boot):
    """
    9, 6, 4 and 10 GiB fill two cards of 15 only in one way: by age and policy alone a second node would be needed.

    Also if the autoscaler looks just after the node came and before the scheduler has.
    """
    pods = [arrival(0, f"p{i}", ask(size)) for i, size in enumerate((9, 6, 4, 10))]
    embedded = EmbeddedCluster(fleet(pool(cards=2, size=15), boot=boot), pods, seed=1, limits=QUICK)

    embedded.advance(200)

    assert (1, 0) == (counts(embedded)["nodes_added"], len(embedded.cluster.scheduler.pending))


def test_small_pod_is_not_pushed_from_machine_to_machine_by_larger_ones():
    """
    A machine once bought for a pod is waited for, though a larger pod comes in every turn.
    """
    small = arrival(0, "small", ask(1))
    large = [arrival(5 + 10 * turn, f"large-{turn}", ask(8 + turn % 7)) for turn in range(30)]
    embedded = EmbeddedCluster(fleet(pool(cards=1, size=15), boot=60), [small, *large], seed=1, limits=QUICK)

    live(embedded, 400, check_room, check_served)

    assert 0 == len(embedded.cluster.scheduler.pending)
    # a turn, its settling, the boot, the devices, the scheduler's next pass
    assert (
        embedded.summary()["longest_wait_seconds"]
        <= 10 + QUICK.action_validation_delay_seconds + 60 + 2 + SCHEDULE_SECONDS
    )
