"""
Breaches: judged from outside the container, once each from beginning to end, in bounded memory.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_facts import GIB, MIB, RESERVED, Node, hold, region, uuid

from exporter.attribute import Place, attribute
from exporter.breach import LINGER_SECONDS, MOST_GONE, State, judge
from exporter.claims import claimed
from exporter.episodes import MOST_OPEN, ONE_OWNER, RING, BreachKind, Episodes, Finding, follow, to_json
from exporter.facts import RegionFacts
from isolation.contract.abi import Breach as Reported
from isolation.contract.abi import BreachRecord

EPOCH = 1.7e9


class Watch:
    """A node looked at again and again, two seconds apart unless it is said otherwise."""

    def __init__(self):
        self.state, self.now, self.judged, self.begun = State(), 100.0, None, []

    def see(self, node, *, after=2.0, times=1):
        """The next samples; the watch is returned."""
        for _ in range(times):
            self.now += after
            snapshot = node.snapshot()
            found = attribute(snapshot, claimed(snapshot), Place("n-0"))
            self.judged = judge(found, self.state, now=self.now, epoch=EPOCH + self.now)
            self.state = self.judged.state
            self.begun += self.judged.begun
        return self

    @property
    def counts(self):
        """How many breaches of each kind have begun; kinds without any are left out."""
        return {kind: number for kind, number in self.judged.reading.breach_counts if number}

    @property
    def open(self):
        """Kinds of breaches that go on."""
        return sorted(breach.finding.kind for breach in self.state.episodes.open.values())

    def going(self, index=0):
        """How many breaches of which kinds go on on a card, as it is shown."""
        return dict(self.judged.reading.cards[index].breaches)

    @property
    def one(self):
        """The only container."""
        (only,) = self.judged.reading.containers
        return only


def using(gib, **more):
    """A pod with 5 GiB promised that uses so much."""
    return Node(agent=True).pod_hold("a", gib=5).process(1, gib, pod="a", **more)


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
    (breach,) = watch.state.episodes.ring.values()
    assert (False, 6.0, 6 * GIB, 5 * GIB) == (
        breach.open,
        breach.seconds,
        breach.peak_bytes,
        breach.finding.allocated_bytes,
    )
    assert "uses 6 GiB of the card, 5 GiB are promised" == breach.finding.text


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
    (breach,) = Watch().see(using(9)).see(using(7), times=2).state.episodes.ring.values()

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
    (breach,) = watch.state.episodes.ring.values()
    assert ("accounting", False, "had 6 GiB of the card, 5 GiB are promised") == (
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


def denying(denied, *records):
    """An isolated pod whose library refused so many allocations."""
    reading = region(denied=denied, slots=[1], breaches=records)
    return Node(agent=True).pod_hold("a", reading=reading).process(1, 1, pod="a")


def test_denied_allocations_are_the_librarys_word():
    """One breach while they come again within a minute, with the largest request; the counter is the library's."""
    record = BreachRecord(1, 0, Reported.DENIED, 0, 1, 7 * GIB, GIB, 5 * GIB, 0)
    watch = Watch().see(Node(agent=True)).see(denying(2)).see(denying(5, record)).see(denying(5), times=3)

    assert (5, {"denied": 1}, ["denied"]) == (watch.one.denied, watch.counts, watch.open)
    (breach,) = watch.state.episodes.ring.values()
    assert ("library", 5) == (breach.finding.source, breach.times)
    assert [] == watch.see(denying(5), after=30.0, times=3).open
    assert "the largest for 7 GiB" in Watch().see(denying(0)).see(denying(1, record)).begun[0].finding.text


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

    assert [None] == [card.breaches for card in Watch().see(hidden, times=2).judged.reading.cards]
    assert {"over_limit": 1} == Watch().see(using(6)).see(hidden).going()


def test_a_counter_that_a_tenant_sets_back():
    """The tenant's own number may fall; that is no breach and no error."""
    watch = Watch().see(denying(9)).see(denying(2)).see(denying(3))

    assert (3, {"denied": 1}, [1]) == (watch.one.denied, watch.counts, [b.times for b in watch.begun])


def isolated(*, slots=(), ghost=(), pids=(1,), **more):
    """An isolated pod with processes on the card and slots in its region, by the container's own pids."""
    node = Node(agent=True).pod_hold("a", reading=region(slots=slots, ghost=ghost))
    for pid in pids:
        node.process(100 + pid, 1, pod="a", **({"namespace_pid": pid} | more))
    return node


