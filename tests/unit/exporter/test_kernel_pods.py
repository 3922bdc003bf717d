# SPDX-License-Identifier: Apache-2.0
"""Which pod a process belongs to, whatever runtime wrote its control group, and which pods live."""

from __future__ import annotations

import os
import shutil

import pytest
from support.cgroup_tree import CgroupTree
from support.kernel_reading import BOX, OTHER, UID, VICTIM, source

from exporter.pipeline.snapshot import ProcessSample

RUNTIMES = [
    (runtime, driver, version)
    for runtime in ("containerd", "containerd-old", "crio", "docker", "kind")
    for driver in ("systemd", "cgroupfs")
    for version in (1, 2)
    if (runtime, driver) != ("containerd-old", "cgroupfs")
]


@pytest.mark.parametrize(("runtime", "driver", "version"), RUNTIMES)
def test_a_container_process_is_reported_with_its_pod_on_every_node(tmp_path, runtime, driver, version):
    """
    Pid, start, user, name, pod, container and the pid in the container, and the pods that live.
    """
    tree = CgroupTree(tmp_path, runtime=runtime, driver=driver, version=version)
    tree.pod(UID, "guaranteed")
    tree.pod(OTHER, "besteffort")
    tree.process(4242, container=(UID, BOX), uid=1000, name="train (x) 1", start=777)

    facts = source(tree).read(0.0, [4242, 4243])

    expected = ProcessSample(4242, 777, 1000, "train (x) 1", UID, BOX, "", "systemd", 7)
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
