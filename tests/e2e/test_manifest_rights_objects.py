# SPDX-License-Identifier: Apache-2.0
"""The manifests as they are committed, before a real API server."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from e2e.apiclient import RefusedError, connected
from e2e.manifest_build import kubectl
from e2e.manifest_files import BASE, Cluster, documents
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import AUTOSCALER, EXPORTER, KUBE_SCHEDULER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE

OURS = (SCHEDULER, KUBE_SCHEDULER, NODE_AGENT, AUTOSCALER, EXPORTER)
THINGS = documents()
IDS = [f"{one['kind']}-{one['metadata']['name']}-{one['metadata'].get('namespace', '')}" for one in THINGS]


@pytest.fixture(scope="module")
def home(plane):
    """With our namespace, which stays: other tests use it too."""

    async def story():
        async with connected(plane) as client:
            await Cluster(client).ensure(next(one for one in THINGS if one["kind"] == "Namespace"))

    asyncio.run(story())
    return plane


def test_every_object_is_accepted_as_it_is(home):
    """
    Strictly: a field that Kubernetes does not know would be refused, a missing kind too.
    """

    async def story():
        refused = {}
        async with connected(home) as client:
            cluster = Cluster(client)
            for name, thing in zip(IDS, THINGS, strict=True):
                if thing["kind"] == "Namespace":
                    continue
                try:
                    await cluster.rehearse(thing)
                except RefusedError as exc:
                    refused[name] = str(exc)
        return refused

    assert {} == asyncio.run(story())


def test_kubectl_applies_the_folder_as_it_is(home):
    """
    `kubectl apply -k manifests/base`, rehearsed by the server: every object of every file, and no complaint.
    """
    command = [
        kubectl(),
        "apply",
        "-k",
        str(BASE),
        "--dry-run=server",
        "--kubeconfig",
        str(home.kubeconfig),
        "-o",
        "name",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    assert (0, "") == (done.returncode, _complaints(done.stderr))
    assert len(THINGS) == len(done.stdout.split())


def _complaints(text):
    """What kubectl says, without its notes on objects that other tests created by hand."""
    return "\n".join(line for line in text.splitlines() if "missing the kubectl.kubernetes.io/last-applied" not in line)


def test_the_accounts_are_those_of_the_contract():
    """
    Admission exempts these names, so nobody else's may stand in the manifests.
    """
    accounts = {(a["metadata"]["namespace"], a["metadata"]["name"]) for a in THINGS if a["kind"] == "ServiceAccount"}
    assert {(SYSTEM_NAMESPACE, name) for name in OURS} == accounts
    assert (BASE / "kustomization.yaml").is_file()
