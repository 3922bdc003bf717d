# SPDX-License-Identifier: Apache-2.0
"""Who has which part of a card: as long as the runtime or the kernel says that it may have processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isolation.contract.host_allocation import HostAllocation, Process, Tenant
from isolation.contract.model import Slice
from isolation.contract.nri_api import NriContainerState
from isolation.contract.quantity import GIB
from isolation.node.allocations import Allocations
from isolation.node.core.container_check import Given
from isolation.node.nri.model import Container, Sandbox

MAIN = Tenant("ml", "train", "uid-1", "main")
PART = (Slice("GPU-1", 0, 4 * GIB),)
IDENT = "uid-1.main"


class Cgroups:
    """Processes by pod and container."""

    def __init__(self):
        self.known, self.blind = {}, False

    def pids(self, uid, container):
        """See `ProcessLookup`."""
        return self._of(uid, lambda one: one == container)

    def strays(self, uid, known):
        """See `ProcessLookup`."""
        return self._of(uid, lambda one: one not in known)

    def _of(self, uid, chosen):
        if self.blind:
            return None
        return frozenset(pid for (pod, one), pids in self.known.items() if pod == uid and chosen(one) for pid in pids)


@pytest.fixture
def cgroups():
    return Cgroups()


@pytest.fixture
def book(cgroups):
    return Allocations(cgroups)


def container(ident, state=NriContainerState.RUNNING, tenant=MAIN):
    """As the runtime tells it."""
    return Container(ident, tenant.container, Sandbox("s", tenant.uid, tenant.namespace, tenant.pod), state)


def in_force(book, **more):
    """GiB of what is in force, by card."""
    return {one.uuid: one.bytes // GIB for one in book.in_force(**more)}


def test_a_container_counts_from_its_creation_to_its_last_process(book, cgroups):
    """What was killed may take a while to give its memory back."""
    book.creates(MAIN, Given(PART), "c1")
    assert {"GPU-1": 4} == in_force(book)
    assert {} == in_force(book, but=IDENT)
    cgroups.known["uid-1", "c1"] = [7]
    book.gone(container("c1"))
    assert ({"GPU-1": 4}, {"GPU-1": 4 * GIB}) == (in_force(book), book.bytes_by_card())
    cgroups.known.clear()
    assert {} == in_force(book)
    assert book.get(IDENT) is not None, "its files stay for the next start"
    book.gone(container("c1"))
    book.drop(IDENT)
    book.drop(IDENT)
    assert (0, None) == (len(book), book.get(IDENT))


@pytest.mark.parametrize(("pids", "seconds", "free"), [((), 31, True), ((), 29, False), ((7,), 31, False)])
def test_a_container_that_was_never_started_is_free_after_a_while(cgroups, pids, seconds, free):
    """CRI-O reports no end of a container that the guard refused."""
    times = iter([0.0, float(seconds)])
    book = Allocations(cgroups, lambda: next(times))
    known = book.creates(MAIN, Given(PART), "c1")
    cgroups.known["uid-1", "c1"] = list(pids)
    book.end_unstarted(known)
    assert ({} if free else {"GPU-1": 4}) == in_force(book)


def test_a_restart_takes_over_while_the_one_before_it_still_dies(book, cgroups):
    """One promise for both; the next container's processes are the ones to look at."""
    book.creates(MAIN, Given(PART), "c1")
    cgroups.known = {("uid-1", "c1"): [7], ("uid-1", "c2"): [8]}
    assert {7} == book.processes(IDENT)
    book.gone(container("c1"))
    again = book.creates(MAIN, Given((replace(PART[0], bytes=GIB),), enforced=False), "c2")
    assert ({"GPU-1": 1}, {8}, False) == (in_force(book), book.processes(IDENT), again.given.enforced)
    book.gone(container("c2"))
    del cgroups.known["uid-1", "c2"]
    assert book.is_in_force(again), "the first one still has a process"


def test_where_the_kernel_cannot_be_asked_nothing_is_free(book, cgroups):
    book.creates(MAIN, Given(PART), "c1")
    book.gone(container("c1"))
    cgroups.blind = True
    assert ({"GPU-1": 4}, None) == (in_force(book), book.processes(IDENT))


def hold(tenant=MAIN):
    """As it stands on the disk."""
    runner = Process(1, 1)
    return HostAllocation(
        f"{tenant.uid}.{tenant.container}", "n", "b", 1.0, 0, runner, (), PART, "fixed", tenant=tenant
    )


def test_what_stands_on_the_disk_counts_until_the_runtime_and_the_kernel_know_nobody(book, cgroups):
    """After a restart of the agent the runtime's ids are not known: a process of the pod is enough."""
    cgroups.known["uid-1", "c1"] = [7]
    book.load([hold()])
    assert ({"GPU-1": 4}, None) == (in_force(book), book.processes(IDENT))
    book.runtime_has([], [])
    assert {"GPU-1": 4} == in_force(book)
    cgroups.known.clear()
    assert {} == in_force(book)


def test_the_runtimes_list_says_who_runs(book, cgroups):
    other = replace(MAIN, uid="uid-2", pod="eval")
    book.load([hold(), hold(other)])
    cgroups.known = {("uid-1", "c1"): [7], ("uid-2", "side"): [9]}
    stranger = container("x", tenant=replace(MAIN, uid="uid-3"))
    book.runtime_has([container("c1"), container("c2", NriContainerState.STOPPED, other), stranger], [])
    assert ({7}, {"c1"}, 2) == (book.processes(IDENT), book.get(IDENT).runs, len(book))

    book.creates(MAIN, Given(PART), "c3")
    book.runtime_has([container("c1", NriContainerState.STOPPED), container("c3", NriContainerState.CREATED)], [])
    assert ({"c3"}, True) == (book.get(IDENT).runs, "c1" in book.get(IDENT).ended)
    book.runtime_has([], [])
    cgroups.known = {("uid-2", "side"): [9]}
    assert {"GPU-1": 4} == in_force(book), "of that one no container's id was ever known"
    cgroups.known.clear()
    assert {} == in_force(book)


def test_what_is_known_is_not_overwritten_by_the_disk(book):
    book.creates(MAIN, Given(PART, enforced=False), "c1")
    book.load([hold()])
    assert (False, {"c1"}) == (book.get(IDENT).given.enforced, book.get(IDENT).runs)
