# SPDX-License-Identifier: Apache-2.0
"""The live view on a real API server: complete, current, and unharmed by what happens to the connection."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from e2e.apiclient import connected
from e2e.kubelets import share_pod, shared_node
from e2e.proxy import wire
from support.waiting import PATIENCE_SECONDS

from isolation.kube import credentials
from isolation.kube.access import Access
from isolation.kube.core.backoff import Pace
from isolation.kube.core.errors import GoneError
from isolation.kube.informer import Informer, PodSelection
from isolation.kube.listwatch import WatchOptions

QUICK = WatchOptions(page=7, pace=Pace(first=0.05, longest=0.5))
NODES = "/api/v1/nodes"


@contextlib.asynccontextmanager
async def following(plane, kubeconfig=None, options=QUICK, pods=None):
    """A live view of this plane, synced."""
    async with (
        Access(kubeconfig or plane.kubeconfig) as access,
        Informer(access, pods, options=options).following() as live,
    ):
        await asyncio.wait_for(live.synced(), 20)
        yield live


@contextlib.asynccontextmanager
async def some_nodes(client, prefix, count=1):
    """Nodes that exist while the block lasts."""
    names = [f"{prefix}-{i}" for i in range(count)]
    await asyncio.gather(*(client.create(shared_node(name)) for name in names))
    try:
        yield set(names)
    finally:
        await asyncio.gather(*(client.delete(f"{NODES}/{name}") for name in names))


async def until(claim):
    """Wait until a claim holds; what it says last."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not claim() and time.monotonic() < end:  # noqa: ASYNC110 (a claim about anything)
        await asyncio.sleep(0.02)
    assert claim()


def names_in(live, prefix):
    """Nodes of this test as the view has them."""
    return {node.name for node in live.view().cluster.nodes if node.name.startswith(prefix)}


def test_what_exists_and_what_comes_is_seen_in_pages_and_events(plane):
    """
    Twenty nodes in pages of seven, then one more, one labelled, one deleted; pods by phase.
    """

    async def story():
        async with connected(plane) as client, some_nodes(client, "seen", 20) as names, following(plane) as live:
            assert names == names_in(live, "seen")
            async with some_nodes(client, "seen-late"):
                await until(lambda: "seen-late-0" in live.store.nodes)
            await until(lambda: "seen-late-0" not in live.store.nodes)
            await client.merge(f"{NODES}/seen-3", {"metadata": {"labels": {"colour": "blue"}}})
            await until(lambda: live.store.nodes["seen-3"].labels.get("colour") == "blue")

            made = await client.create(share_pod("seen-pod", nodeName="seen-1"))
            uid, path = made["metadata"]["uid"], "/api/v1/namespaces/default/pods/seen-pod"
            await until(lambda: uid in live.store.pods)
            await client.merge(f"{path}/status", {"status": {"phase": "Succeeded"}})
            await until(lambda: uid not in live.store.pods)
            await client.delete(path, force=True)
            return live.nodes.count.lists, live.nodes.count.failures

    assert (1, 0) == asyncio.run(story())


def test_pods_of_one_node_or_of_one_label_alone(plane):
    """
    An agent follows its node, an extender the pods with cards.
    """

    async def story():
        async with connected(plane) as client, some_nodes(client, "part", 2):
            for i, label in enumerate(("yes", "no")):
                pod = share_pod(f"part-{i}", nodeName=f"part-{i}")
                pod["metadata"]["labels"] = {"mine": label}
                await client.create(pod)
            async with (
                following(plane, pods=PodSelection(node="part-0")) as agent,
                following(plane, pods=PodSelection(labels="mine=no")) as extender,
            ):
                seen = [{pod.name for pod in live.view().cluster.pods} for live in (agent, extender)]
                nodes = set(agent.store.nodes)
            for i in range(2):
                await client.delete(f"/api/v1/namespaces/default/pods/part-{i}", force=True)
            return seen, nodes

    assert ([{"part-0"}, {"part-1"}], {"part-0"}) == asyncio.run(story())


def test_a_restart_of_the_api_server_loses_nothing(plane):
    """
    Killed and started again, with a change before the watch is back: resumed or listed again, the view is right.
    """

    async def story():
        async with following(plane) as live:
            async with connected(plane) as client, some_nodes(client, "restart"):
                await until(lambda: "restart-0" in live.store.nodes)
            await until(lambda: "restart-0" not in live.store.nodes)
            await asyncio.to_thread(plane.kill, "kube-apiserver")
            await asyncio.sleep(1.0)
            tries = live.nodes.count.failures
            await asyncio.to_thread(plane.restart_apiserver)
            async with connected(plane) as client, some_nodes(client, "restart", 3) as names:
                await until(lambda: names == names_in(live, "restart"))
            return tries

    assert 1 <= asyncio.run(story()) <= 20


