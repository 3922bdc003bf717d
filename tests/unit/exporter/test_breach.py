# SPDX-License-Identifier: Apache-2.0
"""Processes where none should be, and libraries that are missing or spoilt: told from outside the container."""

from __future__ import annotations

import pytest
from support.breach_watch import Watch, using
from support.node_facts import GIB, Node, hold, region, uuid

from exporter.pipeline.snapshot import RegionSample


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
    """The process list fails for a while: neither over nor started again."""
    blind = isolated().card(processes=None)
    watch = Watch().see(isolated(), times=2).see(blind, times=3)

    assert ["missing_library"] == watch.open
    assert {"missing_library": 1} == watch.see(isolated(), times=2).counts


def test_a_blind_sample_between_two_findings():
    """What was found before and after is a breach all the same."""
    blind = isolated().card(processes=None)

    assert {"missing_library": 1} == Watch().see(isolated()).see(blind).see(isolated()).counts


def test_behind_an_mps_server_nobody_is_uninstrumented():
    """Which process is whose is unknown there."""
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
    node = Node(agent=True).pod_hold("a", reading=RegionSample(None, error="cut short"))
    watch = Watch().see(node)

    assert {} == watch.counts
    assert {"unreadable_region": 1} == watch.see(node).counts
    assert "cut short" in watch.begun[0].finding.text


def test_limits_that_are_not_what_was_promised():
    """Once is a file that is being written again; twice is a breach, with the reason, until it says what it should."""
    wrong = Node(agent=True).pod_hold("a", reading=region(), limits_error="the amounts in the limits file differ")
    watch = Watch().see(wrong)

    assert {} == watch.counts
    assert {"wrong_limits": 1} == watch.see(wrong, times=2).counts
    finding = watch.begun[0].finding
    assert ("a", uuid(), "limits") == (finding.pod, finding.uuid, finding.source)
    assert "the amounts in the limits file differ" in finding.text
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


@pytest.mark.parametrize("more", [{"name": "Xorg", "kind": "graphics"}, {"name": "nvidia-cuda-mps-x"}])
def test_a_tenant_that_looks_like_a_server_of_the_host_is_a_breach(more):
    """What the host's display and MPS servers may, a pod may not: it chooses its names itself."""
    watch = Watch().see(Node().process(1, 1, pod="x", **more), times=2)

    assert {"unallocated": 1} == watch.counts


def test_a_container_whose_card_is_unknown_is_not_unallocated():
    """It was promised something of some card; which one, open gpushare's IDs do not say."""
    node = Node(3).container("a").grant("a", ["x-_-1"], resource="aliyun.com/gpu-mem")
    node.process(1, 1, pod="a").process(2, 1, index=1, pod="a")

    assert {} == Watch().see(node, times=3).counts


def test_a_dead_pid_is_no_breach():
    """Whose it was is unknown any more."""
    assert {} == Watch().see(Node(agent=True).process(1, 2, pod="a", seen=False), times=3).counts
