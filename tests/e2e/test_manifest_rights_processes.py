# SPDX-License-Identifier: Apache-2.0
"""
The processes as they are installed: exactly the rights of the manifests, the policies, the webhook, the stock
kube-scheduler with our configuration, and tokens as pods get them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml
from e2e import kueue_harness
from e2e.accounts import BY_HAND, account, forget, granted, kubeconfig, kubeconfig_of_secret, own_pod
from e2e.admission_harness import policed, until_tried
from e2e.apiclient import connected
from e2e.doctor_answers import examined
from e2e.kubelets import share_pod
from e2e.managed_node import MODE, ManagedNode
from e2e.manifest_files import BASE, Cluster, documents
from e2e.manifest_installation import running
from e2e.mps_pods import Programs, event_of
from e2e.node_harness import PODS, Stage, right
from e2e.node_process import NodeProcess, cards
from e2e.own_plane import asked_by, audited
from support.backend_harness import MPS_RUNS, keeper_of, shared_mount
from support.device_manager import DeviceManager
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import ALLOCATION, CARD_UNITS, KUBE_SCHEDULER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.contract.rbac import PERMISSIONS
from isolation.simgpu.hardware import Box

if TYPE_CHECKING:
    from pathlib import Path

_DIE = "import ctypes; ctypes.CDLL(None).prctl(1, 9); "  # PR_SET_PDEATHSIG: nothing outlives a killed test
OURS = [sys.executable, "-c", _DIE + "from isolation.scheduler.cli import scheduler; scheduler()"]
STOCK = [sys.executable, "-c", _DIE + "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"]
FORBIDDEN = ("forbidden", "Forbidden", " 403 ", "status: 403")


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own, that writes down who asks for what."""
    started = audited(tmp_path_factory.mktemp("audited"))
    started.start()
    yield started
    started.stop()


def asked(plane, account):
    """What an account asked for, as in the table of rights."""
    return {one.right for one in asked_by(plane, account) if one.program != BY_HAND}


def granted_to(account):
    """The table of rights, verb by verb."""
    return {
        (permission.group, permission.resource, verb)
        for permission in PERMISSIONS[account]
        for verb in permission.verbs
    }


@dataclass
class Installed:
    """What runs."""

    stage: Stage
    scheduler_config: Path
    node_config: Path
    logs: dict[str, Path]

    def refusals(self) -> list[str]:
        """Lines in which any of our processes says that it was not allowed to do something."""
        lines = [line for path in self.logs.values() for line in path.read_text(errors="replace").splitlines()]
        return [line for line in lines if any(word in line for word in FORBIDDEN)]


def configuration(config: Path, port: int, folder: Path) -> Path:
    """kube-scheduler's, as it is committed, with our port and these credentials."""
    made = yaml.safe_load(yaml.safe_load((BASE / "scheduler/configuration.yaml").read_text())["data"]["config.yaml"])
    made["clientConnection"]["kubeconfig"] = str(config)
    for extender in made["extenders"]:
        extender["urlPrefix"] = extender["urlPrefix"].replace(":8442", f":{port}")
    path = folder / "kube-scheduler.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


