# SPDX-License-Identifier: Apache-2.0
"""The rights that docs/cluster.md names are enough, and there are no others."""

from __future__ import annotations

import asyncio

import pytest
from e2e.apiclient import connected
from e2e.kubelets import share_pod, shared_node

from isolation.kube.access import Access
from isolation.kube.core.errors import RefusedError
from isolation.kube.core.lease import LeaseTiming
from isolation.kube.election import Election
from isolation.kube.informer import Informer
from isolation.kube.writes import LeaseClient, PodRef, Writer

GROUP = "rbac.authorization.k8s.io"
RIGHTS = [
    ("", ["nodes", "pods"], ["list", "watch"]),
    ("", ["pods"], ["get"]),
    ("", ["pods/binding", "pods/eviction"], ["create"]),
    ("", ["nodes", "nodes/status"], ["patch"]),
    ("events.k8s.io", ["events"], ["create"]),
    ("coordination.k8s.io", ["leases"], ["get", "create", "update"]),
]


async def grant(client, user):
    """Exactly these rights."""
    rules = [{"apiGroups": [group], "resources": things, "verbs": verbs} for group, things, verbs in RIGHTS]
    version = f"{GROUP}/v1"
    await client.create({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules})
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": user}
    subjects = [{"apiGroup": GROUP, "kind": "User", "name": user}]
    binding = {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": user}, "roleRef": role}
    await client.create(binding | {"subjects": subjects})


def test_everything_works_with_the_rights_that_are_documented(plane):
    """
    View, Lease, binding, event, status, labels, eviction; deleting a pod is not among them.
    """
    config = plane.kubeconfig_for("gpushare-test")

    async def story():
        async with connected(plane) as client, Access(config) as access, Informer(access).following() as live:
            await grant(client, "gpushare-test")
            await client.create(shared_node("rights"))
            made = await client.create(share_pod("rights", schedulerName="nobody"))
            pod = PodRef("default", "rights", made["metadata"]["uid"])
            await asyncio.wait_for(live.synced(), 30)
            writer = Writer(access, "test")
            await Election(LeaseClient(access, "default", "rights"), "me", LeaseTiming()).try_acquire_or_renew()
            done = [
                await writer.bind(pod, "rights", {}),
                await writer.event(pod, "Tried", "it works"),
                await writer.state_resources("rights", {"test.dev/plain": 1}),
                await writer.label_node("rights", {"a": "b"}, {}),
            ]
            placed = await writer.placed(pod)
            done.append(await writer.evict(pod))
            forbidden = await writer.delete(pod)
            await client.delete("/api/v1/namespaces/default/pods/rights", force=True)
            await client.delete("/api/v1/nodes/rights")
            return [bool(answer) for answer in done], placed.node, forbidden.said

    done, node, forbidden = asyncio.run(story())
    assert ([True] * 5, "rights") == (done, node)
    assert "cannot delete" in forbidden


def test_a_lease_that_may_not_be_read_is_no_right(plane):
    """
    Refused is said as it is, and nobody acts.
    """
    config = plane.kubeconfig_for("gpushare-nobody")

    async def story():
        async with Access(config) as access:
            election = Election(LeaseClient(access, "default", "rights"), "me")
            with pytest.raises(RefusedError) as refused:
                await election.try_acquire_or_renew()
            return refused.value.status, election.fence()

    assert (403, None) == asyncio.run(story())
