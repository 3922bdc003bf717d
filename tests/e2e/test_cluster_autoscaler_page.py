# SPDX-License-Identifier: Apache-2.0
"""docs/cluster-autoscaler.md word by word on a real control plane, beside the stand-in with the page's own flags."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.apiclient import connected
from e2e.autoscaler_harness import Growing, pool_node
from e2e.cluster_autoscaler.installed import SPACE, Installed
from e2e.cluster_autoscaler.objects import SAFE_TO_EVICT, SCALE_UP_DELAY
from e2e.keda_harness import typed
from e2e.kubelets import share_pod, shared_node
from e2e.machine_deployments import MachineDeployments
from e2e.manifest_answers import open_soon
from e2e.manifest_harness import scheduling, standing
from e2e.manifest_installation import Installation, program
from e2e.sharing import PODS, ordinary_workload, untainted, workload
from support.docs_reading import ROOT, blocks
from support.docs_reading import typed as typed_lines
from support.waiting import soon

from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Coroutine

PAGE = (ROOT / "docs/cluster-autoscaler.md").read_text()
FILES, LISTS, COMMANDS = blocks(PAGE)
KUSTOMIZATION = FILES["Kustomization", ""]
MANIFEST = FILES["ConfigMap", "cluster-autoscaler-externalgrpc"]
[ACT, ADVISE, MORE_FLAGS] = LISTS
[APPLY, COPY, START, ROTATE] = COMMANDS
AGAIN = APPLY.splitlines()[1]
[HAND_BACK] = [line[2:] for line in typed_lines(PAGE) if line.startswith("$ ")]
SETTINGS = yaml.safe_load(FILES["", ""])
POOL = SETTINGS["pools"][0]["name"]
LIMITS = {"scan_interval_seconds": 0.3, "action_validation_delay_seconds": 0.1, "initial_pool_backoff_seconds": 5}
"""Added to the page's own: cluster-autoscaler's time is 40 times as fast."""
CERTIFICATE = "cluster.cluster_autoscaler_certificate"
PORTS = (6443, 8086, 8087, 8443)
MORE = 3.0
"""Minutes of cluster-autoscaler's time in which a second purchase would have come: eighteen loops."""
DRAINED = 25.0
"""Minutes of its time: ten after a purchase, ten until a node is unneeded, and some in which it may drain."""
REPLICAS, TIGHT = 4, 6


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own."""
    if os.geteuid() != 0:
        pytest.skip("cluster-autoscaler's process needs root: a hosts file of its own")
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not installed")
    with standing(tmp_path_factory.mktemp("page-plane"), PORTS) as started:
        yield started


@pytest.fixture(scope="module")
def stand(plane, tmp_path_factory):
    """The page, typed once from its top to its end of "Putting it there"; `stand.play` runs a story in it."""
    with asyncio.Runner() as runner:
        made = Stand(plane, tmp_path_factory.mktemp("page"), runner)
        try:
            runner.run(made.reported(made.set_up()))
            yield made
        finally:
            runner.run(made.stack.aclose())


class Stand:
    """gpushare and cluster-autoscaler as the page has them, and the machines of the page's pool."""

    def __init__(self, plane, folder, runner) -> None:
        self.plane, self.folder, self._runner = plane, folder, runner
        self.stack, self.autoscaler = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()

    def play(self, story: Coroutine[Any, Any, Any]) -> Any:
        """A story to its end."""
        return self._runner.run(self.reported(story))

    async def reported(self, story: Coroutine[Any, Any, Any]) -> Any:
        """A failure shows what the processes said."""
        try:
            return await story
        except BaseException:
            print(self.installation.words(), self.theirs.status(), self.theirs.log()[-4000:])  # noqa: T201 (with the failure)
            raise

    async def set_up(self) -> None:
        """
        A pool of one node, full of share pods; then the page's steps, and what a cluster does by itself.

        `dry` and `acting` are what the pods say to cluster-autoscaler before the last step and after it.
        """
        start = self.stack.enter_async_context
        self.client = await start(connected(self.plane))
        self.installation = Installation(self.plane, self.client, self.folder)
        self.theirs = Installed(self.plane, self.client, self.folder)
        kubelets = await start(Growing(self.client, [_plain()]).alive())

        def node_of(name: str, pool: str) -> dict[str, Any]:
            made = pool_node(name, pool, **{"kubernetes.io/os": "linux"})
            kubelets.adopt(made)
            return made

        self.machines = await start(MachineDeployments(self.client, node_of).running())
        await self.machines.create(POOL, 1)
        await self.machines.settled(POOL)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cluster-autoscaler"}}
        await self.client.create(account, "kube-system")
        (self.folder / "gpushare").symlink_to(ROOT)
        self.installation.env["PATH"] = os.pathsep.join(
            (str(program(self.folder / "bin")), self.installation.env["PATH"])
        )
        self.kustomization = KUSTOMIZATION
        self.write("pools.yaml", json.dumps(SETTINGS | {"limits": LIMITS}))
        self.write("kustomization.yaml", KUSTOMIZATION)
        await self.types(APPLY)
        await untainted(self.client)
        await self.installation.served(AUTOSCALER)
        await self.types(COPY)
        self.write("cluster-autoscaler.yaml", MANIFEST)
        await start(scheduling(self.installation))
        self.stack.push_async_callback(self.ends)
        await self.restart()
        await self.types(START)
        await start(self.theirs.alive())
        await self.theirs.runs()
        await self.client.create(workload("Deployment", "share", REPLICAS, share("any", 6, "1")))
        await self.running("share", REPLICAS)
        await self.theirs.passes(0.5)
        self.dry = await self.says("share")
        self.add_patches(ACT)
        await self.types(AGAIN)
        self.acting = await soon(self.handed_over, self.installation.words, every=0.3)

    async def handed_over(self) -> list[tuple[str | None, str | None]]:
        """What the pods of `share` say, once they all say something; else nothing."""
        found = await self.says("share")
        return found if all(safe for _, safe in found) else []

    async def ends(self) -> None:
        """The autoscaler."""
        await self.autoscaler.aclose()

    async def restart(self) -> None:
        """The autoscaler's pod of now: arguments and files."""
        await self.ends()
        self.autoscaler = contextlib.AsyncExitStack()
        await self.autoscaler.enter_async_context(self.installation.process(AUTOSCALER))
        await open_soon(8086)

    async def types(self, lines: str) -> str:
        """A block of commands."""
        return await asyncio.to_thread(typed, self.installation, self.folder, lines)

    def write(self, name: str, text: str) -> None:
        """A file of the user's."""
        (self.folder / name).write_text(text)

    def add_patches(self, text: str) -> None:
        """More of them in the kustomization."""
        whole = yaml.safe_load(self.kustomization)
        whole["patches"] += yaml.safe_load(text)
        self.kustomization = yaml.safe_dump(whole)
        self.write("kustomization.yaml", self.kustomization)

    async def says(self, app: str) -> list[tuple[str | None, str | None]]:
        """What each pod of an app tells cluster-autoscaler: when to buy for it, whether to evict it."""
        pods = (await self.client.get(PODS, labelSelector=f"app={app}"))["items"]
        notes = [pod["metadata"].get("annotations", {}) for pod in pods]
        return [(one.get(SCALE_UP_DELAY), one.get(SAFE_TO_EVICT)) for one in notes]

    async def running(self, app: str, count: int) -> set[str]:
        """UIDs of an app's pods, once so many run and no others are there."""

        def run(pods: dict[str, Any]) -> bool:
            phases = [pod["status"].get("phase") for pod in pods["items"]]
            return phases == ["Running"] * count

        found = await self.client.until(run, PODS, labelSelector=f"app={app}")
        return {pod["metadata"]["uid"] for pod in found["items"]}

    async def bought_for(self, name: str, units: int, cpu: str, cards: int = 1) -> tuple[int, str | None]:
        """Machines made for one more share pod, and for how long it tells cluster-autoscaler to pass it by."""
        before = self.machines.made[POOL]
        made = await self.client.create(share(name, units, cpu, cards))
        await self.client.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/{name}")
        await self.theirs.passes(MORE)
        return self.machines.made[POOL] - before, made["metadata"].get("annotations", {}).get(SCALE_UP_DELAY)

    async def doctor(self) -> dict[str, str]:
        """What `gpushare doctor cluster` finds about cluster-autoscaler: state by check."""
        found = json.loads(await self.types("gpushare doctor cluster --json || true"))
        about = ("cluster.cluster_autoscaler", "cluster.handover")
        return {one["check"]: one["state"] for one in found["findings"] if one["check"].startswith(about)}

    async def shown(self) -> str:
        """The certificate that cluster-autoscaler's Secret has now."""
        return (await self.client.get(f"{SPACE}/secrets/gpushare-cluster-autoscaler"))["data"]["tls.crt"]


