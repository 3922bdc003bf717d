# SPDX-License-Identifier: Apache-2.0
"""Who uses what: every byte stands once, with whoever has it, under whatever name."""

from __future__ import annotations

import pytest
from support.attributed import look, residual, used
from support.node_facts import GIB, RESERVED, Node, hold, region, uuid


def test_shared_card_adds_up():
    """Two pods, one with two processes, and a stranger: every byte stands once, and nothing is left over."""
    node = Node(agent=True).pod_hold("a").pod_hold("b")
    node.process(1, 2, pod="a").process(2, 1.5, pod="a").process(3, 4, pod="b").process(9, 0.5, pod="x")

    found = look(node.container("x"))

    assert {"a/main": (3.5 * GIB, "nvml"), "b/main": (4 * GIB, "nvml")} == used(found)
    shown = found.reading.cards[0]
    assert (0.5 * GIB, 8 * GIB + RESERVED, True) == (shown.unattributed_bytes, shown.used_bytes, shown.attributable)
    assert 0 == residual(found)


def test_what_nobody_explains_is_the_remainder():
    """Memory that no process has is neither a container's nor unattributed."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(free_bytes=16 * GIB - RESERVED - 3 * GIB)

    found = look(node)

    assert (0, GIB) == (found.reading.cards[0].unattributed_bytes, residual(found))


def test_a_negative_remainder_is_shown():
    """Processes that say more than the card does are not clamped to look right."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(free_bytes=16 * GIB - RESERVED - GIB)

    assert -GIB == residual(look(node))


def test_zero_from_allocation_on():
    """A container that never initialised CUDA uses 0, measured; it is not missing."""
    found = look(Node(agent=True).pod_hold("a"))

    assert ({"a/main": (0, "nvml")}, [0.0]) == (used(found), [c.used_core_ratio for c in found.reading.containers])


def test_an_exclusive_pod_is_measured_too():
    """A whole card's owner uses what its processes have, not the card's figure."""
    node = Node().container("a").grant("a", [uuid()]).process(1, 6, pod="a").process(2, 1)

    found = look(node)

    assert {"a/main": (6 * GIB, "nvml")} == used(found)
    assert (GIB, True, 0) == (
        found.reading.cards[0].unattributed_bytes,
        found.reading.cards[0].exclusive,
        found.reading.cards[0].largest_free_bytes,
    )


def test_containers_of_one_pod_stay_apart():
    """Each container has its own processes' memory (Project-HAMi/HAMi issue 863)."""
    node = Node(agent=True).pod_hold("a").pod_hold("a", container="side", gib=2)
    node.process(1, 3, pod="a").process(2, 1, pod="a", container="side")

    assert {"a/main": (3 * GIB, "nvml"), "a/side": (GIB, "nvml")} == used(look(node))


def test_a_restarted_container_that_no_record_names_yet():
    """With one allocation in the pod it is that container's; with two nobody can say, so both are absent."""
    one = Node(agent=True).pod_hold("a").process(1, 3, pod="a", container_id="fresh")
    two = Node(agent=True).pod_hold("a").pod_hold("a", container="side").process(1, 3, pod="a", container_id="fresh")

    assert {"a/main": (3 * GIB, "nvml")} == used(look(one))
    assert {"a/main": (None, ""), "a/side": (None, "")} == used(look(two))
    assert (0, None) == (look(two).reading.cards[0].unattributed_bytes, residual(look(two)))


def test_same_name_one_after_the_other():
    """The old pod's process is not the new pod's, although both carry one name."""
    node = Node(agent=True).pod_hold("db-0", pod_uid="old").pod_hold("db-0", pod_uid="new", gib=3)
    node.process(1, 4, pod="db-0", pod_uid="old").process(2, 1, pod="db-0", pod_uid="new")

    found = look(node)

    assert {"old": 4 * GIB, "new": GIB} == {c.pod_uid: c.used_bytes for c in found.reading.containers}


