# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' nodes and pods as the scheduler's cache see them: from JSON to an answer."""

from __future__ import annotations

import json

import pytest
from support.builders import card
from support.scheduler_harness import at, bound

from isolation.contract.codec import encode_cards, node_of, pod_of
from isolation.contract.names import ACK, AGENT, CARDS
from isolation.contract.quantity import gib
from isolation.scheduler.core.cache import SchedulerCache

TWO = encode_cards([card(0, 8), card(1, 8)])


def wire(units: str | None, annotations: dict[str, str], mode: str = "cgpu") -> dict[str, object]:
    """A node whose kubelet offers so many units of shared memory."""
    offered = {} if units is None else {ACK.memory: units}
    return {
        "metadata": {"name": "n", "labels": {ACK.mode_label: mode}, "annotations": annotations},
        "spec": {},
        "status": {"capacity": offered | {ACK.card_count: "2"}, "allocatable": offered | {ACK.card_count: "2"}},
    }


def asks(amount: str, cards: str = "1") -> dict[str, object]:
    """A pod as the API server has it."""
    resources = {"limits": {ACK.memory: amount}, "requests": {ACK.memory: amount}}
    return {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "labels": {ACK.card_count: cards}},
        "spec": {"containers": [{"name": "side"}, {"name": "main", "resources": resources}]},
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize(
    ("units", "annotations", "fits"),
    [
        ("16", {CARDS: TWO, AGENT: "ready"}, True),
        ("16", {CARDS: TWO}, True),
        ("16", {}, True),
        ("16", {CARDS: TWO, AGENT: "stopping"}, False),
        ("0", {CARDS: TWO, AGENT: "ready"}, False),
        (None, {CARDS: TWO, AGENT: "ready"}, False),
        ("8", {CARDS: TWO, AGENT: "ready"}, True),
    ],
)
def test_nothing_is_bound_to_a_node_whose_agent_is_not_there(units, annotations, fits):
    """It says so itself, or the kubelet has lost its plugin and offers nothing of cards that have names."""
    cache = SchedulerCache()
    cache.set_node(node_of(wire(units, annotations)))
    asked = pod_of(asks("4"))

    found = cache.filter(asked, ["n"], 0.0)

    assert fits == bool(found.fit)
    assert fits == (not found.unresolvable)


@pytest.mark.parametrize("mode", ["share", "cgpu", "core_mem", "default", "mig", "none"])
def test_only_modes_that_share_memory_take_a_pod_that_asks_for_memory(mode):
    """Share-only nodes too; compute nodes are kept for pods that ask for compute."""
    cache = SchedulerCache()
    cache.set_node(node_of(wire("16", {CARDS: TWO}, mode)))

    assert (mode in {"share", "cgpu"}) == bool(cache.filter(pod_of(asks("4")), ["n"], 0.0).fit)


def test_a_pod_with_the_vendors_record_alone_holds_its_cards():
    """Records by card index, from another scheduler or from before ours."""
    there = node_of(wire("16", {CARDS: TWO}))
    pod = asks("8", "2")
    pod["metadata"]["annotations"] = {ACK.allocation_annotation: json.dumps({"1": {"0": 4, "1": 4}})}
    pod["spec"]["nodeName"] = "n"
    cache = SchedulerCache()
    cache.set_node(there)
    cache.set_pod(pod_of(pod, {"n": there}))

    assert [4, 4] == [one.used for one in cache.inspect("n")[0].cards]


def test_inspection_names_cards_and_holders():
    """Totals and parts in units, reservations among them, of one node or of all."""
    cache = SchedulerCache()
    cache.set_node(node_of(wire("16", {CARDS: TWO})))
    cache.set_pod(bound(pod_of(asks("4")), at("n", 1)))

    (found,) = cache.inspect()

    assert (16, 4) == (found.total, found.used)
    assert [("GPU-n-0", 0, 8, ()), ("GPU-n-1", 1, 8, ("p",))] == [
        (c.uuid, c.index, c.total, tuple(part.name for part in c.pods)) for c in found.cards
    ]
    assert [] == cache.inspect("who?")
    assert gib(4) == cache._capacity.held["u"].request.card_bytes
