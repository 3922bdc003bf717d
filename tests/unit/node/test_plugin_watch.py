# SPDX-License-Identifier: Apache-2.0
"""
The agent's view of its pods: in the order of binding, kept over a restart, never emptied by silence.
"""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import ALLOCATION
from isolation.kube.core.errors import ClusterError, MalformedError, RefusedError
from isolation.kube.core.errors import UnreachableError as ServerError
from isolation.kube.writes import Outcome, WriteResult
from isolation.node import memory
from isolation.node.watch import NodePods, Sight
from isolation.node.world import UnreachableError

RECORD = json.dumps(
    {
        "version": 1,
        "promise": "u",
        "cards": [{"uuid": "GPU-1", "index": 0, "bytes": 1 << 30, "core": 0}],
        "containers": [{"name": "main", "cards": [{"uuid": "GPU-1", "bytes": 1 << 30, "core": 0}]}],
    }
)


def pod(uid, units="1", **status):
    """A pod's object with more in it than anybody reads."""
    container = {"name": "main", "image": "x", "env": [{"name": "A", "value": "b"}]}
    container["resources"] = {"limits": {"aliyun.com/gpu-mem": units, "cpu": "1"}} if units else {}
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "ml",
            "uid": uid,
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "annotations": {ALLOCATION: RECORD, "other": "x" * 100},
            "managedFields": [{"manager": "x"}],
        },
        "spec": {"nodeName": "n", "containers": [container], "volumes": [{"name": "v"}]},
        "status": {"phase": "Pending", **status},
    }


def raw(thing):
    """As the watch brings it."""
    return msgspec.Raw(json.dumps(thing).encode())


def told(*things):
    """A view that was told of these."""
    sight = Sight()
    for thing in things:
        sight.put(raw(thing))
    return sight


def test_pods_stand_in_the_order_of_their_binding():
    """
    Whatever is told of them later: a kubelet admits them in that order, and the likeliest is asked for first.
    """
    sight = told(pod("c"), pod("a"), pod("b"), pod("c", phase="Running"), pod("x", units=None))
    assert ["c", "a", "b"] == [one.uid for one in sight.all()]
    sight.drop(raw(pod("a")))
    sight.only(frozenset({"c"}))
    assert ["c"] == [one.uid for one in sight.all()]


def test_a_pod_that_cannot_be_read_keeps_what_was_known():
    """
    It must not seem to have let go of anything.
    """
    sight = told(pod("a"))
    broken = pod("a") | {"spec": {"containers": 5}}
    for thing in (broken, {"metadata": {"name": "nobody"}}):
        with pytest.raises(MalformedError):
            sight.put(raw(thing))
    assert ["a"] == [one.uid for one in sight.all()]


def test_whoever_waits_is_woken_by_news_and_by_nothing_else():
    """
    The same word again is no news.
    """

    async def story():
        sight = told(pod("a"))
        waiting = asyncio.create_task(sight.changed(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        sight.put(raw(pod("a")))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        sight.put(raw(pod("b")))
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        return len(done)

    assert 0 == asyncio.run(story())


def test_pods_of_exempt_namespaces_are_marked():
    """
    As soon as the namespace is known, and no longer than that.
    """
    sight = told(pod("a"))
    before = [one.exempt for one in sight.all()]
    sight.exempt = frozenset({"ml"})
    sight.touch()
    assert ([False], [True]) == (before, [one.exempt for one in sight.all()])


def test_what_is_kept_over_a_restart_means_the_same(tmp_path):
    """
    A new view knows the same pods until the server's first word; what nobody reads is not kept.
    """
    running = {"name": "main", "containerID": "containerd://" + "a" * 64, "state": {"running": {}}}
    sight = told(pod("b", containerStatuses=[running]), pod("a"))
    file = tmp_path / "pods.json"
    asyncio.run(sight.keep(file))
    again = Sight()
    again.recall(file)
    assert sight.all() == again.all()
    assert "managedFields" not in file.read_text()
    assert 3 * len(RECORD) + 1500 > file.stat().st_size
    file.unlink()
    asyncio.run(sight.keep(file))
    assert not file.exists()  # nothing new to keep


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "pods": [1]}', '{"format": 2, "pods": []}']
)
def test_a_memory_that_is_none_is_left_aside(tmp_path, text):
    """
    Nothing is known then.
    """
    (tmp_path / "pods.json").write_text(text)
    assert {} == memory.load(tmp_path / "pods.json")


