# SPDX-License-Identifier: Apache-2.0
"""Every overlay before a real API server, as `kubectl apply -k` would give it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess

import pytest
from e2e.apiclient import RefusedError, connected
from e2e.foreign_kinds import definitions
from e2e.manifest_build import BUILDS, IDS, OVERLAYS, kubectl, objects, templates, write
from e2e.manifest_files import Cluster, documents
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import EXPORTER, NODE_AGENT

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PICKY = "picky-pods"
HOST = {NODE_AGENT, EXPORTER}
"""Those that reach into the host."""


@contextlib.asynccontextmanager
async def foreign(client):
    """The kinds of others are installed."""
    for one in definitions():
        with contextlib.suppress(RefusedError):
            await client.create(one)
    for one in definitions():
        await client.until(
            lambda crd: any(
                c["type"] == "Established" and c["status"] == "True"
                for c in crd.get("status", {}).get("conditions", ())
            ),
            f"{CRDS}/{one['metadata']['name']}",
        )
    try:
        yield
    finally:
        for one in definitions():
            await client.delete(f"{CRDS}/{one['metadata']['name']}")


@pytest.fixture(scope="module")
def home(plane):
    """With our namespace and kind, which stay, and the kinds of others, which go."""

    async def begin(stack):
        client = await stack.enter_async_context(connected(plane))
        for thing in documents():
            if thing["kind"] in ("Namespace", "CustomResourceDefinition"):
                await Cluster(client).ensure(thing)
        await stack.enter_async_context(foreign(client))
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PICKY, "labels": labels}})
        await client.until(bool, f"/api/v1/namespaces/{PICKY}/serviceaccounts/default")
        return client

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        client = runner.run(begin(stack))
        yield plane
        runner.run(client.delete(f"/api/v1/namespaces/{PICKY}"))
        runner.run(stack.aclose())


@pytest.mark.parametrize(("overlay", "components"), BUILDS, ids=IDS)
def test_kubectl_applies_it_and_the_server_has_no_complaint(home, tmp_path, overlay, components):
    """
    Rehearsed by the server, strictly: every object is accepted as it is.
    """
    write(tmp_path, f"overlays/{overlay}", tuple(f"components/{name}" for name in components))
    command = [kubectl(), "apply", "-k", str(tmp_path), "--dry-run=server", "--validate=strict", "-o", "name"]
    command += ["--kubeconfig", str(home.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    said = [line for line in done.stderr.splitlines() if "missing the kubectl.kubernetes.io/last-applied" not in line]
    assert (0, []) == (done.returncode, said)
    assert len(objects(overlay, components)) == len(done.stdout.split())


def test_a_misspelt_field_of_somebody_elses_kind_would_be_found(home):
    """
    The check above can fail.
    """
    thing = next(one for one in objects("self-signed", ("monitoring",)) if one["kind"] == "ServiceMonitor")
    thing["spec"]["endpoints"][0]["honourLabels"] = True

    async def story():
        async with connected(home) as client:
            await Cluster(client).rehearse(thing)

    with pytest.raises(RefusedError, match="honourLabels"):
        asyncio.run(story())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_but_the_agent_and_the_exporter_meet_the_restricted_standard(home, overlay):
    """
    The API server's own PodSecurity judges every pod that a workload of ours would make.
    """
    pods = {
        name: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": PICKY, "labels": template["metadata"]["labels"]},
            "spec": {key: value for key, value in template["spec"].items() if key != "serviceAccountName"},
        }
        for name, template in templates(objects(overlay)).items()
    }

    async def story():
        said = {}
        async with connected(home) as client:
            cluster = Cluster(client)
            for name, pod in pods.items():
                try:
                    await cluster.rehearse(pod)
                except RefusedError as exc:
                    said[name] = str(exc)
        return said

    said = asyncio.run(story())
    assert HOST & set(pods) == set(said)
    assert all("violates PodSecurity" in words for words in said.values())


def test_the_exporter_asks_for_what_it_says_and_no_more(home):
    """
    What "restricted" minds about it: the host's processes and folders, its port on the node, and root, which keeps
    the two capabilities by which the process at the port gives root up.
    """
    template = templates(objects("self-signed"))[EXPORTER]
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": PICKY}, "spec": spec}

    async def story():
        async with connected(home) as client:
            with pytest.raises(RefusedError) as caught:
                await client.call("POST", f"/api/v1/namespaces/{PICKY}/pods", pod, dryRun="All")
            return str(caught.value)

    said = asyncio.run(story())
    minded = {"host namespaces", "hostPort", "restricted volume types", "runAsNonRoot", "runAsUser=0"}
    minded |= {"unrestricted capabilities", r"must not include \"SETGID\", \"SETUID\" in"}
    known = minded | {"privileged", "allowPrivilegeEscalation", "seccompProfile"}
    assert minded == {words for words in known if words in said}, said


def test_an_upgrade_keeps_what_was_learnt_since_the_install(home, tmp_path):
    """
    Applied once more, the authority that the script or cert-manager wrote into the webhook stays.
    """
    thing = next(one for one in objects("self-signed") if one["kind"] == "MutatingWebhookConfiguration")
    thing["metadata"]["name"] = "upgraded"
    for hook in thing["webhooks"]:
        hook["matchConditions"] = [{"name": "never", "expression": "false"}]
    file = tmp_path / "webhook.json"
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/upgraded"

    async def story():
        async with connected(home) as client:
            try:
                applied(home, file, thing)
                stored = await client.get(path)
                patch = [
                    {"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": "TEFURVI="}
                    for at in range(len(stored["webhooks"]))
                ]
                headers = {"Content-Type": "application/json-patch+json"}
                async with client._session.patch(path, json=patch, headers=headers) as answer:
                    assert 200 == answer.status, await answer.text()
                thing["webhooks"][0]["timeoutSeconds"] = 7
                applied(home, file, thing)
                return await client.get(path)
            finally:
                await client.delete(path)

    after = asyncio.run(story())
    assert 7 == after["webhooks"][0]["timeoutSeconds"]
    assert {"TEFURVI="} == {hook["clientConfig"].get("caBundle") for hook in after["webhooks"]}


def applied(plane, file, thing):
    """By kubectl."""
    file.write_text(json.dumps(thing))
    command = [kubectl(), "apply", "-f", str(file), "--kubeconfig", str(plane.kubeconfig)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
