# SPDX-License-Identifier: Apache-2.0
"""What pools have left and who waits for them, from the observation that decisions are made from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import ask, node
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.apis.metrics.core.pressure import list_pending, summarize_pools
from autoscaler.apis.metrics.core.readings import PendingPod
from autoscaler.core.lifecycle import MachineState, PoolMachine
from isolation.contract.quantity import GIB


def in_pool(name, of, *, cards=2):
    """A node of a pool."""
    return replace(node(name, cards, 15), pool=of)


def test_what_is_left_is_told_by_pool_and_by_single_card():
    """
    9 + 5 GiB on two cards are 9; another pool's empty node does not make this one's larger.
    """
    one, two = in_pool("one", "a"), in_pool("two", "b")
    pods = [pod(ask(6), on=on_card(one, 0, 6)), pod(ask(10), on=on_card(one, 1, 10))]
    found = {room.pool: room for room in summarize_pools(seen([pool("a"), pool("b"), pool("c")], pods, [one, two]))}
    assert {"a": 9 * GIB, "b": 15 * GIB, "c": 0} == {name: room.largest_free_bytes for name, room in found.items()}
    assert [14 / 15, 2.0, 0.0] == pytest.approx([found[name].idle_cards for name in "abc"])


def test_what_is_lost_is_told_by_pool():
    """
    A mix of pods of 8 GiB has no use for the 5 GiB that are left of each card of one pool.
    """
    full, free = in_pool("full", "a"), in_pool("free", "b")
    pods = [pod(ask(10), on=on_card(full, card, 10)) for card in range(2)]
    reading = seen([pool("a"), pool("b")], pods, [full, free])
    reading.engine.teach([ask(8)] * 10)
    lost = {room.pool: room.lost_cards for room in summarize_pools(reading)}
    assert {"a": 10 / 15, "b": 0.0} == pytest.approx(lost)


def test_a_node_that_cannot_be_used_has_nothing_left():
    """
    Its cards are there, and no pod may go to them.
    """
    one = in_pool("one", "a")
    (room,) = summarize_pools(seen([pool("a")], [], [one], machines=[PoolMachine("one", "a", MachineState.DRAINING)]))
    assert (0, 0.0) == (room.largest_free_bytes, room.idle_cards)


def test_each_waiting_pod_counts_for_one_pool():
    """
    The cheapest that could host it; none where its cards are too large for all; whole cards are no memory.
    """
    pools = [pool("costly", size=40, price=3), pool("cheap", size=15, price=1), pool("also", size=15, price=1)]
    pods = [pod(ask(4, cards=1)), pod(ask(4)), pod(ask(20), namespace="x"), pod(ask(99)), pod(ask(whole=True))]
    assert (
        PendingPod("default", "", 99 * GIB),
        PendingPod("default", "also", 8 * GIB),
        PendingPod("x", "costly", 20 * GIB),
    ) == list_pending(seen(pools, pods))


def test_a_pod_of_several_cards_waits_for_all_of_them():
    """
    Two cards of 4 GiB are 8.
    """
    assert (PendingPod("default", "p", 8 * GIB),) == list_pending(seen([pool(cards=2)], [pod(ask(4, cards=2))]))
