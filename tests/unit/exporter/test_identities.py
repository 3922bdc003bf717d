# SPDX-License-Identifier: Apache-2.0
"""
Names of containers from the kubelet's log folders: links are read, logs never, and names are not believed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cgroup_tree import CgroupTree

from exporter.pipeline.snapshot import ContainerIdentity
from exporter.sources import identities
from exporter.sources.errors import SourceError
from exporter.sources.identities import IdentitySource, from_link

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
OTHER = "9a0f37e1-0f6a-4a53-9f5f-30dbdd1b4f77"
BOX, NEXT, INIT = "a" * 64, "b" * 64, "c" * 64
MAIN = ContainerIdentity("ml", "train-0", "main", UID)


@pytest.fixture
def tree(tmp_path):
    """A node with one pod of three containers, one of them started twice."""
    made = CgroupTree(tmp_path)
    made.log("ml", "train-0", UID, "main", BOX)
    made.log("ml", "train-0", UID, "main", NEXT, restart=1)
    made.log("ml", "train-0", UID, "prepare", INIT)
    return made


@pytest.fixture
def source(tree):
    """The source on it."""
    return IdentitySource(tree.links)


def settle(*folders):
    """As if the folders had changed some time ago."""
    for folder in folders:
        os.utime(folder, (time.time() - 10, time.time() - 10))


def test_init_and_restarted_containers_have_names_of_their_own(source):
    """
    Each ID is a container; the pod's UID comes from the folder that the link points to.
    """
    facts = source.read(0.0)
    expected = {BOX: MAIN, NEXT: MAIN, INIT: ContainerIdentity("ml", "train-0", "prepare", UID)}
    assert (expected, "log-directory", {UID: ("ml", "train-0")}) == (facts.containers, facts.source, facts.pods)


def test_a_pod_is_known_before_its_first_container_runs(source, tree):
    """
    The kubelet makes its log folder first: a successor of the same name is distinguished at once.
    """
    (tree.pod_logs / f"ml_train-0_{OTHER}").mkdir()
    assert {UID: ("ml", "train-0"), OTHER: ("ml", "train-0")} == source.read(0.0).pods


def test_who_comes_and_goes_is_seen_at_the_next_reading(source, tree):
    """
    Also where a folder changes twice within one tick of the kernel's clock.
    """
    source.read(0.0)
    link = tree.log("web", "a.b-c", OTHER, "x", "d" * 64)
    assert ContainerIdentity("web", "a.b-c", "x", OTHER) == source.read(1.0).containers["d" * 64]
    before = tree.links.stat()
    link.unlink()
    os.utime(tree.links, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "d" * 64 not in source.read(2.0).containers


def test_a_folder_that_did_not_change_is_not_read_again(source, tree, monkeypatch):
    """
    One look at its time per reading, and of one that changed only the new links are followed.
    """
    settle(tree.links, tree.pod_logs)
    first = source.read(0.0)
    followed = []
    monkeypatch.setattr(identities.Path, "readlink", lambda path: followed.append(path.name) or "x")
    monkeypatch.setattr(identities.os, "scandir", lambda _: pytest.fail("the folder was read again"))
    assert first is source.read(1.0)
    monkeypatch.undo()
    monkeypatch.setattr(identities.Path, "readlink", lambda path: followed.append(path.name) or "x")
    name = tree.log("ml", "new", OTHER, "main", "d" * 64).name
    source.read(2.0)
    assert [name] == followed


def test_a_long_name_that_cost_the_id_its_end_is_still_found(tree, source):
    """
    The kubelet cuts the name of the link; what is left of the ID is enough, if it can mean one container only.
    """
    pod = "p" * 150
    tree.log("ml", pod, OTHER, "main", "d" * 64)
    long = "q" * 200
    tree.log("ml", long, OTHER, "main", "e" * 64)
    assert "d" * 64 in source.read(0.0).containers
    assert "e" * 64 not in source.read(0.0).containers
    assert ContainerIdentity("ml", long, "main", OTHER) == source.read(0.0, ["e" * 64]).containers["e" * 64]
    tree.log("ml", long[:-1] + "r", OTHER, "main", "e" * 64)
    assert "e" * 64 not in source.read(0.0, ["e" * 64]).containers


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (f"train-0_ml_main-{BOX}.log", f"/var/log/pods/ml_train-0_{UID}/other/0.log"),
        (f"train-0_ml_main-{BOX}.log", f"/var/log/pods/ml_train-1_{UID}/main/0.log"),
        (f"train-0_ml_main-{BOX}.log", "/etc/passwd"),
        (f"train-0_ml_main-{BOX}.log", ""),
        (f"train-0_ml_main-{BOX}.log", f"/var/log/pods/ml_train-0_{UID}_x/main/0.log"),
        (f"train-0_ml_main-{BOX}.log", "/var/log/pods/ml_train-0_no-uid/main/0.log"),
        (f"train-0_ml_main-{BOX}", f"/var/log/pods/ml_train-0_{UID}/main/0.log"),
        ("train-0_ml_main-abc.log", f"/var/log/pods/ml_train-0_{UID}/main/0.log"),
        (f'a"b_ml_main-{BOX}.log', f'/var/log/pods/ml_a"b_{UID}/main/0.log'),
        (f"A_ml_main-{BOX}.log", f"/var/log/pods/ml_A_{UID}/main/0.log"),
        (f"train-0_ml_main\n-{BOX}.log", f"/var/log/pods/ml_train-0_{UID}/main\n/0.log"),
        (f"train-0_ml_{'m' * 64}-{BOX}.log", f"/var/log/pods/ml_train-0_{UID}/{'m' * 64}/0.log"),
        (f"x_ml_y-{BOX[:20]}.log", f"/var/log/pods/ml_x_{UID}/y-{BOX[:10]}/0.log"),
    ],
)
def test_a_link_that_is_not_the_kubelets_tells_nothing(name, target):
    """
    Name and target must say the same, in names that Kubernetes allows.
    """
    assert from_link(name, target) is None


@given(st.text(max_size=120), st.text(max_size=200))
def test_any_link_is_somebody_or_nobody(name, target):
    """
    Garbage raises nothing.
    """
    assert from_link(name, target) is None


_WORD = st.text('ab-._0/\n"', min_size=1, max_size=12)


@given(_WORD, _WORD, _WORD)
def test_what_is_believed_can_stand_in_a_label(namespace, pod, container):
    """
    Whatever a folder is called, names have no characters but those of DNS.
    """
    identity = from_link(
        f"{pod}_{namespace}_{container}-{BOX}.log", f"/var/log/pods/{namespace}_{pod}_{UID}/{container}/0.log"
    )
    if identity is not None:
        who = identity[1]
        assert (namespace, pod, container) == (who.namespace, who.pod, who.container)
        assert set(f"{namespace}{container}") <= set("ab0-")
        assert set(pod) <= set("ab0-.")


def test_strange_things_among_the_links_do_no_harm(tree, source):
    """
    Folders, plain files, pipes, dangling links and names that are no text.
    """
    (tree.links / "folder").mkdir()
    (tree.links / f"train-9_ml_main-{'9' * 64}.log").write_text("a log that is no link")
    os.mkfifo(tree.links / "pipe")
    (tree.links / "dangling").symlink_to("/nowhere")
    Path(os.fsdecode(os.fsencode(tree.links) + b"/\xff\xfe-" + b"f" * 64 + b".log")).symlink_to("x")
    assert {BOX, NEXT, INIT} == set(source.read(0.0).containers)


def test_a_flood_of_links_ends_somewhere(source, monkeypatch):
    """
    Memory is bound_label, whoever fills the folder.
    """
    monkeypatch.setattr(identities, "MAX_ENTRIES", 2)
    assert len(source.read(0.0).containers) <= 2


@pytest.mark.parametrize("missing", ["containers", "pods"])
def test_without_the_folders_nothing_is_reported(tree, source, missing):
    """
    An error that names the folder and the flag, and recovery when it is there.
    """
    folder = tree.links.parent / missing
    folder.rename(tree.root / "away")
    with pytest.raises(SourceError, match=rf"{missing} .*--log-dir"):
        source.read(0.0)
    (tree.root / "away").rename(folder)
    assert BOX in source.read(1.0).containers
