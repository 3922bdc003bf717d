# SPDX-License-Identifier: Apache-2.0
"""
Processes of a pod's containers, over the forms in which kubelets and runtimes make control groups.
"""

from __future__ import annotations

import itertools

import pytest
from support.cgroup_tree import CgroupTree

from isolation.node.cgroups import KernelCgroups

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
CID = "c" * 64
FORMS = [
    (runtime, driver, version)
    for runtime, driver, version in itertools.product(
        ("containerd", "crio", "kind", "containerd-old"), ("systemd", "cgroupfs"), (1, 2)
    )
    if runtime != "containerd-old" or driver == "systemd"
]


def populate(tree, *pids, container=CID):
    """Processes in the container's control group, in every hierarchy."""
    path = tree.path_of(UID, container).lstrip("/")
    for root in tree._roots():
        group = root / path
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


@pytest.mark.parametrize("qos", ["guaranteed", "burstable", "besteffort"])
@pytest.mark.parametrize(("runtime", "driver", "version"), FORMS)
def test_processes_are_found_by_container_and_by_being_no_known_containers(tmp_path, runtime, driver, version, qos):
    """
    Both versions, both drivers, three runtimes, a cluster in a container, three classes.
    """
    tree = CgroupTree(tmp_path, runtime=runtime, driver=driver, version=version)
    tree.pod(UID, qos=qos)
    groups = KernelCgroups(tree.cgroup)
    assert not groups.pids(UID, CID)

    populate(tree, 42, 43)
    assert {42, 43} == groups.pids(UID, CID) == groups.strays(UID, {"d" * 64})
    assert frozenset() == groups.pids(UID, "d" * 64) == groups.strays(UID, {CID})

    populate(tree)
    assert frozenset() == groups.pids(UID, CID) == groups.strays(UID, ())


@pytest.mark.parametrize("version", [1, 2])
def test_what_cri_o_runs_beside_a_container_is_none_of_its_processes(tmp_path, version):
    tree = CgroupTree(tmp_path, runtime="crio", driver="cgroupfs", version=version)
    tree.pod(UID)
    populate(tree, 43)
    for folder in tree.cgroup.rglob(f"crio-{CID}"):
        monitor = folder.with_name(f"crio-conmon-{CID}")
        monitor.mkdir()
        (monitor / "cgroup.procs").write_text("42\n")
    groups = KernelCgroups(tree.cgroup)

    assert {43} == groups.pids(UID, CID)
    populate(tree)
    assert frozenset() == groups.pids(UID, CID) == groups.strays(UID, ())


def test_a_pod_without_group_has_no_processes_and_others_are_not_its(tmp_path):
    """
    Gone is gone; a neighbour is somebody else.
    """
    tree = CgroupTree(tmp_path)
    tree.pod(UID)
    populate(tree, 42)

    assert frozenset() == KernelCgroups(tree.cgroup).strays(UID.replace("1", "2"), ())


@pytest.mark.parametrize("uid", ["", "..", "*", f"{UID}/..", "pod"])
def test_what_is_no_uid_is_not_looked_for(tmp_path, uid):
    """
    None, which nobody takes for gone.
    """
    tree = CgroupTree(tmp_path)
    tree.pod(UID)

    assert KernelCgroups(tree.cgroup).strays(uid, ()) is None


def test_without_a_tree_of_pods_nothing_is_known_until_there_is_one(tmp_path):
    """
    The kubelet may come later than we.
    """
    groups = KernelCgroups(tmp_path / "sys/fs/cgroup")
    assert groups.pids(UID, CID) is None

    CgroupTree(tmp_path).pod(UID)
    assert frozenset() == groups.pids(UID, CID)
