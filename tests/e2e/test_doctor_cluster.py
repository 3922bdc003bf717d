# SPDX-License-Identifier: Apache-2.0
"""The doctor before a real API server."""

from __future__ import annotations

import asyncio

import pytest
from e2e.apiclient import connected
from e2e.doctor_answers import examined
from e2e.kubelets import share_pod, shared_node
from e2e.manifest_files import Cluster, documents


def states(found, *checks):
    """Only the states of these."""
    return {check: found[check][0] for check in checks}


@pytest.fixture(scope="module")
def installed(plane):
    """With our namespace, definition and rights, and neither webhook nor processes."""
    wanted = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role")
    wanted += ("ClusterRoleBinding", "RoleBinding")

    async def story():
        async with connected(plane) as client:
            cluster = Cluster(client)
            for thing in documents():
                if thing["kind"] in wanted:
                    await cluster.ensure(thing)

    asyncio.run(story())
    return plane


def test_what_is_missing_is_a_problem_and_what_is_there_is_not(installed):
    """
    Definition and rights are found by asking; that no webhook decides is found by trying.
    """
    found, status = examined(installed.kubeconfig)

    assert 1 == status
    assert {"cluster.server_version": "ok", "cluster.rights": "ok", "cluster.reservations": "ok"} == states(
        found, "cluster.server_version", "cluster.rights", "cluster.reservations"
    )
    assert {
        "cluster.admission": "problem",
        "cluster.admission_denies": "problem",
        "cluster.scheduler_leader": "problem",
    } == states(found, "cluster.admission", "cluster.admission_denies", "cluster.scheduler_leader")


def test_nodes_and_pods_that_break_a_rule_are_named(installed):
    """
    A bound pod without record, a strange mode, an agent that is away: each by its name.
    """

    async def story():
        async with connected(installed) as client:
            node, odd = shared_node("doc-shares"), shared_node("doc-odd", mode="cgqu")
            node["status"]["allocatable"] = node["status"]["capacity"] | {"nvidia.com/gpu": "1"}
            await client.create(node)
            await client.create(odd)
            await client.create(share_pod("doc-bare", nodeName="doc-shares"))
            try:
                return examined(installed.kubeconfig)[0]
            finally:
                await client.delete("/api/v1/namespaces/default/pods/doc-bare", force=True)
                for name in ("doc-shares", "doc-odd"):
                    await client.delete(f"/api/v1/nodes/{name}")

    found = asyncio.run(story())

    for check, name in [
        ("cluster.allocations", "default/doc-bare"),
        ("cluster.not_admitted", "default/doc-bare"),
        ("cluster.modes", "doc-odd"),
        ("cluster.mixed_resources", "doc-shares"),
        ("cluster.agents", "doc-shares"),
    ]:
        assert "problem" == found[check][0], found[check]
        assert name in found[check][1]


def test_who_may_ask_nothing_is_told_that_nothing_is_known(installed):
    """
    Forbidden is "cannot tell", never "ok" and never "problem".
    """
    config = installed.kubeconfig_for("doctor-nobody")

    found, status = examined(config)

    guesses = {check: said for check, said in found.items() if said[0] not in {"unknown", "ok"}}
    assert {} == guesses
    assert 3 == status
    assert {"cluster.server_version"} == {check for check, said in found.items() if said[0] == "ok"}


def test_a_server_that_is_not_there_is_unknown_within_its_deadline(installed):
    """
    No API server: one finding, that says what to check.
    """
    found, status = examined(installed.kubeconfig_for("admin", port=1))

    assert (3, {"cluster.server_version"}) == (status, set(found))
