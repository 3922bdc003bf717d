# SPDX-License-Identifier: Apache-2.0
"""What is remembered of breaches: the same for each owner, once each, in bounded memory, and as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.breach_watch import EPOCH, Watch, using
from support.budget import examples
from support.node_facts import GIB, MIB, RESERVED, Node, region, uuid

from exporter.pipeline.breach_detector import LINGER_SECONDS, MAX_GONE
from exporter.pipeline.breach_log import (
    MAX_OPEN,
    ONE_OWNER,
    RING,
    BreachFinding,
    BreachKind,
    BreachLog,
    to_json,
    update_breach_log,
)
from exporter.pipeline.snapshot import RegionSample
from isolation.contract.abi import Breach as Reported
from isolation.contract.breach_ring import BreachRecord


def test_counters_outlive_a_gap():
    """A container that cannot be seen for a minute goes on counting where it stopped."""
    watch = Watch().see(using(6), times=3).see(Node(agent=True), times=30).see(using(6), times=2)

    assert (6.0, 2) == (watch.one.over_limit_seconds, watch.one.over_limit_episodes)


def test_a_successor_of_the_same_name_starts_over():
    """The old pod's time is not the new pod's."""
    old = Node(agent=True).pod_hold("db-0", pod_uid="one", gib=1).process(1, 3, pod="db-0", pod_uid="one")
    new = Node(agent=True).pod_hold("db-0", pod_uid="two", gib=5).process(1, 3, pod="db-0", pod_uid="two")

    watch = Watch().see(old, times=4).see(new, times=2)

    assert ("two", 0.0, 3 * GIB) == (watch.one.pod_uid, watch.one.over_limit_seconds, watch.one.peak_bytes)


def test_ten_thousand_pods_leave_nothing_behind():
    """Pods come and go for hours; what is remembered is what lives, plus ten minutes, and never more than a bound."""
    watch, largest = Watch(), 0
    for number in range(1000):
        node = Node(agent=True)
        for part in range(10):
            pod = f"p{number}-{part}"
            node.pod_hold(pod, gib=1).process(part + 1, 2, pod=pod)
        watch.see(node, after=8.0)
        largest = max(largest, len(watch.state.histories))

    assert largest <= 10 * (LINGER_SECONDS / 8 + 1)
    assert RING == len(watch.state.breaches.ring)
    assert ({"over_limit": 10_000}, 10) == (watch.counts, len(watch.state.breaches.open))
    watch.see(Node(agent=True), after=LINGER_SECONDS + 1)
    assert (0, 0) == (len(watch.state.histories), len(watch.state.breaches.open))


def test_one_record_is_small():
    """However many processes there are, and however long a reason is, a record names so much and no more."""
    crowd = Node(agent=True).pod_hold("a", reading=RegionSample(None, error="torn " * 9000)).container("x")
    for pid in range(300):
        crowd.process(1000 + pid, 0.01, pod="x")
    watch = Watch().see(crowd, times=2)

    assert {"unreadable_region": 1, "unallocated": 1} == watch.counts
    assert len(to_json(watch.state.breaches, "n")) < 2500
    assert "300 processes" in to_json(watch.state.breaches, "n")


def test_cards_that_are_divided_again_leave_nothing_behind():
    """MIG instances of yesterday have no meter."""
    watch = Watch()
    for number in range(100):
        watch.see(Node().card(uuid=f"MIG-{number}"), after=30.0)

    assert len(watch.state.meters) <= LINGER_SECONDS / 30 + 1


def test_a_burst_of_pods_is_bounded():
    """However fast they come, only so many of the gone are remembered."""
    watch = Watch()
    for number in range(3):
        node = Node(agent=True)
        for part in range(600):
            node.pod_hold(f"p{number}-{part}", gib=1)
        watch.see(node, after=0.1)

    assert 600 + MAX_GONE == len(watch.state.histories)


def test_one_owner_cannot_flood_the_ring():
    """A tenant that goes over and back for ever leaves a few records, and everybody else's stay."""
    quiet = Node(2, agent=True).pod_hold("a", gib=5).pod_hold("b", index=1).process(9, 7, index=1, pod="b")
    loud = Node(2, agent=True).pod_hold("a", gib=5).pod_hold("b", index=1).process(9, 7, index=1, pod="b")
    loud.process(1, 6, pod="a")
    watch = Watch()
    for _ in range(500):
        watch.see(loud).see(quiet)

    owners = [breach.finding.pod for breach in watch.state.breaches.ring.values()]
    assert (ONE_OWNER, 1) == (owners.count("a"), owners.count("b"))
    assert {"over_limit": 501} == watch.counts


