# SPDX-License-Identifier: Apache-2.0
"""The demo overlay and its tenants, applied as docs/install.md says: admitted, placed card by card, bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest
from e2e.kubelets import Kubelets
from e2e.manifest_build import MANIFESTS
from e2e.manifest_harness import installed, scheduling, standing
from e2e.sharing import bound, card_node, clear, untainted
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec import decode_allocation
from isolation.contract.names import ACK, ALLOCATION, SCHEDULER, SHARED
from isolation.contract.quantity import GIB

TENANTS = MANIFESTS / "overlays/demo/tenants"
NODE, CARDS, CARD_GIB = "demo-gpu", 2, 14
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own, at the ports that the manifests name."""
    with standing(tmp_path_factory.mktemp("demo")) as started:
        yield started


@contextlib.asynccontextmanager
async def labelled(client):
    """A node with the demo's two cards, as its agent tells of it once it is labelled core_mem."""
    node = card_node(NODE, CARDS, CARD_GIB, "core_mem", **{"kubernetes.io/os": "linux"})
    for part in ("capacity", "allocatable"):
        node["status"][part] |= {ACK.compute: str(100 * CARDS)}
    async with Kubelets(client, [node]).alive():
        await untainted(client)
        yield


def test_the_demos_tenants_get_what_their_page_says(plane, tmp_path):
    """
    `kubectl apply` of the three tenants, on the client's and on the server's side: nothing of theirs is pruned or
    warned of; each is given our scheduler and 4 GiB and 25 % of one of the node's two cards, within what these have.
    """

    async def story():
        given = {"components": (), "pairs": ("scheduler",)}
        async with (
            installed(plane, tmp_path, **given) as installation,
            labelled(installation.client),
            scheduling(installation),
        ):
            words = ("kubectl", "-n", "gpushare-system", "rollout", "status", "deployment/gpushare-scheduler")
            rolled = await asyncio.to_thread(installation.run, *words, f"--timeout={PATIENCE_SECONDS:.0f}s")
            applied = [
                await asyncio.to_thread(installation.run, "kubectl", "apply", *more, "-k", str(TENANTS))
                for more in ((), ("--server-side",))
            ]
            try:
                found = await installation.client.until(lambda pods: len(bound(pods)) == 3, PODS)
                await installation.client.until(
                    lambda one: one["status"].get("readyReplicas") == 3,
                    "/apis/apps/v1/namespaces/default/deployments/gpushare-demo",
                )
            finally:
                await clear(installation.client)
            return rolled, applied, found["items"]

    rolled, applied, pods = asyncio.run(story())
    assert "successfully rolled out" in rolled
    assert [
        "deployment.apps/gpushare-demo created\n",
        "deployment.apps/gpushare-demo serverside-applied\n",
    ] == applied
    assert {(SCHEDULER, "true", NODE)} == {
        (one["spec"]["schedulerName"], one["metadata"]["labels"][SHARED], one["spec"]["nodeName"]) for one in pods
    }
    slices = [decode_allocation(one["metadata"]["annotations"][ALLOCATION]).slices for one in pods]
    assert [(4 * GIB, 25)] * 3 == [(part.bytes, part.core) for parts in slices for part in parts]
    taken = Counter(part.uuid for parts in slices for part in parts)
    assert taken.keys() <= {f"GPU-{NODE}-{index}" for index in range(CARDS)}
    assert max(taken.values()) * 4 <= CARD_GIB
