# SPDX-License-Identifier: Apache-2.0
"""Compute of containers where a driver's sample has the whole card's busy time under anybody's name."""

from __future__ import annotations

import random

import pytest
from support.breach_watch import Watch
from support.node_facts import Node, region, uuid

from exporter.pipeline.busy_time import BusyMeter, BusySample

PERIOD = 200_000


@pytest.mark.parametrize(("apart", "shared"), [(False, True), (True, False)])
def test_the_meter_knows_whether_samples_tell_processes_apart(apart, shared):
    """By their names: of one moment where each process has its own, never two at once else."""
    meter = BusyMeter(0)
    for at in range(1, 20):
        pids = (1, 2) if apart else (at % 2 + 1,)
        meter.add([BusySample(pid, at * PERIOD, 50) for pid in pids], at * PERIOD + 1)
    assert meter.is_shared is shared


def test_one_process_alone_has_its_samples_for_itself():
    """Nobody else is named."""
    meter = BusyMeter(0)
    for at in range(1, 20):
        meter.add([BusySample(1, at * PERIOD, 50)], at * PERIOD + 1)
    assert not meter.is_shared


def test_samples_a_moment_apart_are_of_one_period():
    """A driver may stamp each process by itself."""
    meter, draw = BusyMeter(0), random.Random(1)  # noqa: S311 (a draw, not a secret)
    for at in range(1, 20):
        both = [BusySample(pid, at * PERIOD + draw.randint(0, 9_000), 50) for pid in (1, 2)]
        meter.add(both, at * PERIOD + 10_000)
    assert not meter.is_shared


def node(events, busy_seconds, *, shared=True):
    """Two pods on a card, of which the first did it all, as the driver says. `events`: seconds by their libraries."""
    made = Node(agent=True)
    for pid, (pod, seconds) in enumerate(events.items(), 1):
        reading = None if seconds is None else region(event_ns=int(seconds * 1e9))
        made = made.pod_hold(pod, reading=reading).process(pid, 1, pod=pod)
    busy = {1: 0.93, 2: 0.06}
    return made.card(busy=busy, compute_seconds={1: 9.0, 2: 1.0}, busy_seconds=busy_seconds, samples_shared=shared)


def shown(watch):
    """(ratio, source, seconds) by pod."""
    return {
        one.pod: (one.used_core_ratio, one.core_source, one.compute_seconds) for one in watch.judged.reading.containers
    }


def test_the_busy_time_is_divided_by_what_the_libraries_count():
    """Two seconds in which the card was busy; the events of both count the turns of the other, a quarter each."""
    watch = Watch().see(node({"a": 10.0, "b": 20.0}, 100.0))
    assert {"a": (None, "", None), "b": (None, "", None)} == shown(watch), "nothing is known yet"
    watch.see(node({"a": 11.0, "b": 22.0}, 102.0))
    found = shown(watch)
    assert (pytest.approx((0.25, 0.5)), pytest.approx((0.75, 1.5))) == tuple(
        (found[pod][0], found[pod][2]) for pod in ("a", "b")
    )
    assert {"library"} == {source for _, source, _ in found.values()}


def test_who_has_no_library_has_no_figure():
    """Not 0, and not the driver's guess."""
    watch = Watch().see(node({"a": 10.0, "b": None}, 100.0)).see(node({"a": 11.0, "b": None}, 102.0))
    found = shown(watch)
    assert (None, "") == found["b"][:2]
    assert pytest.approx(0.5) == found["a"][0]


def test_a_new_container_has_no_figure_before_its_second_sample():
    """Not 0: what it did before it was seen first is unknown."""
    watch = Watch().see(node({"a": 10.0}, 100.0)).see(node({"a": 11.0, "b": 5.0}, 102.0))
    found = shown(watch)
    assert (pytest.approx(0.5), (None, "", None)) == (found["a"][0], found["b"])


@pytest.mark.parametrize("busy_seconds", [None, 50.0])
def test_a_card_whose_busy_time_is_lost_gives_no_figures(busy_seconds):
    """Unknown, or begun again: neither the driver's guess nor 0."""
    watch = Watch().see(node({"a": 10.0, "b": 20.0}, 100.0)).see(node({"a": 11.0, "b": 22.0}, busy_seconds))
    assert {"a": (None, ""), "b": (None, "")} == {pod: figures[:2] for pod, figures in shown(watch).items()}


def test_who_has_a_card_for_itself_has_all_that_it_does():
    """Whoever of its processes is named, and without a library."""
    made = Node().container("a").grant("a", [uuid()]).process(1, 1, pod="a").process(2, 1, pod="a")
    facts = {"busy": {1: 0.93, 2: 0.06}, "samples_shared": True, "utilisation_ratio": 0.8}
    watch = Watch().see(made.card(busy_seconds=0.0, **facts)).see(made.card(busy_seconds=1.5, **facts))
    assert (0.8, "allocation", pytest.approx(1.5)) == shown(watch)["a"]


def test_where_samples_tell_processes_apart_they_are_believed():
    """As before."""
    watch = Watch().see(node({"a": 10.0, "b": 20.0}, 100.0, shared=False))
    assert {"nvml"} == {source for _, source, _ in shown(watch).values()}