class Server:
    """An API server that answers as the test says; both the access and the writer."""

    def __init__(self):
        self.list, self.one, self.answer = None, None, WriteResult(Outcome.DONE)
        self.said = []

    async def page(self, path, query):
        """A list."""
        self.said.append((path, query))
        if isinstance(self.list, Exception):
            raise self.list
        await asyncio.sleep(self.list if isinstance(self.list, float) else 0)
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": self.list}).encode()

    async def send(self, *_, **__):
        """One pod."""
        if isinstance(self.one, Exception):
            raise self.one
        return json.dumps(self.one).encode()

    async def event(self, target, reason, note, *, warning):
        """Note it."""
        self.said.append((target.uid, reason, note, warning))
        raise ServerError("events are lost")

    async def delete(self, target, _seconds):
        """By UID."""
        self.said.append(target.uid)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def asked(server, work):
    """What comes of one question."""
    return asyncio.run(work(NodePods(server, server, "n")))


def test_a_fresh_list_names_this_nodes_pods():
    """
    One that cannot be read is left out, one that asks for nothing too.
    """
    server = Server()
    server.list = [pod("a"), {"metadata": {"uid": "b"}, "spec": 5}, pod("c", units=None)]
    found = asked(server, lambda pods: pods.fetch(1.0))
    assert (["a"], True) == ([one.uid for one in found], "spec.nodeName=n" in server.said[0][1]["fieldSelector"])


@pytest.mark.parametrize("trouble", [3600.0, ServerError("x"), RefusedError(503), ClusterError("y")], ids=str)
def test_no_answer_is_never_taken_for_nothing(trouble):
    """
    Late, unreachable or refused: nothing is known.
    """
    server = Server()
    server.list = trouble
    with pytest.raises(UnreachableError):
        asked(server, lambda pods: pods.fetch(0.05))
    if not isinstance(trouble, float):
        server.one = trouble
        with pytest.raises(UnreachableError):
            asked(server, lambda pods: pods.get("ml", "a"))


def test_only_404_says_that_a_pod_is_not_there():
    """
    An answer that is no pod says nothing.
    """
    server = Server()
    server.one = RefusedError(404)
    gone = asked(server, lambda pods: pods.get("ml", "a"))
    server.one = pod("a")
    there = asked(server, lambda pods: pods.get("ml", "a"))
    server.one = {"kind": "Status"}
    with pytest.raises(UnreachableError):
        asked(server, lambda pods: pods.get("ml", "a"))
    assert (None, "a") == (gone, there.uid)


@pytest.mark.parametrize(
    ("answer", "fine"),
    [
        (WriteResult(Outcome.DONE), True),
        (WriteResult(Outcome.GONE), True),
        (WriteResult(Outcome.REFUSED, "Precondition failed: UID in precondition"), True),
        (WriteResult(Outcome.REFUSED, "forbidden"), False),
        (WriteResult(Outcome.BLOCKED, "later"), False),
        (ServerError("nobody"), False),
    ],
    ids=["done", "gone", "another", "forbidden", "busy", "unreachable"],
)
def test_a_pod_is_deleted_by_uid_and_told_why_first(answer, fine):
    """
    An Event that is lost stops nothing; a deletion that did not happen is told.
    """
    server = Server()
    server.answer = answer
    (one,) = told(pod("a")).all()
    if fine:
        asked(server, lambda pods: pods.delete(one, "because"))
    else:
        with pytest.raises(UnreachableError):
            asked(server, lambda pods: pods.delete(one, "because"))
    assert [("a", "WrongDevices", "because", True), "a"] == server.said