def test_a_missing_library():
    """Processes are on the card, and no slot was ever taken."""
    watch = Watch().see(isolated()).see(isolated())

    assert ({"missing_library": 1}, (101,)) == (watch.counts, watch.begun[0].finding.pids)


def test_an_idle_container_misses_nothing():
    """Nobody is on the card yet, so nobody needed the library yet."""
    assert {} == Watch().see(isolated(pids=()), times=3).counts


def test_a_breach_stays_open_while_nobody_can_look():
    """The process list fails for a while: neither over nor begun anew."""
    blind = isolated().card(processes=None)
    watch = Watch().see(isolated(), times=2).see(blind, times=3)

    assert ["missing_library"] == watch.open
    assert {"missing_library": 1} == watch.see(isolated(), times=2).counts


def test_a_blind_sample_between_two_findings():
    """What was found before and after is a breach all the same."""
    blind = isolated().card(processes=None)

    assert {"missing_library": 1} == Watch().see(isolated()).see(blind).see(isolated()).counts


def test_behind_an_mps_server_nobody_is_uninstrumented():
    """Which process is whose cannot be told there."""
    node = isolated().process(50, 3, name="nvidia-cuda-mps")

    assert {} == Watch().see(node, times=3).counts


def test_a_process_that_is_starting_is_no_breach():
    """NVML may see it a moment before its slot is taken: one sample alone is no breach."""
    watch = Watch().see(isolated()).see(isolated(slots=[1]), times=3)

    assert {} == watch.counts


def test_an_uninstrumented_process():
    """One process has its slot, its sibling has none: named by pid, and the library is not missing."""
    watch = Watch().see(isolated(slots=[1], pids=(1, 2)), times=3)

    assert ({"uninstrumented": 1}, (102,), GIB) == (
        watch.counts,
        watch.begun[0].finding.pids,
        watch.begun[0].finding.used_bytes,
    )


def test_a_library_that_was_there_before_is_not_missing():
    """After its instrumented process ended, what stays is a process without a slot."""
    watch = Watch().see(isolated(slots=[1])).see(isolated(), times=2)

    assert {"uninstrumented": 1} == watch.counts


def test_a_ghost_is_no_process():
    """A slot of the dead does not vouch for the living."""
    watch = Watch().see(isolated(slots=[1])).see(isolated(slots=[1], ghost=[1]), times=2)

    assert {"uninstrumented": 1} == watch.counts


def test_counted_where_pids_cannot_be_compared():
    """Without the container's own pids there are more processes than slots, and nobody is named."""
    watch = Watch().see(isolated(slots=[77], pids=(1, 2), namespace_pid=None), times=2)

    assert ({"uninstrumented": 1}, ()) == (watch.counts, watch.begun[0].finding.pids)


def test_a_container_that_is_not_isolated_needs_no_library():
    """A promise without enforcement has no region to be in."""
    assert {} == Watch().see(using(3), times=3).counts


def test_an_unreadable_region():
    """Torn once is nothing; twice is a breach that names the reason."""
    node = Node(agent=True).pod_hold("a", reading=RegionFacts(None, error="cut short"))
    watch = Watch().see(node)

    assert {} == watch.counts
    assert {"unreadable_region": 1} == watch.see(node).counts
    assert "cut short" in watch.begun[0].finding.text


def test_limits_that_are_not_what_was_promised():
    """Once is a file that is being written anew; twice is a breach, with the reason, until it says what it should."""
    wrong = Node(agent=True).pod_hold("a", reading=region(), limits_error="limits: other amounts than were promised")
    watch = Watch().see(wrong)

    assert {} == watch.counts
    assert {"wrong_limits": 1} == watch.see(wrong, times=2).counts
    finding = watch.begun[0].finding
    assert ("a", uuid(), "limits") == (finding.pod, finding.uuid, finding.source)
    assert "other amounts" in finding.text
    assert ["wrong_limits"] == watch.open
    right = Node(agent=True).pod_hold("a", reading=region())
    assert ([], {"wrong_limits": 1}) == (watch.see(right).open, watch.counts)