def test_breaches_as_json():
    """The latest first, with who, where, since when, how long, how much, and whose word it is."""
    watch = Watch().see(using(6), times=3)

    page = json.loads(to_json(watch.state.breaches, "n-0"))

    assert (1, "n-0", 1) == (page["version"], page["node"], page["totals"]["over_limit"])
    (record,) = page["breaches"]
    assert {
        "kind": "over_limit",
        "source": "nvml",
        "uuid": uuid(),
        "card": 0,
        "namespace": "team",
        "pod": "a",
        "container": "main",
        "promise": "p-uid-a-main",
        "open": True,
        "started": EPOCH + 102.0,
        "last_seen": EPOCH + 106.0,
        "seconds": 4.0,
        "used_bytes": 6 * GIB,
        "allocated_bytes": 5 * GIB,
        "peak_bytes": 6 * GIB,
        "count": 1,
    }.items() <= record.items()


def finding(name, kind=BreachKind.OVER_LIMIT, **more):
    """A finding about somebody."""
    return BreachFinding(kind, uuid(), 0, "team", name, "main", "p", "nvml", "text", **more)


FINDINGS = st.lists(
    st.tuples(st.sets(st.tuples(st.sampled_from("abc"), st.sampled_from(list(BreachKind)))), st.booleans()), max_size=12
)


@settings(max_examples=examples(50), deadline=None)
@given(FINDINGS)
def test_counts_are_beginnings(turns):
    """Each kind's count is the number of its records begun, and an open record is always that of a finding."""
    state, begun = BreachLog(), []
    for at, (present, unsure) in enumerate(turns):
        found = {one.key: one for one in (finding(name, kind) for name, kind in present)}
        open_before = set(state.open)
        state, fresh = update_breach_log(state, found, lambda _, unsure=unsure: unsure, EPOCH + at)
        begun += fresh
        assert set(state.open) <= set(found) | (open_before if unsure else set())
        assert open_before & set(found) <= set(state.open)
        assert not set(state.open) & set(state.waiting)
    assert {kind: sum(b.finding.kind == kind for b in begun) for kind in BreachKind} == state.counts
    assert [b.number for b in begun] == list(range(1, len(begun) + 1))
    assert {b.number for b in state.ring.values() if b.open} <= {b.number for b in state.open.values()}


def test_so_many_at_once_and_no_more():
    """A node full of breaches is followed up to a bound."""
    found = {one.key: one for one in (finding(f"p{n}") for n in range(MAX_OPEN + 50))}

    state, _ = update_breach_log(BreachLog(), found, lambda _: False, EPOCH)

    assert (MAX_OPEN, RING) == (len(state.open), len(state.ring))


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 2**40))
def test_a_tenant_writes_about_itself_only(denied, pids, amount):
    """Whatever a region says, the neighbour's figures, counters and breaches stay as they are."""

    def node(reading):
        made = Node(agent=True).pod_hold("mallory", reading=reading).process(1, 1, pod="mallory")
        return made.pod_hold("b", gib=1, reading=region(slots=[2])).process(2, 3, pod="b")

    honest = Watch().see(node(region(slots=[1])), times=4)
    forged = Watch().see(node(region(slots=[1])))
    record = BreachRecord(1, 0, Reported.DENIED, 0, 1, amount, amount, amount, 0)
    forged.see(node(region(used=amount, denied=denied, slots=pids, breaches=[record])), times=3)

    def of_b(watch):
        mine = [b for b in watch.state.breaches.ring.values() if b.finding.pod == "b"]
        return [one for one in watch.judged.reading.containers if one.pod == "b"], [replace(b, number=0) for b in mine]

    assert of_b(honest) == of_b(forged)
    assert len(to_json(forged.state.breaches, "n")) < 10_000


def test_state_is_small():
    """A thousand containers are remembered in little memory."""
    node = Node(agent=True)
    for part in range(1000):
        node.pod_hold(f"p{part}", gib=1)
    watch = Watch().see(node, times=2)

    assert sum(sys.getsizeof(track) for track in watch.state.histories.values()) < MIB
    assert RESERVED == watch.judged.reading.cards[0].used_bytes