@contextlib.asynccontextmanager
async def webhook(client, plane, port):
    """The committed webhook configuration, reached on a port of this machine instead of the Service."""
    authority = base64.b64encode(plane.ca.read_bytes()).decode()
    cluster, bad = Cluster(client), share_pod("probe", hostPID=True)
    made = [copy.deepcopy(one) for one in documents() if one["kind"] == "MutatingWebhookConfiguration"]
    for configured in made:
        for hook in configured["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    try:
        for one in made:
            await cluster.create(one)
        await until_tried(client, bad, "admission webhook")
        yield
    finally:
        for one in made:
            await cluster.remove(one)
        await until_tried(client, bad, "ValidatingAdmissionPolicy")  # the webhook would speak first


@contextlib.asynccontextmanager
async def scheduling(client, plane, tmp_path, logs):
    """Both containers of the scheduler's pod, each under its account; the kubeconfig of ours."""
    pod = await own_pod(client, SCHEDULER, "rights-scheduler")
    config = await kubeconfig(plane, client, tmp_path, SCHEDULER, pod)
    pair = plane._authority.issue("webhook", hosts=("127.0.0.1", f"{SCHEDULER}.{SYSTEM_NAMESPACE}.svc"))
    secret = {name: base64.b64encode(path.read_bytes()).decode() for name, path in _pair(pair).items()}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{SCHEDULER}-tls"}, "data": secret}
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
    await client.call("POST", path, made)
    tls, sidecar = free_port(), free_port()
    logs |= {"ours": tmp_path / "scheduler.log", "stock": tmp_path / "kube-scheduler.log"}
    ours = [
        *OURS,
        f"--kubeconfig={config}",
        f"--admission-listen=127.0.0.1:{tls}",
        f"--extender-listen=127.0.0.1:{sidecar}",
    ]
    ours += [f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", "--metrics-listen=none"]
    ours += [f"--kube-scheduler-lease={SCHEDULER}-kube"]
    beside = await kubeconfig_of_secret(plane, client, tmp_path, f"{KUBE_SCHEDULER}-token")
    stock = [*STOCK, str(plane._programs["kube-scheduler"]), f"--config={configuration(beside, sidecar, tmp_path)}"]
    stock += ["--authentication-skip-lookup=true", "--bind-address=127.0.0.1", "--secure-port=0"]
    names = {"POD_NAME": pod["metadata"]["name"], "POD_NAMESPACE": SYSTEM_NAMESPACE}
    try:
        with running(logs["ours"], ours, **names), running(logs["stock"], stock):
            async with webhook(client, plane, tls):
                yield config
    finally:
        await client.delete(f"{path}/{SCHEDULER}-tls")
        await forget(client, pod["metadata"]["name"])


def _pair(pair):
    return {"tls.crt": pair.certificate, "tls.key": pair.key}


@contextlib.asynccontextmanager
async def agency(client, plane, tmp_path, node, machine):
    """A node's agent under the agent's account; the agent and its kubeconfig."""
    async with node.alive():
        pod = await own_pod(client, NODE_AGENT, f"rights-agent-{node.name}", node.name)
        config = await kubeconfig(plane, client, tmp_path, NODE_AGENT, pod)
        with NodeProcess(tmp_path, node.kubelet, node.name, config, machine) as agent:
            yield agent, config
        await forget(client, pod["metadata"]["name"])


@contextlib.asynccontextmanager
async def installed(plane, tmp_path, name, mode="cgpu", machine=None):
    """Everything of manifests/base, as far as it is processes and rules."""
    logs: dict[str, Path] = {}
    async with contextlib.AsyncExitStack() as stack:
        kubelet = stack.enter_context(DeviceManager(pace=0.05, seed=5))
        client = await stack.enter_async_context(connected(plane))
        await granted(client)
        try:
            await stack.enter_async_context(policed(client))
            scheduler = await stack.enter_async_context(scheduling(client, plane, tmp_path, logs))
            machine = machine or cards(tmp_path / "cards")
            node = ManagedNode(client, name, kubelet, mode)
            agent, config = await stack.enter_async_context(agency(client, plane, tmp_path, node, machine))
            logs["agent"] = agent.log
            made = Installed(Stage(client, node, agent, kubelet), scheduler, config, logs)
            await made.stage.ready()
            yield made
        except BaseException:
            for log in logs.values():
                print(log, log.read_text(errors="replace")[-6000:])  # noqa: T201 (shown with the failure)
            raise


def replicas(name, count, units):
    """A ReplicaSet of share pods."""
    pod = share_pod(name, units)
    template = {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]}
    spec = {"replicas": count, "selector": {"matchLabels": {"app": name}}, "template": template}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec}


def test_the_whole_path_works_with_the_rights_of_the_manifests_and_no_others(plane, tmp_path):
    """
    From `kubectl apply` of plain pods to running containers: admitted, placed, bound, delivered, deleted. Nothing of
    ours is ever refused by the API server, and the doctor has nothing to say against it.
    """

    async def story():
        async with installed(plane, tmp_path, "rights-node") as made:
            at = made.stage
            uids = [
                (await at.client.create(share_pod(name, units, count)))["metadata"]["uid"]
                for name, units, count in (("rights-a", 3, 1), ("rights-b", 8, 2))
            ]
            pods = [await at.running(uid) for uid in uids]
            seen = [await at.client.get(f"{PODS}/{name}") for name in ("rights-a", "rights-b")]
            records = [json.loads(one["metadata"]["annotations"][ALLOCATION]) for one in seen]
            for pod, record, units in zip(pods, records, (3, 8), strict=True):
                right(at, pod, "main", [card["index"] for card in record["cards"]], units)
            report, _ = await asyncio.to_thread(examined, plane.kubeconfig)
            own = await at.client.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/rights-scheduler")
            await at.remove("rights-a", "rights-b")
            await at.until(lambda: at.agent.holds() == set())
            return made.refusals(), report, own["metadata"]["labels"]

    refusals, report, labels = asyncio.run(story())
    assert [] == refusals
    assert {"gpushare.dev/role": "leader"} == labels
    # Processes run here without Deployments, the certificate of the tests lasts a day, and the plane is shared.
    apart = {"cluster.components", "cluster.webhook_certificate", "cluster.agents", "cluster.pending", "cluster.modes"}
    apart |= {"cluster.kubelet_versions"}  # a stand-in has no version
    assert [] == [(check, said) for check, said in report.items() if said[0] != "ok" and check not in apart]
    assert "warning" == report["cluster.webhook_certificate"][0]


