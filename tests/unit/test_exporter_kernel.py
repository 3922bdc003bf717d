"""
Processes of a node: where they belong, that they are themselves, and whose hold they live on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cgroup_tree import CgroupTree

from exporter.facts import HoldFacts, ProcessFacts
from exporter.sources import processes
from exporter.sources.errors import SourceError
from exporter.sources.kernel import KernelSource
from isolation.contract.hold import Hold, Process, Tenant
from isolation.contract.model import Slice

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
OTHER = "9a0f37e1-0f6a-4a53-9f5f-30dbdd1b4f77"
BOX, VICTIM = "a" * 64, "b" * 64


def source(tree):
    """The kernel source over a tree."""
    return KernelSource(tree.proc, tree.cgroup)


def hold(ident="run-1", *, uid=1000, members=(), cgroup="", created=1.0, tenant=None):
    """A promise whose keeper noted these members."""
    entry = Hold(
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
    return HoldFacts(entry, None, members=tuple(Process(*one) for one in members))


def belonging(tree, pids, *holds):
    """The hold of each process."""
    return [source(tree).read(0.0, pids, holds).processes[pid].hold for pid in pids]


RUNTIMES = [
    (runtime, driver, version)
    for runtime in ("containerd", "containerd-old", "crio", "docker", "kind")
    for driver in ("systemd", "cgroupfs")
    for version in (1, 2)
    if (runtime, driver) != ("containerd-old", "cgroupfs")
]


@pytest.mark.parametrize(("runtime", "driver", "version"), RUNTIMES)
def test_a_container_process_is_told_with_its_pod_on_every_node(tmp_path, runtime, driver, version):
    """
    Pid, start, user, name, pod, container and the pid in the container, and the pods that live.
    """
    tree = CgroupTree(tmp_path, runtime=runtime, driver=driver, version=version)
    tree.pod(UID, "guaranteed")
    tree.pod(OTHER, "besteffort")
    tree.process(4242, container=(UID, BOX), uid=1000, name="train (x) 1", start=777)

    facts = source(tree).read(0.0, [4242, 4243])

    expected = ProcessFacts(4242, 777, 1000, "train (x) 1", UID, BOX, "", "systemd", 7)
    assert ({4242: expected}, True, {UID, OTHER}) == (facts.processes, facts.host_pids, facts.live_pods)


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize("version", [1, 2])
def test_an_exporter_in_a_pod_with_a_private_cgroup_namespace_sees_the_others(tmp_path, driver, version):
    """
    The kernel shows it relative paths: its own pod's neighbours have no `kubepods` in theirs.
    """
    tree = CgroupTree(tmp_path, driver=driver, version=version, exporter=(OTHER, VICTIM), private=True)
    for qos in ("burstable", "guaranteed", "besteffort"):
        tree.pod(UID, qos)
        tree.process(4242, container=(UID, BOX))
        found = source(tree).read(0.0, [4242, 900]).processes
        assert (UID, BOX) == (found[4242].pod_uid, found[4242].container_id), qos


def test_a_pid_that_is_used_again_is_another_process(tmp_path):
    """
    The start time tells them apart; nothing of the old one is kept.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, container=(UID, BOX), start=10)
    kernel = source(tree)
    kernel.read(0.0, [50])
    tree.process(50, container=(OTHER, VICTIM), start=11)

    found = kernel.read(2.0, [50]).processes[50]
    assert (OTHER, 11) == (found.pod_uid, found.start_ticks)


