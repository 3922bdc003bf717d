# SPDX-License-Identifier: Apache-2.0
"""docs/keda.md word by word, with the real KEDA and a real HorizontalPodAutoscaler on a real control plane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

import pytest
from e2e.apiclient import connected
from e2e.exporter_harness import exporting
from e2e.keda_harness import PORTS, VERSION, WEBHOOKS_PORT, Keda, need_keda, typed
from e2e.kubelets import Kubelets, share_pod, shared_node
from e2e.manifest_answers import answers, open_soon
from e2e.manifest_harness import scheduling, standing
from e2e.manifest_installation import ADDRESS, INSIDE, Installation, need_free
from e2e.sharing import card_node, clear, untainted, workload
from support.docs_reading import ROOT, blocks
from support.waiting import soon

from isolation.contract.metrics.autoscaler import PENDING_MEMORY
from isolation.contract.names import AUTOSCALER
from isolation.contract.quantity import GIB

OBJECTS, _, COMMANDS = blocks((ROOT / "docs/keda.md").read_text())
CHAT, CHAT_CPU = OBJECTS["ScaledObject", "chat"], OBJECTS["ScaledObject", "chat-cpu"]
NODE, CARDS, CARD_GIB = "keda-gpu", 4, 15
SPACE = "/api/v1/namespaces/demo"
DEPLOYMENTS = "/apis/apps/v1/namespaces/demo/deployments"
SCALED = "/apis/keda.sh/v1alpha1/namespaces/demo/scaledobjects"
EVENTS = "/apis/events.k8s.io/v1/namespaces/demo/events"
WAITING = f'{PENDING_MEMORY.name}{{namespace="demo"'
STILL_SECONDS = 8.0
"""Eight looks of the HorizontalPodAutoscaler, one poll of KEDA's or more."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own, whose autoscalers look each second and do not wait before they scale in."""
    need_keda()
    with standing(tmp_path_factory.mktemp("keda"), PORTS) as started:
        need_free("0.0.0.0", WEBHOOKS_PORT)  # noqa: S104 (closed at once)
        started.kill("kube-controller-manager")
        swift = "sync-period=1s", "downscale-stabilization=1s"
        started.start_controller_manager(*(f"--horizontal-pod-autoscaler-{flag}" for flag in swift))
        yield started


@pytest.fixture(scope="module")
def stand(plane, tmp_path_factory):
    """The page's set-up, typed once; `stand.play` runs a story in it."""
    with asyncio.Runner() as runner:
        made = Stand(plane, tmp_path_factory.mktemp("page"), runner)
        try:
            runner.run(made.set_up())
            yield made
        finally:
            runner.run(made.stack.aclose())


