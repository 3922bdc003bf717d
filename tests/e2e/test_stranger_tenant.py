# SPDX-License-Identifier: Apache-2.0
"""A tenant with the stock role `edit` in its namespace, by raw requests: what it sends changes nobody's promise."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import yaml
from e2e.admission_harness import policed, until_tried
from e2e.apiclient import RefusedError, connected
from e2e.kubelets import Kubelets, share_pod
from e2e.sharing import card_node, clear, prepare, replica, scheduler_file, untainted, vendor_record
from e2e.test_scheduler_admission import door, hooked
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import ACK, ALLOCATION, SHARED
from isolation.scheduler.admission.core.webhook import SCHEDULER_ACCOUNT

PODS = "/api/v1/namespaces/tenant/pods"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
STEPS, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
SEED = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: app-1, labels: {app: app-1}}
spec:
  replicas: 1
  serviceName: app-1
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: app-1}}
  template:
    metadata: {labels: {app: app-1, aliyun.com/gpu-count: "4"}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: app-1, image: none, command: [bash, app.sh], resources: {limits: {aliyun.com/gpu-mem: 8}}}
"""


@contextlib.asynccontextmanager
async def town(plane, tmp_path, *nodes):
    """Everything in force over these nodes; the administrator and the tenant."""
    port = free_port()
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "edits"}}
    rbac["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    rbac["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}]
    async with (
        connected(plane) as client,
        connected(plane, "tenant") as tenant,
        Kubelets(client, nodes).alive(),
    ):
        await prepare(client)
        with contextlib.suppress(RefusedError):
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}})
            await client.create(rbac, "tenant")
        await client.until(bool, "/api/v1/namespaces/tenant/serviceaccounts/default")
        await tenant.until(bool, PODS)  # the role has taken effect
        await untainted(client)
        account = plane.kubeconfig_for(SCHEDULER_ACCOUNT, ("system:masters",))
        with replica(plane, tmp_path, "one", account) as ours:
            ours.start(*door(plane, port))
            plane.add_scheduler("kube-scheduler-ours", scheduler_file(plane, tmp_path, ours.sidecar))
            try:
                await ours.leads()
                async with hooked(plane, client, port), policed(client):
                    yield client, tenant
                    await clear(client, "tenant")
            finally:
                plane.kill("kube-scheduler-ours")


async def sends(who, method, path, body, kind="application/json"):
    """Status and words of the answer."""
    query = {"fieldManager": "tenant"} | ({"force": "true"} if kind == APPLY else {})
    asked = {"data": json.dumps(body), "headers": {"Content-Type": kind}, "params": query}
    async with who._session.request(method, path, **asked) as answer:
        return answer.status, await answer.text()


def forgeries():
    """Ways to change what a placed pod was promised, by every kind of patch."""
    record = {"metadata": {"annotations": {ALLOCATION: "{}"}}}
    meta = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app-1-0", "annotations": {ALLOCATION: "{}"}}}
    return {
        "merge": (MERGE, record),
        "merge away": (MERGE, {"metadata": {"annotations": {ACK.allocation_annotation: None}}}),
        "merge all away": (MERGE, {"metadata": {"annotations": None, "labels": None}}),
        "strategic": (STRATEGIC, record),
        "strategic replace": (STRATEGIC, {"metadata": {"annotations": {"$patch": "replace", "a": "b"}}}),
        "strategic delete": (STRATEGIC, {"metadata": {"labels": {"$patch": "delete"}}}),
        "steps": (STEPS, [{"op": "remove", "path": "/metadata/annotations"}]),
        "steps label": (STEPS, [{"op": "replace", "path": "/metadata/labels/gpushare.dev~1shared", "value": "x"}]),
        "steps move": (
            STEPS,
            [{"op": "move", "from": "/metadata/annotations/gpushare.dev~1allocation", "path": "/metadata/labels/x"}],
        ),
        "apply": (APPLY, meta),
        "count": (MERGE, {"metadata": {"labels": {ACK.card_count: "1"}}}),
    }


def test_the_seed_is_placed_and_no_patch_of_its_owner_changes_the_promise(plane, tmp_path):
    """
    8 GiB over the 4 cards of one node, by the manifest as it stands; then every kind of patch against its records.
    """

    async def story():
        async with town(plane, tmp_path, card_node("stranger")) as (_, tenant):
            await tenant.create(yaml.safe_load(SEED), "tenant")
            placed = await tenant.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/app-1-0")
            said = {
                name: await sends(tenant, "PATCH", f"{PODS}/app-1-0", body, kind)
                for name, (kind, body) in forgeries().items()
            }
            free = await sends(tenant, "PATCH", f"{PODS}/app-1-0", {"metadata": {"labels": {"mine": "1"}}}, MERGE)
            return placed, said, free[0], await tenant.get(f"{PODS}/app-1-0")

    placed, said, free, after = asyncio.run(story())
    assert {"0": {str(card): 2 for card in range(4)}} == vendor_record(placed)
    assert {} == {name: text for name, text in said.items() if text[0] != 403 or "immutable" not in text[1]}
    assert 200 == free
    assert placed["metadata"]["annotations"] == after["metadata"]["annotations"]
    assert placed["metadata"]["labels"] | {"mine": "1"} == after["metadata"]["labels"]


