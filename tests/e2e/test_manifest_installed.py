# SPDX-License-Identifier: Apache-2.0
"""The manifests installed as they are: what they say is reached, allowed, refused and served."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
import yaml
from e2e.accounts import account, kubeconfig
from e2e.admission_harness import tried, until_tried
from e2e.apiclient import RefusedError, connected
from e2e.kubelets import share_pod
from e2e.manifest_answers import answers, asked, generations, log_of, open_soon, refusals, value
from e2e.manifest_build import MANIFESTS
from e2e.manifest_harness import APISERVICES, COMPONENTS, NODE, VERSIONS, installed, standing
from e2e.manifest_installation import ADDRESS, INSIDE
from e2e.sharing import card_node
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec.node import node_of
from isolation.contract.codec.pools import KEY, PublishedPool, encode_pools
from isolation.contract.model import Placement, Slice
from isolation.contract.names import (
    ALLOCATION,
    AUTOSCALER,
    DRAIN,
    EXPORTER,
    MOVED,
    POOLS,
    SCHEDULER,
    SHARED,
    SYSTEM_NAMESPACE,
)
from isolation.contract.reservation import Reservation, manifest_of
from isolation.simgpu.hardware import create

MERGE = "application/merge-patch+json"
READS = {"get", "list", "watch"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own, that writes down who asks for what."""
    with standing(tmp_path_factory.mktemp("installation")) as started:
        yield started


def test_the_webhook_is_reached_through_its_service_with_the_certificate_of_the_script(plane, tmp_path):
    """
    With webhook configuration and Service exactly as applied: a pod is given its scheduler, a wrong one refused.
    """

    async def story():
        async with installed(plane, tmp_path) as installation, installation.process(SCHEDULER):
            await installation.served(SCHEDULER)
            await answers(f"http://{ADDRESS}:9446/readyz")
            made = await installation.client.create(share_pod("installation-good", 2))
            with pytest.raises(RefusedError) as refused:
                await installation.client.create(share_pod("installation-bad", 3, 2))
            await installation.client.delete("/api/v1/namespaces/default/pods/installation-good", force=True)
            return made, str(refused.value)

    made, refused = asyncio.run(story())
    assert (SCHEDULER, "true") == (made["spec"]["schedulerName"], made["metadata"]["labels"][SHARED])
    assert "admission webhook" in refused
    assert "pods.gpushare.dev" in refused


def test_a_pod_that_only_an_empty_pool_could_host_is_admitted_beside_smaller_cards(plane, tmp_path):
    """
    Cards of 15 GiB are up: 20 are admitted while nobody has said what the pools have, and where one of them has 24.

    Then 30 are refused, naming both.
    """
    text = encode_pools([PublishedPool("large", node_of(card_node("any", 1, 24)), 0, 3)], complete=True)
    published = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": POOLS}, "data": {KEY: text}}

    async def story():
        async with installed(plane, tmp_path) as installation, installation.process(SCHEDULER):
            await installation.served(SCHEDULER)
            await answers(f"http://{ADDRESS}:9446/readyz")
            await until_tried(installation.client, share_pod("installation-probe", 3, 2), "2 cards")
            before = [await tried(installation.client, share_pod("installation-asks", units)) for units in (20, 30)]
            await installation.client.create(published, SYSTEM_NAMESPACE)
            await until_tried(
                installation.client, share_pod("installation-asks", 30), "15 on existing nodes and 24 on nodes that"
            )
            return before, await tried(installation.client, share_pod("installation-asks", 20))

    assert (["", ""], "") == asyncio.run(story())


