# SPDX-License-Identifier: Apache-2.0
"""
Names of containers from the kubelet's Pods API: asked seldom, and never in the way.
"""

from __future__ import annotations

import itertools

import pytest
from support.cgroup_tree import CgroupTree
from support.fake_kubelet import FakeKubelet
from support.waiting import PATIENCE_SECONDS, until

from exporter.pipeline.snapshot import ContainerIdentity
from exporter.sources.errors import SourceError
from exporter.sources.identities import REFRESH_SECONDS, REST_SECONDS, IdentitySource
from isolation.contract import kubelet_api as api

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
OTHER = "9a0f37e1-0f6a-4a53-9f5f-30dbdd1b4f77"
BOX, INIT, DEBUG, LATE = "a" * 64, "b" * 64, "c" * 64, "d" * 64


@pytest.fixture
def kubelet():
    """A kubelet with the Pods API and one pod."""
    with FakeKubelet(pods_api=True) as made:
        ids = {"main": BOX, "prepare": f"cri-o://{INIT}", "debug": DEBUG, "waiting": ""}
        made.add("ml", "train-0", {}, uid=UID, ids=ids, init=frozenset({"prepare"}), ephemeral=frozenset({"debug"}))
        yield made


@pytest.fixture
def tree(tmp_path):
    """The same node's log folders, which know another container."""
    made = CgroupTree(tmp_path)
    made.log("ml", "logged", OTHER, "main", LATE)
    return made


@pytest.fixture
def source(kubelet, tree):
    """The source on both."""
    made = IdentitySource(tree.links, kubelet.pods_socket, PATIENCE_SECONDS)
    yield made
    made.close()


def test_every_kind_of_container_has_its_name(source):
    """
    Regular, init and ephemeral ones, of every runtime; one without an ID has none yet.
    """
    names = {BOX: "main", INIT: "prepare", DEBUG: "debug"}
    facts = source.read(0.0)
    expected = {ident: ContainerIdentity("ml", "train-0", name, UID) for ident, name in names.items()}
    assert (expected, "pods-api", {UID: ("ml", "train-0")}) == (facts.containers, facts.source, facts.pods)


def test_it_is_asked_only_while_somebody_is_unknown(source, kubelet):
    """
    What an ID means never changes; the answer is whole pods. Now and then, to forget who is gone.
    """
    for turn in range(20):
        source.read(2.0 * turn, [BOX, INIT], [UID])
    assert {"ListPods": 1} == kubelet.calls
    kubelet.add("ml", "late", {}, uid=OTHER, ids={"main": LATE})
    assert ContainerIdentity("ml", "late", "main", OTHER) == source.read(40.0, [BOX, LATE]).containers[LATE]
    kubelet.remove("ml", "late", OTHER)
    source.read(41.0, [BOX])
    assert {"ListPods": 2} == kubelet.calls
    assert LATE not in source.read(40.0 + REFRESH_SECONDS, [BOX]).containers


def test_a_pod_that_is_new_to_the_node_is_asked_for(source, kubelet):
    """
    A live UID without a name is reason enough, before any of its containers is seen.
    """
    source.read(0.0)
    kubelet.add("ml", "train-0", {}, uid=OTHER)
    assert ("ml", "train-0") == source.read(2.0, (), [UID, OTHER]).pods[OTHER]


def test_an_id_that_stays_unknown_is_asked_for_ever_more_seldom(source, kubelet):
    """
    A container that is none of the kubelet's must not cost whole pods at every reading.
    """
    for turn in range(100):
        source.read(float(turn), ["e" * 64])
    assert kubelet.calls["ListPods"] <= 10


def test_without_the_api_the_log_folders_tell(kubelet, tree):
    """
    No socket, no API: an older kubelet.
    """
    for source in (
        IdentitySource(tree.links, kubelet.folder / "none.sock"),
        IdentitySource(tree.links),
    ):
        facts = source.read(0.0)
        assert ("log-directory", [LATE]) == (facts.source, list(facts.containers))


@pytest.mark.parametrize("fault", ["slow", "refused", "starting", "gone"])
def test_an_api_that_fails_is_left_alone_for_a_while(kubelet, tree, fault):
    """
    The log folders tell meanwhile, without a deadline at every reading; then it is asked again.
    """
    source = IdentitySource(tree.links, kubelet.pods_socket, 0.5 if fault == "slow" else PATIENCE_SECONDS)
    match fault:
        case "slow":
            kubelet.delay = 3600
        case "refused":
            kubelet.refuse = -1
        case "starting":
            kubelet.initializing = True
        case "gone":
            kubelet.gone()
            kubelet.pods_socket.touch()  # a leftover
    assert "log-directory" == source.read(0.0).source
    asked = kubelet.calls["ListPods"]
    assert "log-directory" == source.read(1.0, [BOX]).source
    assert asked == kubelet.calls["ListPods"]
    kubelet.delay, kubelet.refuse, kubelet.initializing = 0, 0, False
    if fault == "gone":
        kubelet.pods_socket.unlink()
        kubelet.back()
    turns = itertools.count(1.0 + REST_SECONDS, REST_SECONDS)  # more than one for a machine that is slow itself
    assert until(lambda: source.read(next(turns), [BOX]).source == "pods-api")
    source.close()


def test_with_neither_there_is_an_error(kubelet, tmp_path):
    """
    The API's own, since it is the one that should work.
    """
    kubelet.initializing = True
    source = IdentitySource(tmp_path / "no-logs/containers", kubelet.pods_socket)
    with pytest.raises(SourceError, match="Pods API"):
        source.read(0.0)
    source.close()


def test_one_pod_that_cannot_be_read_takes_nobody_with_it(source, kubelet, monkeypatch):
    """
    Bytes that are no pod, and names that Kubernetes does not allow.
    """
    kubelet.add("ml", "Bad Name", {}, uid=OTHER, ids={"main": LATE})
    kubelet.add("ml", "bad-id", {}, uid=OTHER, ids={"main": "not-hex"})
    answer = kubelet._list_pods

    def with_garbage(request, context):
        reply = answer(request, context)
        return api.ListPodsResponse(pods=[b"\xff\xff\xff", *reply.pods])

    kubelet.gone()
    monkeypatch.setattr(kubelet, "_list_pods", with_garbage)
    kubelet.back()
    assert {BOX, INIT, DEBUG} == set(source.read(0.0).containers)