def test_a_successor_is_not_its_predecessor():
    """Only the old pod's promise is known; the new pod's process is not its."""
    node = Node(agent=True).pod_hold("db-0", pod_uid="old").container("db-0", pod_uid="new")

    found = look(node.process(1, 2, pod="db-0", pod_uid="new"))

    assert ({"db-0/main": (0, "nvml")}, 2 * GIB) == (used(found), found.reading.cards[0].unattributed_bytes)


def test_two_assignments_under_one_name():
    """Of one the kubelet's record tells the UID, of the other nobody: each process goes to its own."""
    node = Node().container("a", pod_uid="one").container("a", pod_uid="two")
    node.grant("a", [f"{uuid()}::0"], pod_uid="one").grant("a", [f"{uuid()}::1"])
    node.process(1, 1, pod="a", pod_uid="one").process(2, 2, pod="a", pod_uid="two")

    assert {"one": GIB, "": 2 * GIB} == {c.pod_uid: c.used_bytes for c in look(node).reading.containers}


def test_a_reused_pid_is_its_new_owners():
    """The same pid in another control group counts for whoever runs now."""
    before = Node(agent=True).pod_hold("a").pod_hold("b").process(5, 2, pod="a")
    after = Node(agent=True).pod_hold("a").pod_hold("b").process(5, 2, pod="b", start_ticks=999)

    assert (2 * GIB, 0) == (used(look(before))["a/main"][0], used(look(before))["b/main"][0])
    assert (0, 2 * GIB) == (used(look(after))["a/main"][0], used(look(after))["b/main"][0])


def test_a_dead_pid_is_nobodys_and_looked_at_again():
    """A process that is gone when we look is counted as unattributed, and the sample is marked."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a", seen=False)

    found = look(node)

    assert (True, {"a/main": (0, "nvml")}, 2 * GIB) == (
        found.churned,
        used(found),
        found.reading.cards[0].unattributed_bytes,
    )
    assert not look(Node(agent=True).pod_hold("a").process(1, 2, pod="a")).churned


def test_a_run_is_known_by_its_promise():
    """Descendants of a `gpushare run` command are its; a process in a pod cannot claim to be one."""
    node = Node(kubernetes=False).hold(hold("train", ident="run-1")).process(1, 2, run="run-1")
    liar = Node().hold(hold("train", ident="run-1")).container("x").process(1, 2, pod="x", run="run-1")

    assert {"train/run-1": (2 * GIB, "nvml")} == used(look(node))
    assert {"train/run-1": (0, "nvml")} == used(look(liar))


def test_a_record_of_another_pod_is_not_believed():
    """A container ID under a control group of another pod than the record says names nobody."""
    node = Node().container("a", pod_uid="one").container("a", pod_uid="two").grant("a", [uuid()])

    found = look(node.container("x").process(1, 2, pod="x", container_id="one/main"))

    assert {"a/main": (None, "")} == used(found)
    assert None is found.reading.cards[0].unattributed_bytes


def test_a_pod_of_which_the_kubelet_has_not_reported_is_not_unallocated():
    """Its process may be promised its memory: unattributed is unknown; another pod's process is a stranger."""
    silent = Node(unanswered={("team", "a")}).container("a").process(1, 2, pod="a")
    other = Node(unanswered={("team", "b")}).container("a").process(1, 2, pod="a")
    nameless = Node(unanswered={("team", "b")}).process(1, 2, pod="a")

    assert None is look(silent).reading.cards[0].unattributed_bytes
    assert None is look(nameless).reading.cards[0].unattributed_bytes
    assert 2 * GIB == look(other).reading.cards[0].unattributed_bytes


@pytest.mark.parametrize(("core", "overrun_ns", "shown"), [(30, 2_500_000_000, 2.5), (30, None, None), (0, 7, None)])
def test_what_long_kernels_took_beyond_the_promise_is_the_librarys_word(core, overrun_ns, shown):
    """Absent where an older library does not tell, and where compute is not limited."""
    node = Node(agent=True).pod_hold("a", core=core, reading=region(slots=[1], overrun_ns=overrun_ns))

    assert [shown] == [one.overrun_seconds for one in look(node.process(1, 1, pod="a")).reading.containers]