def test_the_autoscaler_serves_what_its_components_open_and_only_says_what_it_would_do(plane, tmp_path):
    """
    Under its own account, with its configuration, switch and certificates: it leads, is ready, enters its APIServices,
    which kube-apiserver then reaches, and on first install acts on nothing.
    """

    async def story():
        async with installed(plane, tmp_path) as installation, installation.process(AUTOSCALER) as process:
            await answers(f"http://{ADDRESS}:9448/readyz")
            for version in VERSIONS:
                await installation.client.until(
                    lambda one: any(
                        c["type"] == "Available" and c["status"] == "True"
                        for c in one.get("status", {}).get("conditions", ())
                    ),
                    f"{APISERVICES}/{version}.metrics.k8s.io",
                )
            listed = await installation.client.until(
                lambda one: one["resources"], "/apis/custom.metrics.k8s.io/v1beta2"
            )
            for port in (8086, 8087):
                await open_soon(port)
            for _ in range(3000):
                page = await answers(f"http://{ADDRESS}:9448/metrics")
                if value(page, "gpushare_autoscaler_leader") == 1:
                    break
                await asyncio.sleep(0.2)
            return process.poll(), page, listed, refusals(plane, AUTOSCALER)

    ended, page, listed, refused = asyncio.run(story())
    assert ended is None
    assert {1.0} == {value(page, f"gpushare_autoscaler_{name}") for name in ("leader", "enabled", "dry_run")}
    assert any(one["name"] == "pods/gpu_mem_used_bytes" for one in listed["resources"])
    assert [] == refused


def test_the_exporter_is_scraped_through_its_pod_on_simulated_cards(plane, tmp_path):
    """
    As `kubectl gpushare` does it, by the API server's proxy; two cards are seen, and the API server was asked nothing.
    """
    box = tmp_path / "gpushare" / "demo"
    box.mkdir(parents=True)
    create(box / "hardware", ["t4"] * 2)
    hosts = {"/sys/fs/cgroup": "/sys/fs/cgroup", "/var/lib/gpushare/demo": str(box)}
    kubelet = "/var/lib/kubelet"
    for path in ("/var/lib/gpushare", f"{kubelet}/pod-resources", f"{kubelet}/pods-api", "/run/gpushare-exporter"):
        hosts[path] = str(tmp_path / "gpushare")
    for part in ("containers", "pods"):
        (tmp_path / "log" / part).mkdir(parents=True)
        hosts[f"/var/log/{part}"] = str(tmp_path / "log" / part)
    elsewhere = (f"--agent-state-dir={tmp_path}/gpushare", "--no-kubernetes")

    async def story():
        async with installed(plane, tmp_path) as installation, installation.process(EXPORTER, *elsewhere, hosts=hosts):
            await answers(f"http://{ADDRESS}:9445/readyz")
            pod = await installation.pod(EXPORTER)
            path = f"{INSIDE}/pods/{pod['metadata']['name']}:9445/proxy/metrics"
            return await installation.client.get(path), pod

    page, pod = asyncio.run(story())
    assert 2 == sum(line.startswith("gpushare_card_info{") for line in page.splitlines())
    assert NODE == pod["spec"]["nodeName"]
    assert set() == asked(plane, EXPORTER)
    assert not any("kube-api-access" in one["name"] for one in pod["spec"]["volumes"])