def test_what_is_not_theirs_is_refused_to_scheduler_and_agent(plane, tmp_path):
    """
    With their own tokens and no code of ours in between: other people's secrets and workloads, other nodes, roles.
    """
    fake, own = {"metadata": {"labels": {"x": "y"}}}, {"metadata": {"labels": {CARD_UNITS: "7"}}}
    merge = "application/merge-patch+json"

    async def story():
        async with installed(plane, tmp_path, "rights-own") as made:
            client = made.stage.client
            other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "rights-other"}}
            await client.create(other)
            await client.create(share_pod("rights-far", units=0, nodeName="rights-other"))
            async with account(plane, made.node_config) as agent, account(plane, made.scheduler_config) as scheduler:
                allowed = {
                    "agent: its own node": await agent.says("PATCH", "/api/v1/nodes/rights-own", own, merge),
                    "scheduler: pods": await scheduler.says("GET", "/api/v1/pods?limit=1"),
                }
                refused = {
                    "agent: another node": await agent.says("PATCH", "/api/v1/nodes/rights-other", own, merge),
                    "agent: another node's status": await agent.says(
                        "PATCH", "/api/v1/nodes/rights-other/status", {"status": {"capacity": {"x.y/z": "1"}}}, merge
                    ),
                    "agent: delete a pod": await agent.says("DELETE", f"{PODS}/rights-far"),
                    "agent: bind": await agent.says("POST", f"{PODS}/rights-far/binding", {}),
                    "agent: create": await agent.says("POST", PODS, share_pod("x", units=0)),
                    "agent: change": await agent.says("PATCH", f"{PODS}/rights-far", fake, merge),
                    "agent: secrets": await agent.says("GET", "/api/v1/secrets"),
                    "agent: delete its node": await agent.says("DELETE", "/api/v1/nodes/rights-own"),
                    "agent: reservations": await agent.says("GET", "/apis/gpushare.dev/v1alpha1/reservations"),
                    "scheduler: secrets": await scheduler.says("GET", "/api/v1/secrets"),
                    "scheduler: nodes": await scheduler.says("PATCH", "/api/v1/nodes/rights-own", fake, merge),
                    "scheduler: create": await scheduler.says("POST", PODS, share_pod("x", units=0)),
                    "scheduler: roles": await scheduler.says(
                        "GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
                    ),
                    "scheduler: policies": await scheduler.says(
                        "GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
                    ),
                    "scheduler: others' leases": await scheduler.says(
                        "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager"
                    ),
                }
            await client.delete(f"{PODS}/rights-far", force=True)
            await client.delete("/api/v1/nodes/rights-other")
            return allowed, refused

    allowed, refused = asyncio.run(story())
    assert {200} == set(allowed.values()), allowed
    assert {403} | {422} >= set(refused.values()), refused
    assert {} == {what: status for what, status in refused.items() if status not in (403, 422)}


