# SPDX-License-Identifier: Apache-2.0
"""What is unknown is absent: sources, owners, figures and cards that fail are never a 0."""

from __future__ import annotations

import pytest
from support.attributed import look, used, values
from support.node_facts import GIB, RESERVED, Node, region, uuid


@pytest.mark.parametrize(
    ("failed", "stays"),
    [("machine_ok", None), ("kernel_ok", "allocated"), ("promises_ok", None), ("kubelet_ok", "used")],
)
def test_failure_is_absence(failed, stays):
    """A failed source takes away what it would have told, and puts no 0 and no other source in its place."""
    node = Node(agent=True, **{failed: False}).pod_hold("a", reading=region(used=GIB)).process(1, 2, pod="a")

    found = values(look(node))

    allocated, shown = found["container_memory_allocated_bytes"], found["container_memory_used_bytes"]
    assert (stays is not None or failed == "machine_ok") == bool(allocated)
    assert (stays == "used") == bool(shown)
    assert {} == (found["card_memory_unattributed_bytes"] if failed in {"machine_ok", "kernel_ok"} else {})
    if failed in {"promises_ok", "kubelet_ok"}:
        assert {} == found["card_memory_allocated_bytes"] == found["card_memory_largest_free_bytes"]
        assert 1 == len(found["card_memory_used_bytes"])


@pytest.mark.parametrize("kubernetes", [True, False])
def test_without_the_allocation_store_nothing_is_unallocated(kubernetes):
    """A process may be of a promise that we could not read: unattributed is unknown."""
    node = Node(promises_ok=False, kubernetes=kubernetes).process(1, 2)

    assert None is look(node).reading.cards[0].unattributed_bytes


def test_who_has_a_card_is_unknown_without_every_source():
    """Nobody known to have it does not mean that it is free."""
    shown = values(look(Node(kubelet_ok=False)))

    assert {} == shown["card_exclusive"] == shown["card_containers"]
    assert [0.0] == list(values(look(Node()))["card_exclusive"].values())


def test_a_process_whose_owner_is_unknown_is_not_unallocated():
    """Without the kubelet's assignments, a pod's process may be promised its memory: unattributed is unknown."""
    node = Node(kubelet_ok=False).container("a").process(1, 2, pod="a")

    assert None is look(node).reading.cards[0].unattributed_bytes
    assert 2 * GIB == look(Node().container("a").process(1, 2, pod="a")).reading.cards[0].unattributed_bytes


def test_without_the_kubelets_records_a_claim_without_uid_cannot_be_measured():
    """Nobody can say whether the process is the container's: absent, not 0."""
    node = Node(identities_ok=False).container("a").grant("a", [uuid()]).process(1, 2, pod="a").process(2, 1, pod="b")

    found = look(node)

    assert ({"a/main": (None, "")}, None) == (used(found), found.reading.cards[0].unattributed_bytes)


def test_process_lists_that_cannot_be_read():
    """The card's own figures stay; containers' are absent."""
    node = Node(agent=True).pod_hold("a").card(processes=None)

    found = look(node)

    assert ({"a/main": (None, "")}, RESERVED, False) == (
        used(found),
        found.reading.cards[0].used_bytes,
        found.reading.cards[0].attributable,
    )


def test_a_process_without_a_figure():
    """NVML names it and cannot tell its memory: its container's is unknown, the neighbour's is not."""
    node = Node(agent=True).pod_hold("a").pod_hold("b").process(1, None, pod="a").process(2, 1, pod="b")

    assert {"a/main": (None, ""), "b/main": (GIB, "nvml")} == used(look(node))


def test_an_exclusive_process_without_a_figure():
    """Its container has the whole card: the card's figure stands for it, unless a stranger is there too."""
    alone = Node().container("a").grant("a", [uuid()]).process(1, None, pod="a").card(free_bytes=10 * GIB)
    beside = Node().container("a").grant("a", [uuid()]).process(1, None, pod="a").process(2, 1)

    assert {"a/main": (6 * GIB - RESERVED, "allocation")} == used(look(alone))
    assert {"a/main": (None, "")} == used(look(beside))


def test_an_unallocated_process_without_a_figure():
    """What strangers have is unknown if one of them is unknown, never less."""
    node = Node(agent=True).process(1, None).process(2, 1)

    assert None is look(node).reading.cards[0].unattributed_bytes


def test_a_lost_card_beside_a_good_one():
    """The lost card's figures are absent, its allocations stay, the neighbour is untouched."""
    node = Node(2, agent=True).pod_hold("a").pod_hold("b", index=1).process(1, 2, index=1, pod="b")
    node.card(0, lost=True, unhealthy="lost", total_bytes=0, reserved_bytes=None, free_bytes=None, processes=None)

    found = look(node)
    shown = values(found)

    assert {"a/main": (None, ""), "b/main": (2 * GIB, "nvml")} == used(found)
    for metric in ("total", "used", "reserved", "allocatable", "unattributed", "unaccounted", "largest_free"):
        assert ["1"] == [labels[2] for labels in shown[f"card_memory_{metric}_bytes"]]
    assert {"0": 0.0, "1": 1.0} == {labels[2]: value for labels, value in shown["card_healthy"].items()}
    assert {"1": 1.0} == {labels[2]: value for labels, value in shown["card_usage_attributable"].items()}
    assert {"a": 5 * GIB, "b": 5 * GIB} == {k[1]: v for k, v in shown["container_memory_allocated_bytes"].items()}


def test_a_container_with_a_process_of_unknown_memory_is_not_measured_by_the_others():
    """NVML tells the bytes of one of its two processes: what both have is not what one has."""
    node = Node(agent=True).pod_hold("a").pod_hold("b")
    node.process(1, 2, pod="a").process(2, None, pod="a").process(3, 1, pod="b")

    found = used(look(node))

    assert (GIB, "nvml") == found["b/main"]
    assert "nvml" != found["a/main"][1]


def test_what_a_lost_card_was_promised_as_a_whole():
    """Nobody knows its size any more: allocated is absent, not 0."""
    node = Node(2).container("a").grant("a", [uuid(0)]).card(0, lost=True, total_bytes=0, free_bytes=None)

    assert ["1"] == [labels[2] for labels in values(look(node))["card_memory_allocated_bytes"]]


def test_memory_info_without_reserved():
    """An old driver does not tell what it keeps: reserved and remainder are absent, used is not."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(reserved_bytes=None)

    shown = values(look(node))

    assert {} == shown["card_memory_reserved_bytes"] == shown["card_memory_unaccounted_bytes"]
    assert 1 == len(shown["card_memory_used_bytes"])