def test_what_is_not_the_autoscalers_is_refused_to_it(plane, tmp_path):
    """
    With its own token and none of its code: a drain is marked and unmarked; everything else about nodes, other
    objects and machines is refused, by RBAC or by policy.
    """
    taint = {"key": DRAIN, "effect": "NoSchedule"}
    node = f"/api/v1/nodes/{NODE}"
    maps = f"{INSIDE}/configmaps"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gpushare-scheduler"}}
    machines = "/apis/cluster.x-k8s.io/v1beta1/namespaces/default/machines"
    machine = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": "m1"},
        "spec": {"a": "b"},
    }

    homes = "/apis/gpushare.dev/v1alpha1/reservations"

    def home(name, **notes):
        place = Placement(NODE, (Slice("GPU-x", 0, 1 << 30, 0),))
        made = manifest_of(Reservation(name, "somebody", place, time.time() + 60))
        made["metadata"]["annotations"] = notes
        return made

    def named(name):
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}

    def noted(**notes):
        return {"metadata": {"annotations": notes}}

    async def story():
        async with installed(plane, tmp_path) as installation:
            client = installation.client
            await client.call("POST", machines, machine)
            await client.call("POST", homes, home("the-schedulers"))
            pod = await installation.pod(AUTOSCALER)
            config = await kubeconfig(plane, client, tmp_path, AUTOSCALER, pod)
            async with account(plane, config) as they:
                marked = {"spec": {"taints": [taint]}} | noted(**{DRAIN: "{}"})
                allowed = {
                    "mark": await they.says("PATCH", node, marked, MERGE),
                    "unmark": await they.says(
                        "PATCH", node, {"spec": {"taints": None}} | noted(**{DRAIN: None}), MERGE
                    ),
                    "a home": await they.says("POST", homes, home("a-home", **{MOVED: "uid"})),
                    "no home": await they.says("DELETE", f"{homes}/a-home"),
                    "its state": await they.says("POST", maps, named("gpushare-autoscaler-state")),
                    "the mark of a Machine": await they.says(
                        "PATCH", f"{machines}/m1", noted(**{"cluster.x-k8s.io/delete-machine": "x"}), MERGE
                    ),
                }
                refused = {
                    "another taint": await they.says(
                        "PATCH", node, {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}, MERGE
                    ),
                    "our taint, but NoExecute": await they.says(
                        "PATCH", node, {"spec": {"taints": [taint | {"effect": "NoExecute"}]}}, MERGE
                    ),
                    "cordon": await they.says("PATCH", node, {"spec": {"unschedulable": True}}, MERGE),
                    "label": await they.says("PATCH", node, {"metadata": {"labels": {"x": "y"}}}, MERGE),
                    "annotation": await they.says("PATCH", node, noted(x="y"), MERGE),
                    "owner": await they.says("PATCH", node, {"metadata": {"finalizers": ["x.y/z"]}}, MERGE),
                    "status": await they.says("PATCH", f"{node}/status", {"status": {}}, MERGE),
                    "delete a node": await they.says("DELETE", node),
                    "the scheduler's configuration": await they.says("PATCH", f"{maps}/gpushare-scheduler", {}, MERGE),
                    "its own configuration": await they.says("PATCH", f"{maps}/gpushare-autoscaler-config", {}, MERGE),
                    "its own switch": await they.says(
                        "PATCH", f"{maps}/gpushare-autoscaler", {"data": {"dryRun": "false"}}, MERGE
                    ),
                    "another ConfigMap": await they.says("POST", maps, named("x")),
                    "another namespace": await they.says("POST", "/api/v1/namespaces/default/configmaps", named("x")),
                    "another Lease": await they.says(
                        "POST", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases", lease
                    ),
                    "room for nobody that moves": await they.says("POST", homes, home("x")),
                    "the scheduler's reservation": await they.says("DELETE", f"{homes}/the-schedulers"),
                    "secrets": await they.says("GET", "/api/v1/secrets"),
                    "delete a pod": await they.says("DELETE", f"{INSIDE}/pods/{pod['metadata']['name']}"),
                    "pods": await they.says("POST", "/api/v1/namespaces/default/pods", share_pod("x", 0)),
                    "change a Machine": await they.says("PATCH", f"{machines}/m1", {"spec": {"a": "c"}}, MERGE),
                    "label a Machine": await they.says(
                        "PATCH", f"{machines}/m1", {"metadata": {"labels": {"a": "c"}}}, MERGE
                    ),
                    "delete a Machine": await they.says("DELETE", f"{machines}/m1"),
                    "somebody's APIService": await they.says("PATCH", f"{APISERVICES}/v1.", {}, MERGE),
                    "an API of its own": await they.says("POST", APISERVICES, api("apps.example", "x")),
                }
            await client.delete(f"{machines}/m1")
            await client.delete(f"{homes}/the-schedulers")
            await client.delete(f"{maps}/gpushare-autoscaler-state")
            return allowed, refused

    allowed, refused = asyncio.run(story())
    assert {} == {what: status for what, status in allowed.items() if status not in (200, 201)}
    assert {} == {what: status for what, status in refused.items() if status not in (403, 422)}