class Stand:
    """KEDA and gpushare as the page has them, and workloads in the namespace `demo`."""

    def __init__(self, plane, folder, runner):
        self.plane, self.folder, self._runner = plane, folder, runner
        self.stack = contextlib.AsyncExitStack()

    def play(self, story):
        """A story to its end; nothing of it stays, and a failure shows what the processes said."""

        async def played():
            try:
                return await story
            except BaseException:
                print(self.installation.words())  # noqa: T201 (shown with the failure)
                raise
            finally:
                await self.client.delete(SCALED)
                await clear(self.client, "demo")
                await self.client.until(lambda left: not left["items"], SCALED)
                await self.client.delete(EVENTS)
                await soon(self.nobody_waits, every=0.2)

        return self._runner.run(played())

    async def nobody_waits(self):
        """And the autoscaler has seen it."""
        page = await answers(f"http://{ADDRESS}:9448/metrics")
        waiting = [line for line in page.splitlines() if line.startswith(WAITING)]
        return all(float(line.rsplit(" ", 1)[1]) == 0 for line in waiting)

    async def set_up(self):
        """The page, from its top to the first workload; then what a cluster and its nodes do by themselves."""
        start = self.stack.enter_async_context
        self.client = await start(connected(self.plane))
        self.installation = Installation(self.plane, self.client, self.folder)
        linux = {"kubernetes.io/os": "linux"}
        nodes = [card_node(NODE, CARDS, CARD_GIB, **linux), shared_node("keda-plain", cards=0, **linux)]
        await start(Kubelets(self.client, nodes).alive())
        (self.folder / "gpushare").symlink_to(ROOT)
        install, apply, self.copy = COMMANDS
        release = f"https://github.com/kedacore/keda/releases/download/v{VERSION}/keda-{VERSION}.yaml"
        assert install == f"kubectl apply --server-side -f {release}\n"
        keda = Keda(self.installation)
        await asyncio.to_thread(keda.install)
        await start(keda.alive())
        (self.folder / "kustomization.yaml").write_text(OBJECTS["Kustomization", ""])
        for lines in (apply, self.copy):
            await self.types(lines)
        await self.apply(OBJECTS["ClusterTriggerAuthentication", "gpushare"])
        await self.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
        await untainted(self.client)
        await self.installation.served(AUTOSCALER)
        self.exporters = await start(exporting(self.client, NODE))
        figures = {"source": "exporter", "port": self.exporters.port, "scrape_interval_seconds": 1}
        config = json.dumps({"version": 1, "metrics": figures, "limits": {"scan_interval_seconds": 1}})
        await self.client.merge(f"{INSIDE}/configmaps/{AUTOSCALER}-config", {"data": {"config.yaml": config}})
        await start(scheduling(self.installation))
        self.autoscaler = await start(contextlib.AsyncExitStack())
        await self.restart()

    async def restart(self):
        """The autoscaler, with its Secrets as they are now."""
        await self.autoscaler.aclose()
        await self.autoscaler.enter_async_context(self.installation.process(AUTOSCALER))
        await open_soon(8086)

    async def types(self, lines):
        """A block of commands."""
        return await asyncio.to_thread(typed, self.installation, self.folder, lines)

    async def apply(self, text):
        """A block of YAML."""
        file = self.folder / "applied.yaml"
        file.write_text(text)
        await self.types(f"kubectl apply -f {file}")

    def uses(self, part):
        """Each pod uses this part of its promise."""
        self.exporters.used = lambda _name: part * 4 * GIB

    async def deploy(self, name, replicas, units=0):
        """A workload, running."""
        made = workload("Deployment", name, replicas, share_pod("x", units))
        await self.client.create(made, "demo")
        ready = lambda one: one["status"].get("readyReplicas", 0) == replicas  # noqa: E731
        await self.client.until(ready, f"{DEPLOYMENTS}/{name}")

    async def waits(self, name, units):
        """A pod that no card has room for."""
        full = share_pod(name, units, nodeSelector={"no": "such"})
        await self.client.create(full, "demo")

    async def replicas(self, name):
        """What is wanted now."""
        return (await self.client.get(f"{DEPLOYMENTS}/{name}"))["spec"]["replicas"]

    async def scaled(self, name, claim):
        """Once the replicas are so; how many they are."""
        found = await self.client.until(lambda one: claim(one["spec"]["replicas"]), f"{DEPLOYMENTS}/{name}")
        return found["spec"]["replicas"]

    async def stays(self, name):
        """For a while nothing changes."""
        before = await self.replicas(name)
        end = asyncio.get_running_loop().time() + STILL_SECONDS
        while asyncio.get_running_loop().time() < end:
            assert before == await self.replicas(name)
            await asyncio.sleep(0.2)

    async def says(self, name, words):
        """The event of the ScaledObject that has these words, once there is one."""

        async def read_notes():
            notes = [
                one["note"]
                for one in (await self.client.get(EVENTS))["items"]
                if (one["regarding"]["kind"], one["regarding"]["name"]) == ("ScaledObject", name)
            ]
            self.notes = notes
            return next((note for note in notes if words in note), "")

        return await soon(read_notes, lambda: self.notes, every=0.2)

    async def polled(self, name):
        """KEDA has asked once. Its conditions of then may be gone: its own reconciler overwrites them."""
        await self.client.until(lambda one: one.get("status", {}).get("triggersActivity"), f"{SCALED}/{name}")

    async def condition(self, name, kind, status):
        """Once a condition of the ScaledObject is so; its reason."""

        def found(one):
            return [
                c for c in one.get("status", {}).get("conditions", ()) if (c["type"], c["status"]) == (kind, status)
            ]

        return found(await self.client.until(found, f"{SCALED}/{name}"))[0].get("reason")


def test_a_workload_follows_what_it_uses_and_stays_while_nobody_knows(stand):
    """
    The page's `chat`: out while its pods use more than 0.8 of their promise; the exporter gone, the replicas stay and
    an event says which pod has no figure; back, and in again when the pods idle.
    """

    async def story():
        stand.uses(1.0)
        await stand.deploy("chat", 1, 4)
        await stand.apply(CHAT)
        out = await stand.scaled("chat", lambda count: count >= 3)
        stand.uses(0.8)
        await stand.exporters.leave()
        said = await stand.says("chat", "no fresh measurement")
        reason = await stand.condition("chat", "Ready", "False")
        await stand.stays("chat")
        await stand.exporters.come()
        stand.uses(0.1)
        await stand.scaled("chat", lambda count: count == 1)
        await stand.condition("chat", "Ready", "True")
        return out, said, reason

    out, said, reason = stand.play(story())
    assert out <= 20
    assert re.search(r"gpu_mem_used_ratio: pod demo/chat-\S+ has no fresh measurement", said), said
    assert "TriggerError" == reason


