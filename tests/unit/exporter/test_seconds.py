# SPDX-License-Identifier: Apache-2.0
"""Seconds of compute: whose they are, whatever is lost in between, and counters that never fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.breach_watch import Watch
from support.node_facts import Node

from exporter.pipeline.counters import KEPT_PAGES, Counters
from exporter.pipeline.families import container_families
from isolation.contract.metrics import CONTAINER_COMPUTE_SECONDS


def node(totals, **more):
    """Two pods with a process each, whose totals are these."""
    made = Node(agent=True).pod_hold("a").pod_hold("b").process(1, 1, pod="a").process(2, 1, pod="b")
    return made.card(busy={}, compute_seconds=totals, **more)


def seconds_of(watch):
    """{pod: seconds}."""
    return {one.pod: one.compute_seconds for one in watch.judged.reading.containers}


def test_what_a_total_grew_by_goes_to_its_container():
    """And to nobody else."""
    watch = Watch().see(node({1: 1.0})).see(node({1: 3.0, 2: 0.5}))

    assert {"a": 3.0, "b": 0.5} == seconds_of(watch)


def test_a_reading_that_is_lost_loses_nothing():
    """The kernel is not read for a while: nothing is reported, and then all of it."""
    blind = node({1: 6.0})
    blind.kernel_ok = False
    watch = Watch().see(node({1: 1.0})).see(blind, times=3)
    assert {"a": None, "b": None} == seconds_of(watch)

    assert {"a": 9.0, "b": 0.0} == seconds_of(watch.see(node({1: 9.0})))


def test_a_total_that_begins_again_counts_from_there():
    """NVML was away for long: its samples of then are nobody's, those since are."""
    assert {"a": 7.0, "b": 0.0} == seconds_of(Watch().see(node({1: 5.0})).see(node({})).see(node({1: 2.0})))


def test_a_whole_card_whose_processes_are_not_reported_goes_by_the_card():
    """MIG, a sandbox: the container that has all of it has all that it does."""
    made = Node().container("a").grant("a", [card_uuid()])
    watch = Watch()
    for total in (4.0, 5.5):
        watch.see(made.card(busy=None, compute_seconds=None, busy_seconds=total, utilisation_ratio=0.1))

    assert {"a": pytest.approx(5.5)} == seconds_of(watch)


def card_uuid():
    """Of the only card."""
    return Node().snapshot().machine.value.cards[0].uuid


class Pages:
    """The page of a node, again and again."""

    def __init__(self):
        self.counters, self.watch = Counters(), Watch()

    def shown(self, made):
        """The series by pod, after one more reading."""
        self.watch.see(made)
        self.counters.turn()
        families = container_families([self.watch.judged.reading], self.counters)
        (family,) = (one for one in families if one.spec is CONTAINER_COMPUTE_SECONDS)
        return {labels[1]: value for labels, value in family.samples}


def two(old, new):
    """A pod of a name and its successor; None: it is not there."""
    made = Node(agent=True)
    totals = {}
    for uid, pid, total in (("old", 1, old), ("new", 2, new)):
        if total is not None:
            made.pod_hold("db-0", pod_uid=uid).process(pid, 1, pod="db-0", pod_uid=uid)
            totals[pid] = total
    return made.card(busy={}, compute_seconds=totals)


def test_a_pod_that_is_replaced_by_one_of_its_name_never_makes_the_counter_fall():
    """Both for a while, then the new one alone: what both computed, and never twice."""
    pages = Pages()
    found = [pages.shown(two(*totals)) for totals in [(10, None), (20, 0), (21, 5), (None, 6), (None, 9)]]

    assert [10, 20, 26, 27, 30] == [one["db-0"] for one in found]


@given(st.lists(st.tuples(*[st.one_of(st.none(), st.floats(0, 100))] * 2), min_size=1, max_size=20))
def test_no_story_makes_a_counter_fall(story):
    """Whatever the totals of two pods of one name do."""
    pages, last = Pages(), 0.0
    for totals in story:
        now = pages.shown(two(*totals)).get("db-0", last)
        assert now >= last - 1e-9
        last = now


def test_series_that_are_gone_are_forgotten():
    """Ten thousand pods leave nothing behind."""
    counters = Counters()
    spec = CONTAINER_COMPUTE_SECONDS
    for number in range(2 * KEPT_PAGES):
        counters.turn()
        counters.family(spec, [(("ml", f"p{number}"), ("promise", "uid"), 1.0)])
    assert KEPT_PAGES + 2 >= len(counters._lines[spec.name])
