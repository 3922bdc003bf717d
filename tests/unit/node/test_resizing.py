# SPDX-License-Identifier: Apache-2.0
"""What the node says of resized pods, and offers its kubelet, from the change of a record to the pod's end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isolation.contract.codec import Allocation
from isolation.contract.model import Applied, Part, Resize, Slice
from isolation.contract.quantity import GIB
from isolation.node.allocations import Allocations
from isolation.node.bound import Bound
from isolation.node.core.units import Device
from isolation.node.resizing import GONE_SECONDS, SEEN_SECONDS, Resizing

UNITS = 16


class Node:
    """A node of one card, a clock, and the kubelet's latest count."""

    def __init__(self):
        self.pods, self.now, self.counted = {}, 0.0, UNITS
        self.resizing = Resizing(self, Allocations(None), lambda: self.counted, lambda _: {}, lambda: self.now)
        self.said = {}

    def resized(self):
        """See `ResizedPods`."""
        return tuple(self.pods.values())

    def tick(self, *, heard=True):
        """As the agent does it; `heard`: its report reaches the API server. Units that it offers."""
        self.resizing.seed(self.said)
        count = UNITS + self.resizing.extra()[0] // GIB
        self.resizing.offered([Device(f"1GiB-{at}", healthy=True) for at in range(count)], count)
        reported = self.resizing.report().applied
        if heard:
            self.said = dict(reported)
        self.now += SEEN_SECONDS
        return count


@pytest.fixture
def node():
    """A node with one pod that requests 4 GiB and has grown to 7."""
    made = Node()
    held = (Slice("GPU-0", 0, 7 * GIB),)
    resize = Resize(1, 7 * GIB, 0, (Part("main", held),))
    record = Allocation(promise="a", slices=held, parts=resize.parts, requested=(4 * GIB, 0), resize=resize)
    made.pods["a"] = Bound("a", "a", "default", (), record)
    return made


def test_units_are_withdrawn_once_the_node_names_the_pod(node):
    """Else nobody could know why the kubelet counts fewer, if the pod ended now."""
    assert node.tick(heard=False) == node.tick() == UNITS
    assert "a" in node.said
    assert not node.resizing.may_grow(node.pods["a"])
    assert UNITS - 3 == node.tick()
    node.counted = UNITS - 3
    assert node.resizing.may_grow(node.pods["a"])
    node.tick()
    assert {"a": Applied(1)} == node.said


def test_a_pod_that_is_gone_is_named_until_the_kubelet_counts_without_it(node):
    """Offered is not counted."""
    for _ in range(3):
        node.tick()
    node.pods.clear()
    assert UNITS == node.tick()
    node.counted = UNITS - 3
    node.tick()
    assert "a" in node.said
    node.counted = UNITS
    node.tick()
    assert {} == node.said


def test_an_entry_does_not_stay_for_ever(node):
    """A kubelet that counts something else keeps nobody off the node for long."""
    for _ in range(3):
        node.tick()
    node.pods.clear()
    node.counted = 5
    for _ in range(int(GONE_SECONDS / SEEN_SECONDS) + 2):
        node.tick()
    assert {} == node.said


def test_a_new_agent_goes_on_where_the_old_one_ended(node):
    """What is withdrawn stays so: the node's object names the pod."""
    node.said = {"a": Applied(1)}
    assert UNITS - 3 == node.tick()
    smaller = node.pods["a"].allocation
    node.pods["a"] = replace(node.pods["a"], allocation=replace(smaller, resize=None))
    assert UNITS == node.tick()