def _plain() -> dict[str, Any]:
    """A node of no pool, for our controllers and cluster-autoscaler: 8 CPUs."""
    node = shared_node("page-plain", cards=0, **{"kubernetes.io/os": "linux"})
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts["cpu"] = "8"
    return node


def share(name: str, units: int, cpu: str, cards: int = 1) -> dict[str, Any]:
    """A pod with a share that asks for CPUs too."""
    pod = share_pod(name, units, cards)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return pod


def test_cluster_autoscaler_scales_until_gpushare_acts(stand):
    """
    In the first dry run no pod says anything to cluster-autoscaler; with the page's last step all of them do.
    """
    assert [(None, None)] * REPLICAS == stand.dry
    assert [("8760h", "false")] * REPLICAS == stand.acting
    assert {"ok"} == set(stand.play(stand.doctor()).values())


def test_a_pending_share_pod_is_bought_for_once_and_by_gpushare(stand):
    """
    By the node's sum there is room for it, and on no card: cluster-autoscaler alone would never buy.
    """
    assert (1, "8760h") == stand.play(stand.bought_for("beyond-sums", 6, "56"))


def test_running_share_pods_stay_and_ordinary_pods_are_served(stand):
    """
    Three nodes of pods that fit onto two of them by sums, ordinary pods on them and waiting: through a whole scale-down
    no share pod is evicted, and one machine is bought for whoever needs one.
    """

    async def story():
        first = stand.machines.made[POOL]
        await stand.client.create(workload("Deployment", "tight", TIGHT, share("any", 8, "8")))
        before = await stand.running("tight", TIGHT)
        bought = stand.machines.made[POOL]
        await stand.client.create(ordinary_workload("small", 3, "500m"))
        await stand.client.create(ordinary_workload("large", 1, "61"))
        await stand.running("small", 3)
        await stand.running("large", 1)
        await stand.theirs.passes(DRAINED)
        await stand.running("small", 3)
        await stand.running("large", 1)
        after = await stand.running("tight", TIGHT)
        await stand.running("share", REPLICAS)
        return before, after, bought - first, stand.machines.made[POOL] - bought, stand.theirs.status()["count"]

    before, after, ours, theirs, count = stand.play(story())
    assert before == after
    assert (TIGHT // 2, 1) == (ours, theirs)
    assert "evictions" not in count


def test_new_certificates_cost_no_order(stand):
    """
    After the script alone cluster-autoscaler goes on with what it has read, and doctor warns; copied and restarted, it
    shows the new one.
    """
    script, rest = ROTATE.split("\n", 1)

    async def story():
        pod, old = await stand.theirs.runs(), await stand.shown()
        await stand.types(script)
        await stand.installation.command(await stand.installation.pod(AUTOSCALER))  # as a kubelet refreshes the volume
        between = await stand.bought_for("old-certificate", 30, "60", 2)
        assert pod == stand.theirs.pod
        warned = (await stand.doctor())[CERTIFICATE]
        await stand.types(rest)
        await stand.theirs.runs(other_than=pod)
        after = await stand.bought_for("new-certificate", 30, "60", 2)
        return between, after, old != await stand.shown(), warned, (await stand.doctor())[CERTIFICATE]

    assert ((1, "8760h"), (1, "8760h"), True, "warning", "ok") == stand.play(story())


def test_pods_of_an_autoscaler_that_is_gone_are_handed_back_by_hand(stand):
    """
    By the page's command; once it is back it takes them over again.
    """

    async def story():
        await stand.ends()
        said = await stand.types(HAND_BACK)
        found = await stand.says("share")
        await stand.restart()
        return said, found, await soon(stand.handed_over, stand.installation.words, every=0.3)

    said, back, again = stand.play(story())
    assert said.startswith("1 pools and ")
    assert [(None, None)] * REPLICAS == back
    assert [("8760h", "false")] * REPLICAS == again


def test_the_expander_is_asked_as_the_page_says(stand):
    """
    Its patches and flags on top: an ordinary pod that cluster-autoscaler buys for is served with advice.
    """

    async def story():
        stand.add_patches(ADVISE)
        await stand.types(AGAIN)
        await stand.types(f"kubectl -n {SYSTEM_NAMESPACE} rollout status deployment/{AUTOSCALER} --timeout=100s")
        await stand.restart()
        pod = await stand.theirs.runs()
        whole = list(yaml.safe_load_all(MANIFEST))
        whole[1]["spec"]["template"]["spec"]["containers"][0]["command"] += yaml.safe_load(MORE_FLAGS)
        stand.write("cluster-autoscaler.yaml", yaml.safe_dump_all(whole))
        await stand.types(START)
        await stand.theirs.runs(other_than=pod)
        policy = f"/apis/networking.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/networkpolicies"
        policies = (await stand.client.get(policy))["items"]
        opening = [
            rule.get("from")
            for one in policies
            for rule in one["spec"].get("ingress", ())
            if {"port": "expander", "protocol": "TCP"} in rule["ports"]
        ]
        before = stand.machines.made[POOL]
        await stand.client.create(ordinary_workload("advised", 1, "61"))
        await stand.running("advised", 1)
        return opening, stand.machines.made[POOL] - before, stand.theirs.status()["asked"]

    opening, bought, asked = stand.play(story())
    assert [[{"app": "cluster-autoscaler"}]] == [
        [one["podSelector"]["matchLabels"] for one in rule] for rule in opening
    ]
    assert 1 == bought
    assert asked["BestOptions answered"] == asked["BestOptions"] > 0, stand.theirs.log()[-3000:]