def test_a_container_on_a_card_that_it_was_not_promised():
    """`NVIDIA_VISIBLE_DEVICES=all`: promised card 0, found on card 1 as well; one breach for all its processes."""
    node = Node(2, agent=True).pod_hold("a").process(1, 1, pod="a").process(1, 2, index=1, pod="a")
    watch = Watch().see(node.process(2, 1, index=1, pod="a"), times=2)

    assert {"unallocated": 1} == watch.counts
    finding = watch.begun[0].finding
    assert ("a", uuid(1), 3 * GIB, (1, 2)) == (finding.pod, finding.uuid, finding.used_bytes, finding.pids)
    assert [{}, {"unallocated": 1}] == [watch.going(index) for index in (0, 1)]


def test_a_pod_that_nobody_names():
    """Its UID stands for its name."""
    watch = Watch().see(Node().process(1, 1, pod="x"), times=2)

    assert [("uid-x", "")] == [(b.finding.pod, b.finding.container) for b in watch.begun]


def test_a_host_process_on_a_managed_card():
    """On a Kubernetes node, or beside somebody's promise, it is a breach; on a machine of one's own it is not."""
    cluster = Node().process(1, 1, name="miner")
    beside = Node(kubernetes=False).hold(hold("job")).process(1, 1)
    alone = Node(kubernetes=False).process(1, 1)

    assert [{"unallocated": 1}, {"unallocated": 1}, {}] == [
        Watch().see(node, times=2).counts for node in (cluster, beside, alone)
    ]
    assert "miner" == Watch().see(cluster, times=2).begun[0].finding.process


def test_a_display_server_is_no_breach():
    """Nor is the MPS server of the host; both are unattributed all the same."""
    node = Node().process(1, 1, name="Xorg", kind="graphics").process(2, 0.05, name="nvidia-cuda-mps")

    watch = Watch().see(node, times=3)

    assert ({}, GIB + int(0.05 * GIB)) == (watch.counts, watch.judged.reading.cards[0].unattributed_bytes)


def test_a_container_whose_card_cannot_be_told_is_no_stranger():
    """It was promised something of some card; which one, open gpushare's IDs do not say."""
    node = Node(3).container("a").grant("a", ["x-_-1"], resource="aliyun.com/gpu-mem")
    node.process(1, 1, pod="a").process(2, 1, index=1, pod="a")

    assert {} == Watch().see(node, times=3).counts


def test_a_dead_pid_is_no_breach():
    """Whose it was cannot be told any more."""
    assert {} == Watch().see(Node(agent=True).process(1, 2, pod="a", seen=False), times=3).counts


def test_counters_outlive_a_gap():
    """A container that cannot be seen for a minute goes on counting where it stopped."""
    watch = Watch().see(using(6), times=3).see(Node(agent=True), times=30).see(using(6), times=2)

    assert (6.0, 2) == (watch.one.over_limit_seconds, watch.one.over_limit_episodes)


def test_a_successor_of_the_same_name_begins_anew():
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
        largest = max(largest, len(watch.state.tracks))

    assert largest <= 10 * (LINGER_SECONDS / 8 + 1)
    assert RING == len(watch.state.episodes.ring)
    assert ({"over_limit": 10_000}, 10) == (watch.counts, len(watch.state.episodes.open))
    watch.see(Node(agent=True), after=LINGER_SECONDS + 1)
    assert (0, 0) == (len(watch.state.tracks), len(watch.state.episodes.open))


def test_one_record_is_small():
    """However many processes there are, and however long a reason is, a record names so much and no more."""
    crowd = Node(agent=True).pod_hold("a", reading=RegionFacts(None, error="torn " * 9000)).container("x")
    for pid in range(300):
        crowd.process(1000 + pid, 0.01, pod="x")
    watch = Watch().see(crowd, times=2)

    assert {"unreadable_region": 1, "unallocated": 1} == watch.counts
    assert len(to_json(watch.state.episodes, "n")) < 2500
    assert "300 processes" in to_json(watch.state.episodes, "n")


def test_cards_that_are_divided_anew_leave_nothing_behind():
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

    assert 600 + MOST_GONE == len(watch.state.tracks)