def api(group, service):
    """An APIService."""
    spec = {"group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"service": {"namespace": SYSTEM_NAMESPACE, "name": service}, "insecureSkipTLSVerify": True}
    meta = {"name": f"v1.{group}"}
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": meta, "spec": spec}


def test_applied_again_nothing_changes_and_deleted_everything_is_gone(plane, tmp_path):
    """
    An upgrade to the same version is quiet, and `kubectl delete -k` leaves no object of ours behind.
    """

    async def story():
        async with installed(plane, tmp_path) as installation:
            before = await generations(installation)
            await asyncio.to_thread(installation.apply, "demo", *COMPONENTS)
            again = await generations(installation)
            folder = str(tmp_path / "kustomization")
            await asyncio.to_thread(
                installation.run, "kubectl", "delete", "-k", folder, "--wait=false", "--ignore-not-found"
            )
            kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies"
            kinds += ",validatingadmissionpolicybindings,customresourcedefinitions"
            command = ["kubectl", "get", kinds, "-o", "name"]
            end = time.monotonic() + PATIENCE_SECONDS
            while True:
                left = [
                    line for line in (await asyncio.to_thread(installation.run, *command)).split() if "gpushare" in line
                ]
                if not left or time.monotonic() > end:
                    return before, again, left
                await asyncio.sleep(0.5)

    before, again, left = asyncio.run(story())
    assert len(before) == 11
    assert before == again
    assert [] == left


def test_an_existing_kube_scheduler_asks_us_over_mutual_tls(plane, tmp_path):
    """
    The overlay, the script's certificates and the committed stanza, put into the configuration of a stock
    kube-scheduler: a pod is placed by our word and bound with its record; without a certificate the handshake fails.
    """
    out = tmp_path / "out"

    async def story():
        given = {"overlay": "existing-scheduler", "components": (), "pairs": ()}
        async with installed(plane, tmp_path, **given) as installation:
            installation.env["OUT"] = str(out)
            await asyncio.to_thread(installation.certificates, "extender")
            async with installation.process(SCHEDULER):
                await answers(f"http://{ADDRESS}:9446/leader")
                await installation.served(f"{SCHEDULER}-leader")
                plane.kill("kube-scheduler")
                plane.start_scheduler(stanza(plane, out, tmp_path))
                name = "/api/v1/namespaces/default/pods/installation-existing"
                try:
                    await installation.client.create(share_pod("installation-existing", 2))
                    pod = await installation.client.until(lambda one: one["status"].get("phase") == "Running", name)
                finally:
                    await installation.client.delete(name, force=True)
                    plane.kill("kube-scheduler")
                    plane.start_scheduler()
                async with aiohttp.ClientSession() as session:
                    with pytest.raises((aiohttp.ClientError, OSError)):
                        await session.post(f"https://{ADDRESS}:8441/extender/filter", json={}, ssl=False)
                return pod

    pod = asyncio.run(story())
    assert ("default-scheduler", NODE) == (pod["spec"]["schedulerName"], pod["spec"]["nodeName"])
    assert ALLOCATION in pod["metadata"]["annotations"]


def stanza(plane, out, folder):
    """A whole configuration with the committed stanza, its files and the leader's Service where they are here."""
    made = yaml.safe_load((MANIFESTS / "overlays/existing-scheduler/kube-scheduler.yaml").read_text())
    [extender] = made["extenders"]
    host = f"{SCHEDULER}-leader.{SYSTEM_NAMESPACE}.svc"
    assert host in extender["urlPrefix"]
    extender["urlPrefix"] = extender["urlPrefix"].replace(host, f"{ADDRESS}:8441")
    for key in ("certFile", "keyFile", "caFile"):
        extender["tlsConfig"][key] = str(out / extender["tlsConfig"][key].rpartition("/")[2])
    path = folder / "existing.json"
    path.write_text(json.dumps(plane.scheduler_configuration(**made)))
    return path


def test_on_ack_the_autoscaler_works_without_a_kind_of_ours(plane, tmp_path):
    """
    No reservations, no scheduler and no agent of ours are there: it reads the cluster, leads, is ready, is refused
    nothing, and says that it would move nobody.
    """

    async def story():
        async with connected(plane) as client:
            await client.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/reservations.gpushare.dev")
        before = len(list(log_of(plane, AUTOSCALER)))
        given = {"overlay": "ack", "components": ("cluster-api",), "pairs": ()}
        async with installed(plane, tmp_path, **given) as installation, installation.process(AUTOSCALER):
            await answers(f"http://{ADDRESS}:9448/readyz")
            for _ in range(3000):
                page = await answers(f"http://{ADDRESS}:9448/metrics")
                if value(page, "gpushare_autoscaler_leader") == 1 and "outcome=" in page:
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(2)
            page = await answers(f"http://{ADDRESS}:9448/metrics")
            return page, list(log_of(plane, AUTOSCALER))[before:]

    page, log = asyncio.run(story())
    assert {1.0} == {value(page, f"gpushare_autoscaler_{name}") for name in ("leader", "synced", "dry_run")}
    assert [] == [one for one in log if one.status == 403]
    writes = [one for one in log if one.verb not in READS]
    assert [] == [one for one in writes if one.resource in {"nodes", "pods/eviction", "reservations"}]
