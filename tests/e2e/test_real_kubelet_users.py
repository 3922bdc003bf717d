# SPDX-License-Identifier: Apache-2.0
"""Pods with users of their own (`hostUsers: false`): root in the container is nobody on the node, limits hold."""

from __future__ import annotations

import pytest
from realkubelet.harness import play, real_node
from realkubelet.pods import GIB, container, facts, pod_of

TAKE = ("512", "900")


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def test_limits_hold_in_a_user_namespace_and_a_volume_through_a_link_does_not_hide_them(stage):
    """
    The guard mounts from the host's side: our files are on top though root of the container may not touch the host's.
    """
    config = {"name": "v", "configMap": {"name": "users"}}
    over = [{"name": "v", "mountPath": "/a/b/c/link/ld.so.preload", "subPath": "p"}]

    async def story(client):
        await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "users"}, "data": {"p": ""}})
        await stage.place(client, pod_of("plain", container("main", 1, *TAKE), hostUsers=False), 0)
        hides = container("main", 1, *TAKE, volumeMounts=over)
        await stage.place(client, pod_of("hides", hides, hostUsers=False, volumes=[config]), 1)
        told = []
        for name in ("plain", "hides"):
            pod = await stage.running_pod(client, name)
            box = stage.node.containers(pod["metadata"]["uid"])["main"]
            told.append((facts(stage.said(pod)), stage.node.execute(box, "/bin/cat", "/proc/self/uid_map").split()))
        await client.delete("/api/v1/namespaces/default/configmaps/users")
        return told

    for (said, users), card in zip(play(stage, story), stage.cards, strict=True):
        assert (["0", "2"], [str(GIB)]) == (said["take"], said["total"])
        assert [card.removeprefix("GPU-").replace("-", "")] == said["card"]
        assert "0" == users[0] != users[1], "its root is another user of the node"
