# SPDX-License-Identifier: Apache-2.0
"""Denied allocations: the library's word, what of it is news, and what goes on."""

from __future__ import annotations

import pytest
from support.breach_watch import Watch, using
from support.node_facts import GIB, Node, region

from exporter.pipeline.breach_detector import LINGER_SECONDS
from isolation.contract.abi import Breach as Reported
from isolation.contract.breach_ring import BreachRecord


def denying(denied, *records):
    """An isolated pod whose library refused so many allocations."""
    reading = region(denied=denied, slots=[1], breaches=records)
    return Node(agent=True).pod_hold("a", reading=reading).process(1, 1, pod="a")


def test_denied_allocations_are_the_librarys_word():
    """One breach while they come again within a minute, with the largest request; the counter is the library's."""
    record = BreachRecord(1, 0, Reported.DENIED, 0, 1, 7 * GIB, GIB, 5 * GIB, 0)
    watch = Watch().see(Node(agent=True)).see(denying(2)).see(denying(5, record)).see(denying(5), times=3)

    assert (5, {"denied": 1}, ["denied"]) == (watch.one.denied, watch.counts, watch.open)
    (breach,) = watch.state.breaches.ring.values()
    assert ("library", 5) == (breach.finding.source, breach.times)
    assert [] == watch.see(denying(5), after=30.0, times=3).open
    assert "the largest of 7 GiB" in Watch().see(denying(0)).see(denying(1, record)).begun[0].finding.text


def test_what_was_denied_before_the_exporter_began():
    """It is in the counter and is no news."""
    watch = Watch().see(denying(9), times=2)

    assert (9, {}) == (watch.one.denied, watch.counts)


def test_what_was_denied_before_the_exporter_came_to_look():
    """Of a container that was not there a moment ago everything is news, also what was denied before its first look."""
    watch = Watch().see(Node(agent=True)).see(denying(3), times=2)

    assert (3, {"denied": 1}, [3]) == (watch.one.denied, watch.counts, [b.times for b in watch.begun])


@pytest.mark.parametrize("failed", ["promises_ok", "kubelet_ok"])
def test_what_was_denied_while_nobody_could_look(failed):
    """A container may have been there all the time where a source of promises has never answered: no news."""
    blind = denying(9)
    setattr(blind, failed, False)
    blind.holds = []

    watch = Watch().see(blind, times=3).see(denying(9), times=2)

    assert (9, {}) == (watch.one.denied, watch.counts)
    assert {"denied": 1} == watch.see(denying(10)).counts


def test_what_was_denied_when_it_is_forgotten_who_was_there():
    """A container that comes back after longer than anything is remembered is not new."""
    blind = Node(agent=True, promises_ok=False)
    watch = Watch().see(denying(9)).see(blind, after=LINGER_SECONDS / 2, times=3).see(denying(9))

    assert (9, {}) == (watch.one.denied, watch.counts)


def test_breaches_that_go_on_are_told_by_kind_and_card():
    """On the card on which they go on, and for as long."""
    watch = Watch().see(Node(2, agent=True).pod_hold("a", gib=5).process(1, 6, pod="a").process(2, 1, index=1), times=2)

    assert ({"over_limit": 1}, {"unallocated": 1}) == (watch.going(0), watch.going(1))
    assert ({}, {}) == (watch.see(Node(2, agent=True)).going(0), watch.going(1))


def test_that_nothing_goes_on_is_said_where_it_would_be_seen():
    """Where nobody can see whose a process is, 0 would be a guess; a breach that went on is told on."""
    hidden = using(6, seen=False)
    hidden.host_pids = False

    (card,) = Watch().see(hidden, times=2).judged.reading.cards
    assert (("denied", 0), ("unreadable_region", 0), ("wrong_limits", 0)) == card.breaches
    assert {"over_limit": 1} == Watch().see(using(6)).see(hidden).going()


def test_a_counter_that_a_tenant_sets_back():
    """The tenant's own number may fall; that is no breach and no error."""
    watch = Watch().see(denying(9)).see(denying(2)).see(denying(3))

    assert (3, {"denied": 1}, [1]) == (watch.one.denied, watch.counts, [b.times for b in watch.begun])