@pytest.mark.parametrize("kind", ["external", "external-push"])
def test_a_workload_comes_from_zero_while_pods_wait_and_goes_back(stand, kind):
    """
    The page's `chat-cpu`: none while nobody waits, a replica for each 8 GiB that pods wait for, none afterwards. With
    external-push KEDA is reported, long before its next poll.
    """
    given = CHAT_CPU.replace("type: external\n", f"type: {kind}\n")
    if kind == "external-push":
        given = given.replace("pollingInterval: 5 ", "pollingInterval: 3600 ")

    async def story():
        await stand.deploy("chat-cpu", 0)
        await stand.apply(given)
        await stand.polled("chat-cpu")
        before = await stand.replicas("chat-cpu")
        await stand.waits("waits-1", 12)
        await stand.waits("waits-2", 12)
        out = await stand.scaled("chat-cpu", lambda count: count >= 3)
        if kind == "external":
            for name in ("waits-1", "waits-2"):
                await stand.client.delete(f"{SPACE}/pods/{name}", force=True)
            await stand.scaled("chat-cpu", lambda count: count == 0)
        return before, out

    assert (0, 3) == stand.play(story())


def test_up_to_its_activation_a_figure_brings_nothing_from_zero(stand):
    """
    12 GiB wait, and 16 GiB is the activation: none. 24 GiB wait: three, as the target says.
    """

    async def story():
        await stand.deploy("chat-cpu", 0)
        await stand.apply(CHAT_CPU.replace("target: 8Gi", "target: 8Gi\n        activation: 16Gi"))
        await stand.polled("chat-cpu")
        await stand.waits("waits-1", 12)
        await stand.stays("chat-cpu")
        await stand.waits("waits-2", 12)
        return await stand.scaled("chat-cpu", lambda count: count >= 3)

    assert 3 == stand.play(story())


WRONG = {
    "unknown key": ("target: 8Gi", "target: 8Gi\n        selektor: pool=gpu-a10", "selektor"),
    "no amount": ("target: 8Gi", "target: plenty", "plenty"),
    "unknown metric": ("metric: gpu_mem_pending_bytes", "metric: gpu_mem_pending", "unknown metric"),
    "unknown label": ("target: 8Gi", "target: 8Gi\n        selector: zone=a", "supports only the labels"),
}


@pytest.mark.parametrize(("right", "wrong", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_trigger_says_so_and_scales_nothing(stand, right, wrong, words):
    """
    Two replicas, nobody waits, `minReplicaCount: 0`: they stay two, and the ScaledObject's events say what is wrong.
    """
    assert right in CHAT_CPU

    async def story():
        await stand.deploy("chat-cpu", 2)
        await stand.apply(CHAT_CPU.replace(right, wrong))
        said = await stand.says("chat-cpu", words)
        await stand.condition("chat-cpu", "Ready", "False")
        await stand.stays("chat-cpu")
        return said

    assert "InvalidArgument" in stand.play(story())


def test_new_certificates_cost_no_replica_and_no_restart_of_keda(stand):
    """
    The script again, and the autoscaler's volume has the new pair: over the connection that there is, the figures come
    on. With a new authority and the connection broken, KEDA cannot reach us and the replicas stay, until the Secret is
    copied again.
    """

    async def story():
        stand.uses(0.8)
        await stand.deploy("chat", 2, 4)
        await stand.apply(CHAT)
        await stand.condition("chat", "HPAActive", "True")
        await stand.types("sh gpushare/manifests/certificate.sh grpc")
        await stand.installation.command(await stand.installation.pod(AUTOSCALER))
        stand.uses(1.0)
        await stand.scaled("chat", lambda count: count >= 3)
        stand.uses(0.8)
        lost = "gpushare-grpc-authority gpushare-autoscaler-grpc-tls"  # nothing from before is believed any more
        await stand.types(f"kubectl -n gpushare-system delete secret --ignore-not-found {lost}")
        await stand.types("sh gpushare/manifests/certificate.sh grpc")
        await stand.restart()
        await stand.says("chat", "got empty metric spec")
        await stand.stays("chat")
        reason = stand.installation.logs["keda-operator"].read_text()
        await stand.types(stand.copy)
        stand.uses(0.1)
        await stand.scaled("chat", lambda count: count == 1)
        return reason

    assert "authentication handshake failed" in stand.play(story())


def test_the_example_for_prometheus_is_taken_by_kedas_schema_and_admission(stand):
    """
    `components/keda-prometheus`, as KEDA's own definition and webhook read it.
    """

    async def story():
        file = "gpushare/manifests/components/keda-prometheus/scaledobject.yaml"
        return await stand.types(f"kubectl apply --dry-run=server --validate=strict -f {file}")

    assert "scaledobject.keda.sh/web created (server dry run)\n" == stand.play(story())
