# SPDX-License-Identifier: Apache-2.0
"""More used than promised: from beginning to end, with its peak, and only where somebody can tell."""

from __future__ import annotations

import pytest
from support.breach_watch import Watch, using
from support.node_facts import GIB, Node, region, uuid

from exporter.pipeline.breach_log import BreachKind


def test_every_kind_is_counted_from_the_start():
    """A counter that appears with its first breach would hide it from increase()."""
    watch = Watch().see(Node())

    assert dict.fromkeys(BreachKind, 0) == dict(watch.judged.reading.breach_counts)
    assert {} == watch.going()


def test_over_limit_has_a_duration():
    """Time between two samples counts where both are over the promise."""
    watch = Watch().see(using(4)).see(using(6), times=4).see(using(4))

    assert (6.0, 1, 6 * GIB) == (watch.one.over_limit_seconds, watch.one.over_limit_episodes, watch.one.peak_bytes)
    assert ({"over_limit": 1}, []) == (watch.counts, watch.open)
    (breach,) = watch.state.breaches.ring.values()
    assert (False, 6.0, 6 * GIB, 5 * GIB) == (
        breach.open,
        breach.seconds,
        breach.peak_bytes,
        breach.finding.allocated_bytes,
    )
    assert "the container uses 6 GiB of the card; promised: 5 GiB" == breach.finding.text


def test_over_limit_has_hysteresis():
    """A hair over the promise begins nothing; once begun, it lasts until the promise is kept again."""
    hair = 5 + 10 / 1024
    assert {} == Watch().see(using(hair), times=3).counts

    watch = Watch().see(using(6)).see(using(hair), times=2)

    assert (["over_limit"], 4.0) == (watch.open, watch.one.over_limit_seconds)
    assert [] == watch.see(using(5)).open
    assert 2 == watch.see(using(6)).one.over_limit_episodes


def test_a_breach_keeps_its_peak():
    """The most that was used, not the latest."""
    (breach,) = Watch().see(using(9)).see(using(7), times=2).state.breaches.ring.values()

    assert (9 * GIB, 7 * GIB) == (breach.peak_bytes, breach.finding.used_bytes)


def test_the_slack_is_one_percent_but_no_more_than_64_mib():
    """A large promise does not hide a large breach."""
    node = Node(agent=True).pod_hold("a", gib=14).process(1, 14 + 65 / 1024, pod="a")

    assert {"over_limit": 1} == Watch().see(node).counts


def test_a_sample_that_fails_ends_nothing_and_counts_nothing():
    """While NVML is away, nobody knows: the breach stays open and its time stands still."""
    blind = using(6)
    blind.machine_ok = False
    watch = Watch().see(using(6), times=2).see(blind, times=5)

    assert (["over_limit"], 2.0) == (watch.open, watch.one.over_limit_seconds)
    assert (4.0, {"over_limit": 1}) == (watch.see(using(6), times=2).one.over_limit_seconds, watch.counts)


def test_an_exporter_that_slept_counts_nothing_for_it():
    """A suspended machine's hours are nobody's breach."""
    watch = Watch().see(using(6)).see(using(6), after=3600.0)

    assert 0.0 == watch.one.over_limit_seconds


def test_a_breach_ends_with_its_container():
    """The pod is gone: what it did is over."""
    watch = Watch().see(using(6), times=2).see(Node(agent=True))

    assert ([], {"over_limit": 1}) == (watch.open, watch.counts)


@pytest.mark.parametrize("failed", ["promises_ok", "kubelet_ok"])
def test_a_breach_does_not_end_with_a_source(failed):
    """Without every source of promises nobody can say that it is over."""
    node = using(6)
    watch = Watch().see(node)
    setattr(node, failed, False)

    assert ["over_limit"] == watch.see(node).open


def test_a_peak_between_samples_is_an_episode():
    """The driver's account shows 6 GiB that no sample saw: counted once, dated, and labelled accounting."""
    node = using(3).card(peaks={1: 6 * GIB})
    watch = Watch().see(using(3)).see(node, times=3)

    assert (1, 0.0, 6 * GIB, "accounting") == (
        watch.one.over_limit_episodes,
        watch.one.over_limit_seconds,
        watch.one.peak_bytes,
        watch.one.peak_source,
    )
    (breach,) = watch.state.breaches.ring.values()
    assert ("accounting", False, "the container used 6 GiB of the card; promised: 5 GiB") == (
        breach.finding.source,
        breach.open,
        breach.finding.text,
    )


def test_a_peak_that_was_seen_is_not_counted_again():
    """The account keeps the maximum after the breach has ended; that is no second one."""
    watch = Watch().see(using(6).card(peaks={1: 6 * GIB}), times=2).see(using(3).card(peaks={1: 6 * GIB}), times=3)

    assert (1, {"over_limit": 1}) == (watch.one.over_limit_episodes, watch.counts)


def test_the_librarys_word_makes_nobody_over():
    """Without host PIDs the used figure is the tenant's own: no judgement from outside."""
    node = Node(agent=True, host_pids=False).pod_hold("a", gib=5, reading=region(used=9 * GIB))

    assert ({}, "library") == ((watch := Watch().see(node, times=3)).counts, watch.one.source)


def test_time_slices_cannot_be_over():
    """No memory was promised, so none is too much."""
    node = Node().container("a").grant("a", [f"{uuid()}::0"]).process(1, 12, pod="a")

    assert {} == Watch().see(node, times=3).counts
