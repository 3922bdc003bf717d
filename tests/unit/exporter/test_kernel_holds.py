# SPDX-License-Identifier: Apache-2.0
"""Whose hold a process lives on: by list, descent, keeper, mark and control group."""

from __future__ import annotations

import os

import pytest
from support.cgroup_tree import CgroupTree
from support.kernel_reading import BOX, OTHER, UID, source

from exporter.pipeline.snapshot import HoldSample
from isolation.contract.host_allocation import HostAllocation, Process, Tenant
from isolation.contract.model import Slice


def hold(ident="run-1", *, uid=1000, members=(), cgroup="", created=1.0, tenant=None):
    """A promise whose keeper noted these members."""
    entry = HostAllocation(
        ident,
        "train",
        "b",
        created,
        uid,
        Process(1, 1),
        (),
        (Slice("GPU-0", 0, 1 << 30),),
        "fixed",
        "",
        False,
        cgroup,
        tenant,
    )
    return HoldSample(entry, None, members=tuple(Process(*one) for one in members))


def belonging(tree, pids, *holds):
    """The hold of each process."""
    return [source(tree).read(0.0, pids, holds).processes[pid].hold for pid in pids]


def test_a_member_and_its_descendants_live_on_the_hold(tmp_path):
    """
    The keeper's list first; what it has not seen yet by descent from a member.
    """
    tree = CgroupTree(tmp_path)
    tree.process(70, name="gpushare-keeper", uid=1000)
    tree.process(71, uid=1000, start=20, parent=70)
    tree.process(72, uid=1000, start=30, parent=71)
    tree.process(73, uid=1000, start=40, parent=72)
    tree.process(74, uid=1000, start=40)
    assert ["run-1", "run-1", "run-1", ""] == belonging(tree, [71, 72, 73, 74], hold(members=[(71, 20)]))


def test_an_orphan_belongs_by_its_keeper(tmp_path):
    """
    The keeper adopts orphans before it writes them down; it is told by the members that are its children.
    """
    tree = CgroupTree(tmp_path)
    tree.process(70, name="gpushare-keeper", uid=1000, start=5)
    tree.process(80, name="gpushare-keeper", uid=1000, start=5)
    tree.process(71, uid=1000, start=20, parent=70)
    tree.process(81, uid=1000, start=20, parent=80)
    tree.process(99, uid=1000, start=60, parent=80)
    holds = (hold("run-1", members=[(71, 20)]), hold("run-2", members=[(81, 20)]))
    assert ["run-2"] == belonging(tree, [99], *holds)


def test_what_once_descended_still_does(tmp_path):
    """
    A keeper was killed and its orphans went to init: they live on the hold as long as there is one.
    """
    tree = CgroupTree(tmp_path)
    tree.process(71, uid=1000, start=20)
    tree.process(72, uid=1000, start=30, parent=71)
    kernel, holds = source(tree), [hold(members=[(71, 20)])]
    kernel.read(0.0, [72], holds)
    tree.exit(71)
    tree.process(72, uid=1000, start=30, parent=1, name="renamed")
    assert "run-1" == kernel.read(1.0, [72], holds).processes[72].hold
    assert "" == kernel.read(2.0, [72], []).processes[72].hold
    assert "" == kernel.read(3.0, [72], [hold("run-2")]).processes[72].hold


def test_a_reused_pid_is_no_member(tmp_path):
    """
    Neither itself nor as an ancestor.
    """
    tree = CgroupTree(tmp_path)
    tree.process(71, uid=1000, start=999)
    tree.process(72, uid=1000, start=1000, parent=71)
    tree.process(73, uid=1000, start=500, parent=71)
    assert ["", "", ""] == belonging(tree, [71, 72, 73], hold(members=[(71, 20), (73, 20)]))
    assert ["run-1", ""] == belonging(tree, [72, 73], hold(members=[(71, 999)])), "a parent is older than its child"


def test_of_nested_runs_the_innermost_counts(tmp_path):
    """
    The outer keeper lists the inner command too.
    """
    tree = CgroupTree(tmp_path)
    tree.process(71, uid=1000, start=20)
    tree.process(75, uid=1000, start=50, parent=71)
    outer = hold("run-1", members=[(71, 20), (75, 50)], created=1.0)
    inner = hold("run-2", members=[(75, 50)], created=2.0)
    assert ["run-1", "run-2"] == belonging(tree, [71, 75], outer, inner) == belonging(tree, [71, 75], inner, outer)


