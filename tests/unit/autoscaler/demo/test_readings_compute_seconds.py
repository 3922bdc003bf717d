# SPDX-License-Identifier: Apache-2.0
"""Compute of the embedded cluster as counters: what a Prometheus beside `gpushare up` computes rates from."""

from __future__ import annotations

from dataclasses import replace

from support.frames import card, frame, node, use

from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.node_pools import demo_fleet, demo_limits
from autoscaler.demo.embedded.readings import ComputeSeconds
from autoscaler.demo.embedded.workload import demo_workload


def of(ratio, *, promise="a"):
    """A fleet of one card with one container, both at this ratio."""
    one = replace(use("a", gib=4, used=1), promise=promise, used_core_ratio=ratio)
    return frame(nodes=[node(cards=[replace(card(uses=[one]), utilisation_ratio=ratio)], uses=[one])])


def seconds_of(shown):
    """(busy seconds of the card, compute seconds of the container)."""
    (only,) = shown.nodes
    return only.cards[0].busy_seconds, only.containers[0].compute_seconds


def test_seconds_are_ratios_over_real_time():
    """They begin at 0 and never fall; a clock that goes back adds nothing."""
    seconds = ComputeSeconds()
    shown = [
        seconds_of(seconds.add(of(ratio), at))
        for ratio, at in ((0.5, 100.0), (0.5, 104.0), (0.25, 108.0), (1.0, 107.0))
    ]
    assert [(each, each) for each in (0.0, 2.0, 3.0, 3.0)] == shown


def test_what_is_unknown_has_no_counter_and_another_promise_one_of_its_own():
    """Cannot tell is absent; a replaced pod does not inherit."""
    seconds = ComputeSeconds()
    assert (None, None) == seconds_of(seconds.add(of(None), 0.0))
    seconds.add(of(1.0), 1.0)
    assert (9.0, 9.0) == seconds_of(seconds.add(of(1.0), 10.0))
    assert (10.0, 0.0) == seconds_of(seconds.add(of(1.0, promise="b"), 11.0))


def test_rates_of_the_demo_are_parts_of_a_card():
    """However fast the simulated clock runs, a second of the real one has no more than a second of each card."""
    world, seconds = EmbeddedCluster(demo_fleet(), demo_workload(42), seed=42, limits=demo_limits()), ComputeSeconds()
    for second in range(30):
        shown = seconds.add(world.frame(), float(second))
        world.advance(60.0)
    cards = [one for each in shown.nodes for one in each.cards]
    assert any(one.busy_seconds for one in cards)
    assert all(0.0 <= one.busy_seconds <= 29.0 for one in cards)
    for each in shown.nodes:
        for one in each.cards:
            uses = sum(use.compute_seconds for use in each.containers if use.uuid == one.uuid)
            assert uses <= one.busy_seconds + 1e-6
