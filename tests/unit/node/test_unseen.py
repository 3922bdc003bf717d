# SPDX-License-Identifier: Apache-2.0
"""Pods that nobody has seen at their admission: named later, kept apart, and given nothing that is another's."""

from __future__ import annotations

import contextlib

import pytest
from support.agent_story import ended, run, started, ticks, unseen

from isolation.node.book import Entry, hash_of
from isolation.node.world import NotYetError


@pytest.fixture
def node():
    return started()


@pytest.mark.parametrize("settled", ["by a turn", "by the start"])
def test_containers_of_an_unseen_pod_get_their_owner_later(node, settled):
    """
    Init, sidecar and app, admitted in the dark: each starts with its own name and its own devices.
    """
    pod, boxes = unseen(node, "a", init=("fetch",), fetch=(0, 4), side=(0, 1), main=(0, 3))
    assert [""] * 3 == [entry.uid for entry in node.agent.book]
    node.watched["a"] = pod
    if settled == "by a turn":
        ticks(node, 1)

    promises = {}
    for name in ("fetch", "side", "main"):
        promises[name] = run(node.start("a", name))
        node.change("a", wanted=tuple(ended(one) if one.name == name else one for one in node.api["a"].wanted))

    assert {name: name for name in boxes} == {name: promise.container for name, promise in promises.items()}
    assert boxes == {entry.container: entry.ids for entry in node.agent.book}


def test_two_unseen_pods_of_one_shape_keep_apart(node):
    """
    Their init containers are told apart by the devices that they share with their own apps.
    """
    pods = {name: unseen(node, name, init=("fetch",), fetch=(0, 2), main=(0, 2)) for name in ("a", "b")}
    for name, (pod, _) in pods.items():
        node.watched[name] = pod
    for name in ("b", "a"):
        promise = run(node.start(name, "fetch"))
        assert (name, "fetch") == (promise.pod.name, promise.container)


def test_an_unseen_pod_with_somebodys_devices_does_not_start_under_that_name(node):
    """
    The kubelet gave a running pod's devices to one that we have not heard of: it waits until it is known.
    """
    node.bind("a", main=(0, 8))
    ids = run(node.admit("a"))["main"]
    run(node.start("a", "main"))
    twin = node.bind("b", watched=False, main=(0, 8))
    node.api_up = False
    run(node.agent.allocate([sorted(ids)]))
    node.admitted[twin.uid] = {"main": ids}

    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))
    assert "a" == node.files[hash_of(ids)].pod.name

    node.api_up, node.watched["b"] = True, twin
    with pytest.raises(NotYetError):
        run(node.agent.prestart(sorted(ids)))
    ticks(node, 5)
    assert ["b"] == [name for name, _ in node.deleted]


def test_unknown_devices_are_kept_while_they_may_be_somebodys(node):
    """
    An outage of the API server is no reason; when it is over and nobody comes, they are free.
    """
    pod, _ = unseen(node, "a", main=(0, 4))
    ticks(node, 10)
    assert 4 == len(node.agent.book.held())
    node.watching = False
    ticks(node, 60)
    assert 4 == len(node.agent.book.held())

    del node.api["a"], node.admitted[pod.uid]
    node.watching = True
    ticks(node, 30)
    assert set() == node.agent.book.held()


@pytest.mark.parametrize("units", [2, 3], ids=["of the very same size", "of another size"])
def test_devices_of_unknown_init_containers_are_delivered_to_nobody_by_guess(node, units):
    """
    Two pods of init containers in the dark, on cards of anybody's choice: neither gets the other's promise, and
    neither waits for ever.
    """
    node.has_get = False
    for name, size in (("a", 2), ("b", units)):
        pod, _ = unseen(node, name, init=("fetch",), fetch=(0, size))
        node.watched[name] = pod
    node.has_get = True
    for _ in range(6):
        for name in ("a", "b"):
            if name in node.api and node.api[name].uid not in node.processes:
                with contextlib.suppress(NotYetError):
                    assert name == run(node.start(name, "fetch")).pod.name
        ticks(node, 10)
    assert all(pod.uid in node.processes for pod in node.api.values())


def test_devices_of_an_unknown_pod_are_not_given_to_one_that_has_its_own(node):
    """
    A pod with nothing but an init container runs; another of its size is admitted unseen, on the first one's card.

    The record of the first would fit. It has its devices, though; the other one has none, and got wrong ones.
    """
    first = node.bind("first", init=("prepare",), prepare=(1, 2))
    mine = run(node.admit("first"))["prepare"]
    run(node.start("first", "prepare"))
    second = node.bind("second", init=("prepare",), prepare=(0, 2))
    ids = node.ids(1, 6, 7)
    node.agent._ledger.claim(Entry(ids, made=node.agent.book.next()))
    node.admitted[second.uid] = {"prepare": ids}

    with pytest.raises(NotYetError, match="GPU-1, but the pod was placed on GPU-0"):
        run(node.agent.prestart(sorted(ids)))
    assert mine == node.agent.book.get(first.uid, "prepare").ids
    assert first.uid == node.files[hash_of(mine)].pod.uid
    ticks(node, 4)
    assert ["second"] == [name for name, _ in node.deleted]