def test_one_owner_cannot_flood_the_ring():
    """A tenant that goes over and back for ever leaves a few records, and everybody else's stay."""
    quiet = Node(2, agent=True).pod_hold("a", gib=5).pod_hold("b", index=1).process(9, 7, index=1, pod="b")
    loud = Node(2, agent=True).pod_hold("a", gib=5).pod_hold("b", index=1).process(9, 7, index=1, pod="b")
    loud.process(1, 6, pod="a")
    watch = Watch()
    for _ in range(500):
        watch.see(loud).see(quiet)

    owners = [breach.finding.pod for breach in watch.state.episodes.ring.values()]
    assert (ONE_OWNER, 1) == (owners.count("a"), owners.count("b"))
    assert {"over_limit": 501} == watch.counts


def test_breaches_as_json():
    """The latest first, with who, where, since when, how long, how much, and whose word it is."""
    watch = Watch().see(using(6), times=3)

    page = json.loads(to_json(watch.state.episodes, "n-0"))

    assert (1, "n-0", 1) == (page["version"], page["node"], page["begun"]["over_limit"])
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
        "begun": EPOCH + 102.0,
        "last": EPOCH + 106.0,
        "seconds": 4.0,
        "used_bytes": 6 * GIB,
        "allocated_bytes": 5 * GIB,
        "peak_bytes": 6 * GIB,
        "times": 1,
    }.items() <= record.items()


# --- energy -------------------------------------------------------------------------------------------------------


def drawing(joules, busy=None, **more):
    """Two pods with 5 and 10 GiB of 15.5; the card's counter stands at so much."""
    node = Node(agent=True).pod_hold("a", gib=5).pod_hold("b", gib=10)
    node.process(1, 1, pod="a").process(2, 1, pod="b").process(3, 1)
    return node.card(energy_joules=joules, busy=busy or {}, **more)


def energy(watch):
    """{pod: joules}."""
    return {one.pod: one.energy_joules for one in watch.judged.reading.containers}


def test_energy_by_compute():
    """What was drawn goes by the share of all compute, a stranger's share to nobody."""
    watch = Watch().see(drawing(1000.0)).see(drawing(1100.0, busy={1: 0.2, 2: 0.2, 3: 0.4}))

    assert {"a": 25.0, "b": 25.0} == energy(watch)


def test_energy_of_an_idle_card():
    """It goes by the promises of memory; what nobody was promised is nobody's."""
    watch = Watch().see(drawing(1000.0)).see(drawing(1031.0))

    assert {"a": 10.0, "b": 20.0} == pytest.approx(energy(watch))


def test_energy_of_a_card_whose_idle_power_is_known():
    """10 W idle are put down to promises, also while somebody computes; the rest to whoever does."""
    watch = Watch()
    for number in range(6):
        watch.see(drawing(1000.0 + 20.0 * number))
    before = energy(watch)
    watch.see(drawing(1200.0, busy={1: 0.5}))

    after = energy(watch)
    idle = 20.0 / 15.5
    assert {"a": 80.0 + 5 * idle, "b": 10 * idle} == pytest.approx({pod: after[pod] - before[pod] for pod in after})


def idling(watts, times=6):
    """A watch on a card that has drawn so much while nobody computed."""
    watch, stands = Watch().see(drawing(1000.0)), 1000.0
    for each in watts:
        for _ in range(times):
            stands += 2 * each
            watch.see(drawing(stands))
    return watch, stands


def test_idle_power_is_the_lowest_seen():
    """A card that is still warm from its last kernel draws more than an idle one."""
    watch, stands = idling([10, 30])
    before = energy(watch)["b"]

    watch.see(drawing(stands + 200.0, busy={1: 0.5}))

    assert 2 * 10 * 10 / 15.5 == pytest.approx(energy(watch)["b"] - before)


def test_idle_power_over_a_gap_in_the_counter():
    """What was drawn while the counter could not be read counts for all of that time."""
    watch, stands = idling([10])
    before = energy(watch)["b"]

    watch.see(drawing(None, busy={1: 0.5}), times=4).see(drawing(stands + 500.0, busy={1: 0.5}))

    assert 10 * 10 * 10 / 15.5 == pytest.approx(energy(watch)["b"] - before)


def test_energy_of_a_whole_card():
    """Its only container answers for all of it, also where compute cannot be told."""
    node = Node().container("a").grant("a", [uuid()])
    watch = Watch().see(node.card(energy_joules=10.0, busy=None)).see(node.card(energy_joules=60.0, busy=None))

    assert {"a": 50.0} == energy(watch)