def test_room_on_one_card_is_made_for_the_important_with_the_rights_of_the_manifests(plane, tmp_path):
    """
    Two pods leave room as a sum and on no card: one of them is evicted, the room is kept, the important one comes.
    """
    meta = {"name": "rights-high"}
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": 1000}

    async def story():
        async with installed(plane, tmp_path, "rights-room") as made:
            at = made.stage
            each = at.cards[0].allocatable_bytes // GIB
            cluster, low = Cluster(at.client), replicas("rights-low", 2, each // 2 + 1)
            await cluster.ensure(high)
            await cluster.create(low)
            await at.until(lambda: [pod.phase for pod in at.node.pods.values()].count("Running") >= 3)
            wanted = share_pod("rights-important", each - 3, priorityClassName="rights-high")
            important = (await at.client.create(wanted))["metadata"]["uid"]
            try:
                pod = await at.until(lambda: at.node.pods.get(important))
            except TimeoutError:
                seen = await at.client.get(f"{PODS}/rights-important")
                raise AssertionError(seen["status"]) from None
            await at.until(lambda: pod.phase == "Running")
            listed = (await at.client.get(PODS))["items"]
            left = [one["metadata"]["name"] for one in listed if one["spec"].get("nodeName")]
            kept = "/apis/gpushare.dev/v1alpha1/reservations"
            await at.client.until(lambda found: not found["items"], kept)
            await cluster.remove(low)
            await at.remove("rights-important", *(one["metadata"]["name"] for one in listed))
            return made.refusals(), len(left)

    assert ([], 2) == asyncio.run(story())


def test_a_volume_that_waits_for_its_pod_is_bound_with_the_rights_of_the_manifests(plane, tmp_path):
    """
    The kube-scheduler beside ours gives a free volume to the claim of a pod with shares, and a policy lets it.
    """
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "rights-waits"}}
    kind |= {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "rights-waits"}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}} | common
    claim = {"resources": {"requests": {"storage": "1Gi"}}} | common
    things = [
        kind,
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "rights-free"}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "rights-claim"}, "spec": claim},
    ]

    async def story():
        async with installed(plane, tmp_path, "rights-volume") as made:
            at = made.stage
            cluster = Cluster(at.client)
            for thing in things:
                await cluster.create(thing)
            wanted = share_pod("rights-stores", 3)
            wanted["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "rights-claim"}}]
            await at.running((await at.client.create(wanted))["metadata"]["uid"])
            given = (await at.client.get("/api/v1/persistentvolumes/rights-free"))["spec"]["claimRef"]["name"]
            await at.remove("rights-stores")
            return made.refusals(), given

    assert ([], "rights-claim") == asyncio.run(story())
    wrote = {("", "persistentvolumes", "update"), ("", "persistentvolumes", "patch")}
    assert wrote & asked(plane, KUBE_SCHEDULER)


def test_a_job_starts_whole_with_the_rights_of_the_manifests(plane, tmp_path):
    """
    A ProvisioningRequest of two plain pods is answered, and admission, scheduler and agent do the rest.
    """

    async def story():
        async with connected(plane) as early:
            await kueue_harness.install(early)
        async with installed(plane, tmp_path, "rights-gang") as made:
            at = made.stage
            gang = kueue_harness.Job(at.client, "rights-gang", [share_pod("x", 3)], [2])
            await gang.ask()
            said = await gang.answer("Provisioned", "Failed")
            await gang.start()
            pods = await gang.running()
            used = [pod["metadata"]["annotations"].get("gpushare.dev/consumed-reservation") for pod in pods]
            await at.client.until(lambda found: not found["items"], kueue_harness.RESERVATIONS)
            await gang.end()
            await kueue_harness.uninstall(at.client)
            return made.refusals(), said[0], used

    refusals, said, used = asyncio.run(story())
    assert ([], "Provisioned") == (refusals, said)
    assert 2 == len(set(used) - {None})


@MPS_RUNS
def test_the_end_of_an_mps_client_is_reported_with_the_rights_of_the_manifests(plane, tmp_path):
    """
    Its server dies, and the agent writes the pod's Event in the name of its own node.
    """
    machine = cards(tmp_path / "cards")
    wanted = share_pod("rights-client", 2, nodeSelector={MODE: "mps"}, securityContext={"runAsUser": 0})

    async def story():
        with contextlib.ExitStack() as stack:
            stack.enter_context(shared_mount(tmp_path / "run"))
            stack.enter_context(keeper_of(machine, tmp_path))
            async with installed(plane, tmp_path, "rights-mps", "mps", machine) as made:
                at, programs = made.stage, Programs(made.stage, tmp_path)
                stack.callback(programs.end)
                pod = await at.running((await at.client.create(wanted))["metadata"]["uid"])
                running, _ = await asyncio.to_thread(programs.run, pod)
                with contextlib.closing(Box(machine)) as box:
                    serving = [one.pid for one in box.clients(0) if one.name.startswith(b"nvidia-cuda-mps")]
                os.kill(serving[0], signal.SIGKILL)
                await asyncio.to_thread(running.wait, PATIENCE_SECONDS)
                at.kubelet.crash(pod, "main")
                [event] = await event_of(at, pod)
                await at.remove("rights-client")
                return made.refusals(), event["note"]

    refusals, note = asyncio.run(story())
    assert [] == refusals
    assert "the MPS server died" in note


def test_every_right_of_the_manifests_was_needed(plane):
    """
    By the API server's own record of the tests above: what was asked is granted, and what is granted was asked for,
    but for the one question that follows a bind whose answer was lost, the one of an installation with dialects, and
    the one about a namespace whose pods grow (`test_resize.py`).
    """
    in_trouble = {("", "pods", "get")}
    with_dialects = {("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "list")}
    of_growth = {("", "resourcequotas", "list")}
    unused = {account: granted_to(account) - asked(plane, account) for account in (SCHEDULER, NODE_AGENT)}
    beyond = {account: asked(plane, account) - granted_to(account) for account in (SCHEDULER, NODE_AGENT)}

    assert unused[SCHEDULER] <= in_trouble | with_dialects | of_growth
    assert set() == unused[NODE_AGENT]
    assert {account: set() for account in beyond} == beyond
    assert granted_to(KUBE_SCHEDULER) <= asked(plane, KUBE_SCHEDULER)
