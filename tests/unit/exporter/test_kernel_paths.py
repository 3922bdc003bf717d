# SPDX-License-Identifier: Apache-2.0
"""
Control group paths of every runtime, and what nobody may gain by choosing names.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.pipeline.cgroup_paths import NOWHERE, CgroupPlace, nest, place, place_of

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
OTHER = "9a0f37e1-0f6a-4a53-9f5f-30dbdd1b4f77"
FLAT = UID.replace("-", "_")
STATIC = "0f2d1c3b4a5968778695a4b3c2d1e0f1"
BOX, VICTIM, NODE = "a" * 64, "b" * 64, "e" * 64
SAMPLE = Path(__file__).resolve().parents[3].parent / "shared" / "samples" / "kubelet-cgroup-path.txt"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{BOX}.scope",
            CgroupPlace(UID, BOX),
        ),
        (f"/kubepods.slice/kubepods-pod{FLAT}.slice/cri-containerd-{BOX}.scope", CgroupPlace(UID, BOX)),
        (f"/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{BOX}.scope/container", CgroupPlace(UID, BOX)),
        (f"/kubepods.slice/kubepods-pod{FLAT}.slice/docker-{BOX}.scope", CgroupPlace(UID, BOX)),
        (f"/kubepods.slice/kubepods-pod{FLAT}.slice/crio-conmon-{BOX}.scope", CgroupPlace(UID, "")),
        (f"/kubepods/pod{UID}/{BOX}", CgroupPlace(UID, BOX)),
        (f"/kubepods/burstable/pod{UID}/{BOX}", CgroupPlace(UID, BOX)),
        (f"/kubepods/besteffort/pod{UID}/crio-{BOX}", CgroupPlace(UID, BOX)),
        (f"/kubepods/burstable/pod{STATIC}/{BOX}", CgroupPlace(STATIC, BOX)),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice", CgroupPlace(STATIC, "")),
        (
            f"/system.slice/containerd.service/kubepods-burstable-pod{FLAT}.slice:cri-containerd:{BOX}",
            CgroupPlace(UID, BOX, "system.slice/containerd.service"),
        ),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/cri-containerd-{BOX}.scope",
            CgroupPlace(UID, BOX, "kubelet.slice"),
        ),
        (f"/docker/{NODE}/kubelet/kubepods/besteffort/pod{UID}/{BOX}", CgroupPlace(UID, BOX, f"docker/{NODE}/kubelet")),
        (f"/../../kubepods-burstable-pod{FLAT}.slice/cri-containerd-{BOX}.scope", CgroupPlace(UID, BOX)),
        (f"/../../../kubepods-pod{FLAT}.slice/cri-containerd-{BOX}.scope", CgroupPlace(UID, BOX)),
        (
            f"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/cri-containerd-{BOX}.scope",
            CgroupPlace(UID, BOX),
        ),
        (f"/../../pod{UID}/{BOX}", CgroupPlace(UID, BOX)),
        (f"/../../../besteffort/pod{UID}/{BOX}", CgroupPlace(UID, BOX)),
        (f"/../../../../kubepods/pod{UID}/{BOX}", CgroupPlace(UID, BOX)),
        (f"/../../../../user.slice/u/kubepods/pod{UID}/{BOX}", CgroupPlace(UID, BOX, "user.slice/u")),
        (f"/../{BOX}", CgroupPlace("", BOX)),
        (f"/../../../../docker/{BOX}", CgroupPlace("", BOX, "docker")),
        (f"/docker/{BOX}", CgroupPlace("", BOX, "docker")),
        (f"/system.slice/docker-{BOX}.scope", CgroupPlace("", BOX, "system.slice")),
        (f"/machine.slice/libpod-{BOX}.scope/container", CgroupPlace("", BOX, "machine.slice")),
        (f"/machine.slice/libpod-conmon-{BOX}.scope", NOWHERE),
        ("/user.slice/user-1000.slice/session-3.scope", NOWHERE),
        ("/", NOWHERE),
        (f"/pod{UID}/{BOX}", CgroupPlace("", BOX, f"pod{UID}")),
    ],
)
def test_every_runtime_and_driver_is_understood(path, expected):
    """
    Pod and container, whoever named the group; a folder that merely looks like a pod's is none.
    """
    assert expected == place_of(path)


@pytest.mark.parametrize(
    "forged",
    [
        f"kubepods/pod{OTHER}/{VICTIM}",
        f"kubepods.slice/kubepods-pod{OTHER.replace('-', '_')}.slice/cri-containerd-{VICTIM}.scope",
        f"docker/{VICTIM}",
        f"pod{OTHER}/{VICTIM}",
        f"system.slice/containerd.service/kubepods-pod{OTHER.replace('-', '_')}.slice:cri-containerd:{VICTIM}",
        f"../kubepods/pod{OTHER}/{VICTIM}",
    ],
)
@pytest.mark.parametrize(
    "own",
    [
        f"/kubepods/burstable/pod{UID}/{BOX}",
        f"/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{BOX}.scope",
        f"/../../pod{UID}/{BOX}",
        f"/../../kubepods-pod{FLAT}.slice/cri-containerd-{BOX}.scope",
    ],
)
def test_no_container_becomes_another_by_the_groups_it_makes_below_its_own(own, forged):
    """
    A privileged tenant, or one with a container engine inside, stays who it is.
    """
    assert CgroupPlace(UID, BOX) == place_of(f"{own}/{forged}")


def test_a_cluster_inside_a_pod_counts_from_its_own_kubelet_on():
    """
    Where the exporter runs in a pod of a node that is itself a pod, the outer pod is everybody's.
    """
    outer = f"/kubepods/burstable/pod{OTHER}/{NODE}"
    own = f"0::{outer}/kubelet/kubepods/burstable/pod{UID}/{BOX}\n"
    below = nest(own)
    assert f"{outer}/kubelet" == below
    assert CgroupPlace(UID, VICTIM) == place(f"0::{outer}/kubelet/kubepods/pod{UID}/{VICTIM}\n", below)
    assert CgroupPlace(OTHER, NODE) == place(f"0::{outer}/system.slice/kubelet.service\n", below)
    assert "" == nest(f"0::/kubepods/burstable/pod{UID}/{BOX}\n") == nest("0::/\n")


def test_the_hierarchy_that_knows_a_pod_wins():
    """
    In version 1 some controllers may be elsewhere, and the empty unified line says nothing.
    """
    text = f"5:devices:/\n4:memory:/docker/{BOX}\n3:cpu,cpuacct:/kubepods/pod{UID}/{BOX} (deleted)\n0::/\n"
    assert CgroupPlace(UID, BOX) == place(text)
    assert CgroupPlace("", BOX, "docker") == place(f"4:memory:/docker/{BOX}\n0::/\n")


@pytest.mark.skipif(not SAMPLE.exists(), reason="the recorded kubelet payloads are not beside this checkout")
def test_a_recorded_container_is_found():
    """
    The groups of a container of a real kubelet 1.36, cgroup v1 and cgroupfs.
    """
    text = SAMPLE.read_text()
    assert CgroupPlace(*re.search(r"pod([0-9a-f-]{36})/([0-9a-f]{64})", text).groups()) == place(text)


@given(st.text(max_size=300))
def test_any_text_is_a_place_or_none(text):
    """
    Garbage is nowhere, and what is found has the form of an id.
    """
    for found in (place(text), place_of(text), place(f"0::{text}")):
        assert found.pod_uid == "" or re.fullmatch(r"[0-9a-f-]{32,36}", found.pod_uid)
        assert found.container_id == "" or re.fullmatch(r"[0-9a-f]{64}", found.container_id)


_SEGMENT = st.sampled_from(
    [
        "kubepods",
        "kubepods.slice",
        "burstable",
        f"pod{OTHER}",
        VICTIM,
        f"docker-{VICTIM}.scope",
        "..",
        "x",
        "docker",
        "",
    ]
)


@given(st.lists(_SEGMENT, max_size=6))
def test_nothing_below_a_container_changes_what_it_is(tail):
    """
    However the names below are put together.
    """
    assert CgroupPlace(UID, BOX) == place_of("/".join([f"/kubepods/besteffort/pod{UID}/{BOX}", *tail]))