def test_nobody_claims_another_users_process(tmp_path):
    """
    A list of members is its writer's word: it counts for his own processes, and for what they started.
    """
    tree = CgroupTree(tmp_path)
    tree.process(71, uid=1000, start=20)
    tree.process(72, uid=0, start=30, parent=71, name="sudo")
    assert ["", ""] == belonging(tree, [71, 72], hold(uid=2000, members=[(71, 20), (72, 30)]))
    assert ["run-1", "run-1"] == belonging(tree, [71, 72], hold(uid=1000, members=[(71, 20)]))
    assert ["run-1"] == belonging(tree, [71], hold(uid=0, members=[(71, 20)]))


def test_a_keepers_name_alone_adopts_nobody(tmp_path):
    """
    Any process can call itself a keeper; without a member as its child it keeps nothing.
    """
    tree = CgroupTree(tmp_path)
    tree.process(66, name="gpushare-keeper", uid=1000)
    tree.process(67, uid=1000, start=2000, parent=66)
    tree.process(71, uid=1000, start=20)
    assert [""] == belonging(tree, [67], hold(members=[(71, 20)]))
    tree.process(72, uid=1000, start=999, parent=66)
    assert [""] == belonging(tree, [67], hold(members=[(72, 20)])), "a member's pid that is another's now"


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ({"uid": 1000}, "run-1"),
        ({"uid": 1001}, ""),
        ({"uid": 1000, "container": (UID, BOX)}, ""),
        ({"uid": 1000, "path": f"/docker/{BOX}"}, ""),
        ({"uid": 1000, "namespace_pids": (90, 4)}, ""),
    ],
)
def test_a_mark_counts_for_its_own_user_outside_containers_only(tmp_path, process, expected):
    """
    Anybody can set a variable: a tenant whose root is the host's number must gain nothing by it.
    """
    tree = CgroupTree(tmp_path)
    (tree.cgroup / "docker").mkdir()
    tree.process(90, environ={"A": "1", "GPUSHARE_PROMISE": "run-1"}, **process)
    assert [expected] == belonging(tree, [90], hold(uid=1000))


def test_a_process_of_a_pod_lives_on_no_run(tmp_path):
    """
    Whatever root's list says: a container's use belongs to the pod.
    """
    tree = CgroupTree(tmp_path)
    tree.process(90, container=(UID, BOX), start=20)
    assert [""] == belonging(tree, [90], hold(uid=0, members=[(90, 20)]))


def test_runs_inside_the_exporters_own_container_count(tmp_path):
    """
    A development pod with everything in it: there the runs are our neighbours.
    """
    tree = CgroupTree(tmp_path, exporter=(UID, BOX))
    tree.process(90, container=(UID, BOX), uid=0, start=20)
    tree.process(91, container=(OTHER, BOX), uid=0, start=20)
    assert ["run-1", ""] == belonging(tree, [90, 91], hold(uid=0, members=[(90, 20), (91, 20)]))


def test_a_pods_promise_is_none_of_the_runs(tmp_path):
    """
    Holds of the node agent are matched by container, not by lineage.
    """
    tree = CgroupTree(tmp_path)
    tree.process(71, uid=1000, start=20)
    assert [""] == belonging(tree, [71], hold(members=[(71, 20)], tenant=Tenant("ml", "p", UID, "main")))


def test_the_holds_own_control_group_is_the_best_evidence(tmp_path):
    """
    By its whole path, and only if it belongs to the hold's user.
    """
    me = os.geteuid()
    tree = CgroupTree(tmp_path)
    group = tree.cgroup / "user.slice/gpushare-run-1"
    (group / "deeper").mkdir(parents=True)
    elsewhere = tree.cgroup / "evil.slice/gpushare-run-1"
    elsewhere.mkdir(parents=True)
    tree.process(71, path="/user.slice/gpushare-run-1/deeper", uid=me)
    tree.process(72, path="/evil.slice/gpushare-run-1", uid=me)
    tree.process(73, path="/user.slice", uid=me)
    assert ["run-1", "", ""] == belonging(tree, [71, 72, 73], hold(uid=me, cgroup=str(group)))
    assert [""] == belonging(tree, [71], hold(uid=me + 1, cgroup=str(group)))