def test_energy_of_sharers_whose_compute_cannot_be_told():
    """Nobody can say whose it was."""
    blind = Node(agent=True).pod_hold("a").pod_hold("b")
    watch = Watch().see(blind.card(energy_joules=10.0, busy=None)).see(blind.card(energy_joules=60.0, busy=None))

    assert {"a": None, "b": None} == energy(watch)


@pytest.mark.parametrize("reset", [None, 5.0])
def test_a_counter_that_stops_or_is_set_back(reset):
    """Without a counter there is no series; a driver that was loaded anew starts from where it stands."""
    watch = Watch().see(drawing(1000.0)).see(drawing(1100.0, busy={1: 1.0})).see(drawing(reset, busy={1: 1.0}))

    assert {None: {"a": None, "b": None}, 5.0: {"a": 100.0, "b": 0.0}}[reset] == energy(watch)
    assert 100.0 <= energy(watch.see(drawing(1200.0, busy={1: 1.0})))["a"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 500), st.dictionaries(st.integers(1, 3), st.floats(0, 1)), st.floats(0.1, 60), st.booleans()
        ),
        min_size=2,
        max_size=12,
    )
)
def test_containers_never_draw_more_than_their_card(steps):
    """Whatever is computed, the energy of the containers only grows and is at most the card's."""
    watch, stands, before = Watch().see(drawing(0.0)), 0.0, {"a": 0.0, "b": 0.0}
    for watts, busy, seconds, told in steps:
        stands += watts * seconds
        watch.see(drawing(stands if told else None, busy=busy), after=seconds)
        now = energy(watch)
        if told:
            assert all(now[pod] >= before[pod] for pod in now)
            assert sum(now.values()) <= stands * (1 + 1e-9)
            before = now


# --- episodes -----------------------------------------------------------------------------------------------------


def finding(name, kind=BreachKind.OVER_LIMIT, **more):
    """A finding about somebody."""
    return Finding(kind, uuid(), 0, "team", name, "main", "p", "nvml", "text", **more)


FINDINGS = st.lists(
    st.tuples(st.sets(st.tuples(st.sampled_from("abc"), st.sampled_from(list(BreachKind)))), st.booleans()), max_size=12
)


@settings(max_examples=50, deadline=None)
@given(FINDINGS)
def test_counts_are_beginnings(turns):
    """Each kind's count is the number of its records begun, and an open record is always that of a finding."""
    state, begun = Episodes(), []
    for at, (present, unsure) in enumerate(turns):
        found = {one.key: one for one in (finding(name, kind) for name, kind in present)}
        open_before = set(state.open)
        state, fresh = follow(state, found, lambda _, unsure=unsure: unsure, EPOCH + at)
        begun += fresh
        assert set(state.open) <= set(found) | (open_before if unsure else set())
        assert open_before & set(found) <= set(state.open)
        assert not set(state.open) & set(state.waiting)
    assert {kind: sum(b.finding.kind == kind for b in begun) for kind in BreachKind} == state.counts
    assert [b.number for b in begun] == list(range(1, len(begun) + 1))
    assert {b.number for b in state.ring.values() if b.open} <= {b.number for b in state.open.values()}


def test_so_many_at_once_and_no_more():
    """A node full of breaches is followed up to a bound."""
    found = {one.key: one for one in (finding(f"p{n}") for n in range(MOST_OPEN + 50))}

    state, _ = follow(Episodes(), found, lambda _: False, EPOCH)

    assert (MOST_OPEN, RING) == (len(state.open), len(state.ring))


@settings(max_examples=50, deadline=None)
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
        mine = [b for b in watch.state.episodes.ring.values() if b.finding.pod == "b"]
        return [one for one in watch.judged.reading.containers if one.pod == "b"], [replace(b, number=0) for b in mine]

    assert of_b(honest) == of_b(forged)
    assert len(to_json(forged.state.episodes, "n")) < 10_000


def test_state_is_small():
    """A thousand containers are remembered in little memory."""
    node = Node(agent=True)
    for part in range(1000):
        node.pod_hold(f"p{part}", gib=1)
    watch = Watch().see(node, times=2)

    assert sum(sys.getsizeof(track) for track in watch.state.tracks.values()) < MIB
    assert RESERVED == watch.judged.reading.cards[0].used_bytes