def test_a_known_process_costs_one_read(tmp_path):
    """
    Of a process that is the same as before only its status line is read: the rest may even be gone.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, container=(UID, BOX))
    kernel = source(tree)
    before = kernel.read(0.0, [50]).processes
    (tree.proc / "50/cgroup").unlink()
    (tree.proc / "50/status").unlink()
    assert before == kernel.read(2.0, [50]).processes


def test_a_process_that_becomes_another_program_is_looked_at_again(tmp_path):
    """
    An exec keeps pid and start time, and may change user and name.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, name="sh", uid=0)
    kernel = source(tree)
    kernel.read(0.0, [50])
    tree.process(50, name="python", uid=1000)
    found = kernel.read(2.0, [50]).processes[50]
    assert ("python", 1000) == (found.name, found.uid)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_the_dead_are_absent(tmp_path, state):
    """
    A zombie holds no memory; a pid that is gone, or nonsense, is nobody.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, state=state)
    assert {} == source(tree).read(0.0, [50, 51, 0, -1]).processes


def test_a_program_whose_first_thread_has_ended_lives_on(tmp_path):
    """
    It looks like a zombie and holds its memory: nobody hides what he has by ending a thread.
    """
    code = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as program:
        end = time.monotonic() + 10
        while b") Z " not in (raw := Path(f"/proc/{program.pid}/stat").read_bytes()) and time.monotonic() < end:
            time.sleep(0.01)
        assert b") Z " in raw
        found = KernelSource(Path("/proc"), Path("/sys/fs/cgroup")).read(0.0, [program.pid]).processes
        assert program.pid in found
        program.kill()
    tree = CgroupTree(tmp_path)
    tree.process(50, path="/", state="Z", threads=2)
    tree.process(51, container=(UID, BOX))
    (tree.proc / "50/task").mkdir()
    for thread, group in ((50, "/"), (51, tree.path_of(UID, BOX))):
        (tree.proc / f"50/task/{thread}").mkdir()
        (tree.proc / f"50/task/{thread}/cgroup").write_text(f"0::{group}\n")
    assert UID == source(tree).read(0.0, [50]).processes[50].pod_uid


def test_what_is_not_asked_for_any_more_is_forgotten(tmp_path):
    """
    Ten thousand processes come and go; only the living are kept.
    """
    tree = CgroupTree(tmp_path)
    for pid in range(3000, 3020):
        tree.process(pid)
    kernel = source(tree)
    kernel.read(0.0, range(3000, 3020))
    kernel.read(1.0, [3001])
    assert {3001} == set(kernel._known)


def test_without_proc_nothing_is_told(tmp_path):
    """
    Failure is not an empty node: an error that says what to mount, or whom to run as.
    """
    tree = CgroupTree(tmp_path)
    tree.exit(1)
    with pytest.raises(SourceError, match="hidepid"):
        source(tree).read(0.0, [])
    (tree.proc / "self").unlink()
    with pytest.raises(SourceError, match="--proc"):
        source(tree).read(0.0, [])
    with pytest.raises(SourceError, match="--proc"):
        KernelSource(tmp_path / "nowhere", tree.cgroup).read(0.0, [1])


def test_it_says_whether_it_sees_the_hosts_processes(tmp_path):
    """
    A second process of that name is no proof: only a kernel thread is.
    """
    tree = CgroupTree(tmp_path)
    tree.process(2, name="kthreadd", flags=0)
    assert not source(tree).read(0.0, []).host_pids
    (tree.proc / "1/ns").mkdir()
    (tree.proc / "1/ns/pid").symlink_to(processes.FIRST_NAMESPACE)
    assert source(tree).read(0.0, []).host_pids


def test_pods_come_and_go_with_their_control_groups(tmp_path):
    """
    Within one reading; and a machine without a kubelet's folders cannot tell, which is not: none.
    """
    tree = CgroupTree(tmp_path)
    kernel = source(tree)
    assert kernel.read(0.0, []).live_pods is None
    tree.pod(UID)
    tree.pod(OTHER, "guaranteed")
    assert {UID, OTHER} == kernel.read(100.0, []).live_pods
    tree.end_pod(OTHER)
    assert {UID} == kernel.read(100.1, []).live_pods
    tree.end_pod(UID)
    assert set() == kernel.read(100.2, []).live_pods


def test_a_static_pod_lives_by_the_hash_that_is_its_uid(tmp_path):
    """
    32 hex digits instead of a UUID.
    """
    tree = CgroupTree(tmp_path)
    tree.pod("0f" * 16)
    tree.process(50, container=("0f" * 16, BOX))
    facts = source(tree).read(0.0, [50])
    assert ({"0f" * 16}, "0f" * 16) == (facts.live_pods, facts.processes[50].pod_uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize(
    "name", [f"kubepods/pod{OTHER}/{VICTIM}", f"docker-{VICTIM}.scope", f"kubepods/burstable/pod{OTHER}"]
)
def test_a_users_own_subtree_makes_nobody_a_pod(tmp_path, name):
    """
    A user is handed a subtree in which they may make groups of any name: those do not count.
    """
    tree = CgroupTree(tmp_path)
    tree.pod(UID)
    service = tree.cgroup / "user.slice/user@1000.service"
    (service / name).mkdir(parents=True)
    for folder in (service, *service.rglob("*")):
        os.chown(folder, 1000, 1000)
    tree.process(50, path=f"/user.slice/user@1000.service/{name}")
    facts = source(tree).read(0.0, [50])
    assert ("", "", {UID}) == (facts.processes[50].pod_uid, facts.processes[50].container_id, facts.live_pods)


def test_a_subtree_that_cannot_be_looked_at_is_not_believed(tmp_path):
    """
    A group with a name before the pods', whose folder is not there to be checked.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, path=f"/somewhere.slice/kubepods/pod{OTHER}/{VICTIM}")
    assert "" == source(tree).read(0.0, [50]).processes[50].pod_uid


def test_pods_beside_our_own_are_believed_where_nothing_can_be_looked_at(tmp_path):
    """
    In a kind node of cgroup v1 paths begin at the machine's root and the mounted hierarchy at the node's.
    """
    tree = CgroupTree(tmp_path, runtime="kind", driver="cgroupfs", version=1, exporter=(OTHER, VICTIM))
    tree.process(50, container=(UID, BOX))
    tree.process(51, path=f"/user.slice/kubepods/pod{UID}/{BOX}")
    shutil.rmtree(tree.cgroup)
    found = source(tree).read(0.0, [50, 51]).processes
    assert [UID, ""] == [found[pid].pod_uid for pid in (50, 51)]


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


def test_the_real_proc_of_this_machine_can_be_read():
    """
    This very process is found with its parent, whatever kernel and container this runs in.
    """
    found = KernelSource(Path("/proc"), Path("/sys/fs/cgroup")).read(0.0, [os.getpid()]).processes[os.getpid()]
    assert (os.getpid(), os.getuid()) == (found.pid, found.uid)
    assert found.start_ticks > 0
    assert found.parent_name