def test_a_version_that_was_compacted_away_leads_to_a_new_list(plane):
    """
    The server is back with history gone: its 410 is answered by a list, and what was deleted meanwhile goes.
    """

    async def story():
        async with wire(plane.port) as through, connected(plane) as client:
            config = plane.kubeconfig_for("admin", port=through.port)
            async with some_nodes(client, "compacted", 2), following(plane, config) as live:
                through.passing.clear()
                through.cut()
                await client.delete(f"{NODES}/compacted-0")
                async with some_nodes(client, "compacted-noise", 3):
                    pass
                plane.compact()
                await asyncio.to_thread(plane.restart_apiserver)
                through.passing.set()
                await until(lambda: {"compacted-1"} == names_in(live, "compacted"))
                return live.nodes.count.lists

    assert 2 <= asyncio.run(story())


def test_a_list_whose_version_is_compacted_between_two_pages_starts_over(plane):
    """
    The second page answers 410; the list that follows is whole.
    """
    gone = []

    async def story():
        async with (
            connected(plane) as client,
            some_nodes(client, "paged", 20) as names,
            Access(plane.kubeconfig) as access,
        ):

            class Source:
                """The real thing, with a compaction and a restart after the first page."""

                lines = staticmethod(access.lines)

                async def page(self, path, query):
                    try:
                        answer = await access.page(path, query)
                    except GoneError as exc:
                        gone.append(exc)
                        raise
                    if path == NODES and "continue" not in query and not gone:
                        async with some_nodes(client, "paged-noise", 2):
                            pass
                        plane.compact()
                        await asyncio.to_thread(plane.restart_apiserver)
                    return answer

            async with Informer(Source(), options=QUICK).following() as live:
                await asyncio.wait_for(live.synced(), PATIENCE_SECONDS)
                assert names == names_in(live, "paged")
                return live.nodes.count.lists

    assert (2, 1) == (asyncio.run(story()), len(gone))


def test_a_connection_that_is_cut_is_resumed_without_a_list(plane):
    """
    The watch goes on from the last version: events in between are not lost, nothing is listed again.
    """

    async def story():
        async with wire(plane.port) as through, connected(plane) as client:
            config = plane.kubeconfig_for("admin", port=through.port)
            async with following(plane, config) as live:
                for i in range(3):
                    through.cut()
                    async with some_nodes(client, f"cut-{i}"):
                        await until(lambda i=i: f"cut-{i}-0" in live.store.nodes)
                    await until(lambda i=i: f"cut-{i}-0" not in live.store.nodes)
                return live.nodes.count.lists

    assert 1 == asyncio.run(story())


def test_a_server_that_falls_silent_is_noticed_and_found_again(plane):
    """
    Frozen, its connections open: after the idle time the watch is given up; thawed, the view is right again.
    """

    async def story():
        options = WatchOptions(pace=Pace(0.05, 0.3), idle_seconds=1.0, watch_seconds=2.0)
        async with following(plane, options=options) as live, connected(plane) as client:
            plane.freeze("kube-apiserver")
            try:
                await until(lambda: live.nodes.count.failures >= 2)
                old = live.age()
            finally:
                plane.thaw("kube-apiserver")
            async with some_nodes(client, "frozen") as names:
                await until(lambda: names == names_in(live, "frozen"))
                await until(lambda: live.age() < 1.0)  # the pods' watch comes back by itself
            return old

    assert asyncio.run(story()) >= 1.0


async def token_of(client, name):
    """A service account that may do everything, and a token of it."""
    await client.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    version, meta = "rbac.authorization.k8s.io/v1", {"name": name}
    binding = {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": meta}
    await client.create(binding | {"roleRef": role, "subjects": [subject]})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = await client.call("POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", asked)
    return made["status"]["token"]


@pytest.mark.parametrize("where", ["kubeconfig", "pod"])
def test_credentials_are_read_again_when_the_server_no_longer_takes_them(plane, tmp_path, monkeypatch, where):
    """
    A token in a file is replaced: a 401 leads to the new one, nobody restarts; by kubeconfig or as in a pod.
    """
    token, config = tmp_path / "token", None
    token.write_text("stale")
    if where == "pod":
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane.port))
        (tmp_path / "ca.crt").write_bytes(plane.ca.read_bytes())
        monkeypatch.setattr(credentials, "_ACCOUNT", tmp_path)
    else:
        config = plane.kubeconfig_of_token("renewed", token)

    async def story():
        async with connected(plane) as client:
            good = await token_of(client, f"renewed-{where}")
            async with Access(config) as access, Informer(access, options=QUICK).following() as live:
                await until(lambda: live.nodes.count.failures >= 2)
                token.write_text(good)
                await asyncio.wait_for(live.synced(), PATIENCE_SECONDS)
                return live.nodes.count.lists

    assert 2 <= asyncio.run(story())


def test_an_api_server_that_is_down_is_asked_at_a_bounded_pace(plane):
    """
    No storm: the waits grow to their bound.
    """

    async def story():
        async with following(plane, options=WatchOptions(pace=Pace(0.2, 2.0))) as live:
            await asyncio.to_thread(plane.kill, "kube-apiserver")
            before = live.nodes.count.watches
            await asyncio.sleep(5)
            asked = live.nodes.count.watches - before
            await asyncio.to_thread(plane.restart_apiserver)
            return asked

    assert 2 <= asyncio.run(story()) <= 8