def test_what_decides_about_promises_is_out_of_a_tenants_reach(plane, tmp_path):
    """
    By the stock role `edit`: no binding, no reservation, no status, no exemption or quota of its own namespace.
    """
    target = {"kind": "Node", "name": "reach"}
    meta = {"name": "x"}
    wishes = {
        "binding": ("POST", f"{PODS}/p/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": meta}),
        "bindings": ("POST", PODS.replace("pods", "bindings"), {"apiVersion": "v1", "kind": "Binding"}),
        "reservation": ("POST", "/apis/gpushare.dev/v1alpha1/reservations", {"metadata": meta}),
        "status": ("PATCH", f"{PODS}/p/status", {"status": {"phase": "Failed"}}),
        "exempt": ("PATCH", "/api/v1/namespaces/tenant", {"metadata": {"labels": {"gpushare.dev/exempt": "true"}}}),
        "quota": (
            "PATCH",
            "/api/v1/namespaces/tenant",
            {"metadata": {"annotations": {"gpushare.dev/gpu-memory-quota": "{}"}}},
        ),
        "node": ("PATCH", "/api/v1/nodes/reach", {"metadata": {"labels": {"ack.node.gpu.schedule": "share"}}}),
        "policy": ("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpushare-pods", {}),
    }

    async def story():
        async with town(plane, tmp_path, card_node("reach")) as (client, tenant):
            gated = share_pod("p", 2, schedulingGates=[{"name": "tenant.io/gate"}])
            await tenant.create(gated, "tenant")
            said, end = {}, time.monotonic() + PATIENCE_SECONDS
            for name, (method, path, body) in wishes.items():
                kind = MERGE if method == "PATCH" else "application/json"
                said[name] = await sends(tenant, method, path, body | {"target": target}, kind)
            # An administrator's hand reaches it as little: nobody binds such pods but our scheduler.
            whole = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": target}
            # The webhook learns of a pod by a watch: for some milliseconds only the pod's own gate stands in the way.
            said["administrator"] = await sends(client, "POST", f"{PODS}/p/binding", whole)
            while said["administrator"][0] == 409 and time.monotonic() < end:
                said["administrator"] = await sends(client, "POST", f"{PODS}/p/binding", whole)
            looser = [{"op": "remove", "path": "/spec/affinity"}]
            loosened = await sends(tenant, "PATCH", f"{PODS}/p", looser, STEPS)
            return said, loosened, await tenant.get(f"{PODS}/p")

    said, loosened, pod = asyncio.run(story())
    assert {} == {name: text for name, text in said.items() if text[0] != 403}
    assert "only gpushare-scheduler may bind it" in said["administrator"][1]
    assert 422 == loosened[0]
    assert "nodeName" not in pod["spec"]


def test_an_amount_that_the_namespace_fills_in_is_judged_as_if_it_were_written(plane, tmp_path):
    """
    A LimitRange gives every container a share: the pod is admitted as one with shares, or refused as one.
    """
    limit = {"type": "Container", "default": {ACK.memory: "2"}, "defaultRequest": {ACK.memory: "2"}}
    default = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "shares"}, "spec": {"limits": [limit]}}
    ranges = "/api/v1/namespaces/tenant/limitranges"

    async def story():
        async with town(plane, tmp_path, card_node("filled")) as (client, tenant):
            await client.call("POST", ranges, default)
            try:
                nosy = share_pod("nosy", 0, hostPID=True)
                await until_tried(tenant, nosy, "hostPID", PODS)  # the API server reads ranges from a cache
                made = await tenant.create(share_pod("bare", 0), "tenant")
                refused = await sends(tenant, "POST", PODS, nosy)
            finally:
                await client.delete(f"{ranges}/shares")
            await tenant.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/bare")
            return made, refused

    made, refused = asyncio.run(story())
    assert "true" == made["metadata"]["labels"][SHARED]
    assert 403 == refused[0]
    assert "hostPID" in refused[1]


def test_many_odd_pods_that_nobody_can_place_keep_nobody_else_from_a_card(plane, tmp_path):
    """
    A crowd of large objects, each of another shape and with selectors that nothing matches: a plain pod comes through.
    """

    async def story():
        async with town(plane, tmp_path, card_node("crowd")) as (_, tenant):
            gate = asyncio.Semaphore(10)

            async def odd(number):
                pod = share_pod(f"odd-{number}", 1 + number % 15, nodeSelector={f"tenant.io/k{number}": "v"})
                pod["metadata"]["annotations"] = {"tenant.io/bulk": "x" * 100_000}
                pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = f"{number + 1}m"
                async with gate:
                    return (await sends(tenant, "POST", PODS, pod))[0]

            made = await asyncio.gather(*(odd(number) for number in range(80)))
            await tenant.create(share_pod("plain", 15), "tenant")
            await tenant.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/plain")
            return made

    assert [201] * 80 == asyncio.run(story())
