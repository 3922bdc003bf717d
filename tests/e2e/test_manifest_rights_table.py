# SPDX-License-Identifier: Apache-2.0
"""The table of docs/threats.md on a real API server: each request by each shipped account, with its token."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from e2e import kueue_harness
from e2e.accounts import GRANTS, account, bounded, kubeconfig, kubeconfig_of_secret, own_pod
from e2e.admission_harness import until_pinned
from e2e.apiclient import connected
from e2e.autoscaler_harness import pool
from e2e.kubelets import share_pod, shared_node
from e2e.machine_deployments import MachineDeployments, install
from e2e.manifest_files import BASE, Cluster, documents
from e2e.own_plane import audited
from e2e.rights_table import (
    ACCOUNTS,
    BARE,
    CONTROL_PLANE,
    HOME,
    LEASES,
    MACHINES,
    MASTER,
    MAX_REPLICAS,
    MODE,
    OTHER,
    OWN,
    REQUESTS,
    RESERVATIONS,
    ROWS,
    SCALED,
    UNNAMED,
    claim_ref,
    lease,
    purchase,
    reservation,
)
from e2e.sharing import our_pod

from isolation.contract.names import (
    AUTOSCALER,
    CLASSIC_CARD,
    CLASSIC_UNITS,
    DRAIN,
    KUBE_LEASE,
    KUBE_SCHEDULER,
    MOVED,
    NODE_AGENT,
    RIGHT_SIZE,
    SCHEDULER,
    SYSTEM_NAMESPACE,
)

RULES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
COMPONENTS = BASE.parent / "components"
PASSED = (200, 201, 409)
"""The last: what is there already is found out after all rights and policies."""
WAITS = {"metadata": {"name": "table-waits"}, "provisioner": "kubernetes.io/no-provisioner"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own: nothing of what stands there is anybody else's."""
    started = audited(tmp_path_factory.mktemp("audited"))
    started.start()
    yield started
    started.stop()


async def installed(client):
    """Accounts, roles and policies as they are shipped; the policies of admission come last."""
    cluster = Cluster(client)
    await install(client)
    await kueue_harness.install(client)
    named = [pool(SCALED, min_nodes=1, max_nodes=MAX_REPLICAS)]
    shipped = [*documents(), *documents(COMPONENTS / "cluster-api")]
    for one in bounded([one for one in shipped if one["kind"] in (*GRANTS, *RULES)], named):
        await cluster.ensure(one)
    await client.until(bool, f"{HOME}/serviceaccounts/default")
    await until_pinned(client, pinned=True)


def volume(name, **claim):
    """A volume of this machine's, for a claim that names it or for any."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "table-waits",
        "local": {"path": "/tmp"},  # noqa: S108 (nobody mounts it)
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [OWN]}]}
                ]
            }
        },
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec | claim}


def classic(pod):
    """As the classic gpushare-scheduler-extender has placed it."""
    pod["metadata"]["annotations"] = {CLASSIC_CARD: "0", CLASSIC_UNITS: "2"}
    return pod


def live(pod):
    """One whose owner lets it be resized."""
    pod["metadata"]["annotations"] = {RIGHT_SIZE: "live"}
    return pod


async def furnished(client):
    """What the requests are about."""
    cluster = Cluster(client)
    for node in (shared_node(name) for name in (OWN, OTHER, BARE, f"{BARE}-free", MASTER)):
        name, kept = node["metadata"]["name"], {"key": "test.dev/kept", "effect": "NoSchedule"}
        if name == MASTER:
            node["metadata"]["labels"][CONTROL_PLANE] = ""
        if name.startswith(BARE):
            del node["metadata"]["labels"][MODE]
        drained = [{"key": DRAIN, "effect": "NoSchedule"}] if name == BARE else []
        await client.create(node | {"spec": {"taints": [kept, *drained]}})
    pods = [
        (share_pod("plain", 0, schedulerName="nobody"), "default"),
        (our_pod("shares"), "default"),
        (live(our_pod("live")), "default"),
        (classic(share_pod("classic", 0, nodeName=OTHER)), "default"),
        (share_pod("here", 0, nodeName=OWN), "default"),
        (share_pod("elsewhere", 0, nodeName=OTHER), "default"),
        (share_pod("ours", 0, nodeName=OTHER), SYSTEM_NAMESPACE),
        (share_pod("system", 0, nodeName=OTHER), "kube-system"),
    ]
    for pod, space in pods:
        await client.create(pod, space)
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "volumeBindingMode": "WaitForFirstConsumer"}
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "table-waits"}
    claim["resources"] = {"requests": {"storage": "1Gi"}}
    later = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "later"}
    made = [
        kind | WAITS,
        volume("table-free"),
        volume("table-meant", claimRef=later),
        volume("table-taken", **claim_ref("gone")["spec"]),
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine"}, "spec": claim},
        {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {"name": "m1"}, "spec": {"a": "b"}},
    ]
    for thing in made:
        await cluster.create(thing)
    held = [(SYSTEM_NAMESPACE, name) for name in (SCHEDULER, KUBE_LEASE, AUTOSCALER)]
    for space, name in (("kube-system", "kube-scheduler"), *held):
        await client.call("POST", f"{LEASES}/{space}/leases", lease(space, name))
    await client.call("POST", f"{HOME}/configmaps", {"metadata": {"name": "gpushare-autoscaler-state"}})
    moves = reservation("table-moves", **{MOVED: "uid"})
    for made in (reservation("table-kept"), moves, purchase("table-bought")):
        await client.call("POST", RESERVATIONS, made)
    asked = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    await client.call("POST", REQUESTS, asked | {"metadata": {"name": "table-asked"}, "spec": {}})
    machines = MachineDeployments(client)
    for name in (SCALED, UNNAMED):
        await machines.create(name, 2)
        await client.merge(f"{MACHINES}/machinedeployments/{name}/status", {"status": {"replicas": 2}})


async def tokens(plane, client, folder):
    """A kubeconfig by account, with tokens as the manifests give them."""
    found = {}
    for name in ACCOUNTS:
        if name == KUBE_SCHEDULER:
            found[name] = await kubeconfig_of_secret(plane, client, folder, f"{name}-token")
        else:
            pod = await own_pod(client, name, f"table-{name}", OWN if name == NODE_AGENT else "")
            found[name] = await kubeconfig(plane, client, folder, name, pod)
    return found


def test_each_account_may_do_what_the_table_says_and_nothing_else(plane, tmp_path):
    """
    All requests are rehearsed (dry run), which asks the same rights and policies; nothing changes.
    """

    async def story():
        async with connected(plane) as client, contextlib.AsyncExitStack() as stack:
            await installed(client)
            await furnished(client)
            configs = await tokens(plane, client, tmp_path)
            they = {name: await stack.enter_async_context(account(plane, configs[name])) for name in ACCOUNTS}
            wrong = []
            for row in ROWS:
                path = row.path + ("&" if "?" in row.path else "?") + "dryRun=All"
                body = row.body(await client.get(row.path)) if callable(row.body) else row.body
                for name in ACCOUNTS:
                    expected = PASSED if name in row.may else (403, 422)
                    for _ in range(100):  # the API server takes up policies one by one, some seconds on a busy machine
                        status = await they[name].says(row.method, path, body, row.kind)
                        if status in expected:
                            break
                        await asyncio.sleep(0.1)
                    else:
                        wrong.append(f"{name}: {row.verb} {row.what}: {status}")
            return wrong

    assert [] == asyncio.run(story())
