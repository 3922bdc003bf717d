# SPDX-License-Identifier: Apache-2.0
"""Pods of another scheduler whose label the API server refuses: held all the same, for as long as they are there."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from isolation.contract.names import CLASSIC_CARD, CLASSIC_UNITS, SHARED
from isolation.kube.core.errors import ClusterError
from isolation.kube.store import Store
from isolation.scheduler import adoption


def classic(uid, **changes):
    """A pod of 3 units on card 0."""
    notes = {CLASSIC_CARD: "0", CLASSIC_UNITS: "3"}
    meta = {"name": f"p-{uid}", "namespace": "team", "uid": uid, "annotations": notes} | changes
    limits = {"aliyun.com/gpu-mem": "3"}
    spec = {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": limits}}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


class Cluster:
    """Lists of pods, or errors, one after another; the watch shows a pod that gets the label."""

    def __init__(self, *lists, refused=""):
        self.lists, self.refused, self.labelled = list(lists), refused, []
        self.store = Store()
        self.adopted = asyncio.Event()

    async def synced(self):
        """At once."""

    async def page(self, path, query):
        """The next one; the last is repeated."""
        assert ("/api/v1/pods", f"!{SHARED}") == (path, query["labelSelector"])
        found = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(found, Exception):
            raise found
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": found}).encode()

    async def label_shared(self, pod):
        """Done, or the API server's message."""
        if not self.refused:
            self.labelled.append(pod.uid)
            self.store.pod_is(msgspec.Raw(json.dumps(classic(pod.uid, labels={SHARED: "true"})).encode()))
        return self.refused


def follow(cluster, until, monkeypatch):
    """Adopt until that is set."""
    monkeypatch.setattr(adoption, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(adoption, "AGAIN_SECONDS", 0.0)

    async def story():
        task = asyncio.create_task(adoption.Adoption(cluster, cluster, cluster, 1 << 30).run())
        async with asyncio.timeout(20):
            await until.wait()
        task.cancel()

    asyncio.run(story())


def test_pods_get_the_label_once_and_nothing_is_placed_before(monkeypatch):
    """
    An error of the API server is no empty list.
    """
    cluster = Cluster(ClusterError("away"), [classic("a"), classic("b"), {"metadata": {"name": "x"}}])
    seen = []
    cluster.store.listen(lambda change: seen.append((change.pod.uid, cluster.adopted.is_set())))
    follow(cluster, cluster.adopted, monkeypatch)
    assert ["a", "b"] == cluster.labelled
    assert [("a", False), ("b", False)] == seen


@pytest.mark.parametrize("gone", [[], [classic("b")]])
def test_without_the_label_they_are_held_until_they_are_gone(gone, monkeypatch):
    """
    By lists alone, since no watch shows them.
    """
    cluster = Cluster([classic("a")], gone, refused="policy says no")
    seen, ended = [], asyncio.Event()

    def note(change):
        seen.append(change)
        if change.pod is None:
            ended.set()

    cluster.store.listen(note)
    follow(cluster, ended, monkeypatch)
    assert 3 << 30 == seen[0].pod.placement.slices[0].bytes
    assert "a" not in cluster.store.pods
