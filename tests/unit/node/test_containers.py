# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod: init containers, sidecars and apps share devices, and one promise counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.agent_story import ended, run, started, ticks

from isolation.contract.quantity import GIB
from isolation.node.book import card_of, hash_of


@pytest.fixture
def node():
    return started()


def test_init_and_app_share_devices_and_one_promise_counts(node):
    """
    An app container takes its init container's devices unasked: the init's promise goes when the app starts.
    """
    node.bind("a", init=("fetch",), fetch=(0, 6), main=(0, 4))
    boxes = run(node.admit("a"))
    run(node.start("a", "fetch"))
    assert {hash_of(boxes["fetch"])} == node.counted

    node.change("a", wanted=tuple(ended(one) for one in node.api["a"].wanted))
    promise = run(node.start("a", "main"))

    assert boxes["main"] < boxes["fetch"]
    assert ("main", {hash_of(boxes["main"])}) == (promise.container, node.counted)


def test_where_init_and_app_have_the_very_same_devices_the_files_follow(node):
    """
    One set of IDs, one folder: it speaks of whoever runs now.
    """
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 4))
    boxes = run(node.admit("a"))

    assert "fetch" == run(node.start("a", "fetch")).container
    node.change("a", wanted=tuple(ended(one) for one in node.api["a"].wanted))
    ticks(node, 1)
    assert ["main"] == [promise.container for promise in node.files.values()]
    assert "main" == run(node.start("a", "main")).container
    assert {hash_of(boxes["main"])} == node.counted  # the init container's promise went, the app's own did not


def test_files_that_an_agent_wrote_by_half_are_written_anew_by_the_next(node):
    """
    It died between the claim and the limits: the claim speaks of who runs, the limits of who ran before.
    """
    node.bind("a", init=("fetch",), fetch=(0, 4), main=(0, 4))
    run(node.admit("a"))
    before = run(node.start("a", "fetch"))
    node.change("a", wanted=tuple(ended(one) for one in node.api["a"].wanted))
    ticks(node, 1)
    after = node.files[before.hash]
    node.files[before.hash] = replace(before, claim=after.claim)

    node.restart_agent()
    run(node.agent.start())
    ticks(node, 1)
    assert after == node.files[before.hash]


def test_a_larger_inits_surplus_stays_held_for_the_pods_life(node):
    """
    The kubelet keeps it, listed nowhere; so do we.
    """
    node.bind("a", init=("fetch",), fetch=(0, 6), main=(0, 2))
    boxes = run(node.admit("a"))
    run(node.start("a", "fetch"))
    run(node.start("a", "main"))
    ticks(node, 5)
    assert boxes["fetch"] == node.agent.book.held()

    node.vanish("a")
    ticks(node, 10)
    assert (set(), {}) == (node.agent.book.held(), node.files)


def test_several_containers_each_get_their_own(node):
    """
    Each container is asked for alone.
    """
    node.bind("a", one=(1, 3), two=(1, 5))
    boxes = run(node.admit("a"))
    parts = {name: run(node.start("a", name)).slices[0].bytes // GIB for name in boxes}

    assert {"one": 3, "two": 5} == parts
    assert frozenset() == boxes["one"] & boxes["two"]
    assert {"GPU-1"} == {card_of(one) for ids in boxes.values() for one in ids}
