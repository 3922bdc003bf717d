# SPDX-License-Identifier: Apache-2.0
"""
The autoscaler's loop on a real control plane, in this process: real objects, a test machine controller, fake kubelets.

    async with stage(plane, tmp_path, pool("gpu-a", max_nodes=5)) as s:
        await s.client.create(our_pod("one", 8))
        await s.turns(lambda: s.bound() == {"one"})

Our scheduler runs beside it, so that what was bought and what was reserved is really used. `s.reborn()` is what a
restart of the controller is: a new world from what was stored, and the objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from e2e.apiclient import RefusedError
from e2e.kubelets import Kubelets, share_pod
from e2e.machine_deployments import ROOT, MachineDeployments
from e2e.sharing import PODS, card_node, sharing, why_pending
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.core.conditions import Condition, ConditionError
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.events import Recorder
from autoscaler.kube.state import ControllerState, decode, encode
from autoscaler.kube.usage import Nothing
from autoscaler.kube.watches import Sources
from autoscaler.providers.core.profile import make_template
from autoscaler.providers.registry import PoolSource, open_providers
from isolation.contract.codec.cursor import At
from isolation.contract.codec.node import node_of
from isolation.contract.names import MOVED, SCHEDULER
from isolation.kube.access import Access
from isolation.kube.core.errors import ClusterError
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

    from autoscaler.core.plan import Plan
    from isolation.contract.codec.template import NodeTemplate

RESERVED = "/apis/gpushare.dev/v1alpha1/reservations"
POOL_LABEL = "gpushare.dev/pool"
NO_HOME_SECONDS = 60.0
"""Who was evicted and has a home is bound in a fraction of a second; without one it waits for ever."""


def quick(**more: Any) -> ScalingLimits:
    """Limits of seconds, not of minutes."""
    given = {
        "scan_interval_seconds": 0.2,
        "action_validation_delay_seconds": 0.1,
        "scale_down_unneeded_seconds": 1.0,
        "scale_down_delay_after_add_seconds": 1.0,
        "min_node_age_seconds": 1.0,
        "min_pod_age_seconds": 0.0,
        "move_cooldown_seconds": 5.0,
        "max_node_provision_seconds": 300.0,
        "max_device_registration_seconds": 200.0,
        "drain_timeout_seconds": 600.0,
        "node_delete_delay_after_taint_seconds": 1.0,
        "initial_pool_backoff_seconds": 5.0,
        "move_timeout_seconds": 600.0,
        "max_moves_per_hour_ratio": 1.0,
    }
    return ScalingLimits(**(given | more))


def pool_node(name: str, pool: str, cards: int = 2, gib: int = 15, **more: Any) -> dict[str, Any]:
    """A node of a pool, as it is when its agent has registered the cards."""
    return card_node(name, cards, gib, **{POOL_LABEL: pool}, **more)


def pool(name: str, *, profile: NodeTemplate | None = None, **more: Any) -> PoolConfig:
    """A MachineDeployment of that name as a pool."""
    return PoolConfig(name, PoolSource(name, "scale", At({"name": name})), profile=profile, **more)


def profile_of(node: dict[str, Any]) -> NodeTemplate:
    """What an operator would write down of such a node."""
    return make_template(node_of(node))


class Growing(Kubelets):
    """Kubelets of nodes that come later."""

    def adopt(self, node: dict[str, Any]) -> None:
        """Serve it from now on; somebody else makes the object."""
        self._nodes[node["metadata"]["name"]] = node


@dataclass
class Stage:
    """One test's autoscaler and what it acts on."""

    client: ApiClient
    access: Any
    sources: Sources
    machines: MachineDeployments
    configs: tuple[PoolConfig, ...]
    limits: ScalingLimits
    world: KubeCluster = field(init=False)
    memory: AutoscalerState = field(default_factory=AutoscalerState)
    plans: list[Plan] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    fenced: str = ""
    """Set it, and nothing may be written any more."""
    ahead: float = 0.0
    """By how much somebody has set the wall clock."""
    figures: Any = field(default_factory=Nothing)
    providers: Any = None

    def __post_init__(self) -> None:
        self.providers = open_providers([one.source for one in self.configs], self.access)
        self.world = self._made(ControllerState())

    def now(self) -> float:
        """The wall clock."""
        return time.time() + self.ahead

    def reborn(self) -> None:
        """The controller was killed and is back: what it had in memory is gone, what it stored is not."""
        self.memory = AutoscalerState()
        self.world = self._made(decode(encode(self.world.state), self.now()))

    def reopen(self) -> None:
        """The same controller with another way to the API (`access`)."""
        self.providers = open_providers([one.source for one in self.configs], self.access)
        self.world = self._made(decode(encode(self.world.state), self.now()))

    def _made(self, state: ControllerState) -> KubeCluster:
        fence = lambda: self.fenced  # noqa: E731 (asked later)
        events = Recorder(self.access, "test", fence, boottime)
        parts = ClusterParts(self.access, self.sources, self.providers, self.figures, events, fence, self.now)
        return KubeCluster(parts, self.configs, self.limits, state)

    async def reconcile(self) -> Plan | None:
        """One turn; None where nothing was known."""
        try:
            plan, self.memory = await reconcile(self.world, self.limits, self.memory, decide)
        except ConditionError as exc:
            self.conditions += exc.conditions
            return None
        except ClusterError:
            return None
        self.conditions += self.world.conditions()
        self.plans.append(plan)
        return plan

    async def turns(self, claim: Callable[[], Any], why: str = "") -> None:
        """Turn after turn until the claim (which may be a coroutine's) holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            await self.reconcile()
            held = claim()
            if held if not asyncio.iscoroutine(held) else await held:
                return
            if time.monotonic() > end:
                raise AssertionError(f"{why or 'never'}: {await self.story()}")
            await asyncio.sleep(self.limits.scan_interval_seconds)

    async def story(self) -> str:
        """What a failed test wants to know."""
        pods = {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in (await self.client.get(PODS))["items"]}
        seen = self.world.observed
        machines = {} if seen is None else {n: m.state.value for n, m in seen.observation.machines.items()}
        steps = [str(step)[:300] for plan in self.plans[-40:] for step in plan.steps][-8:]
        conditions = list(dict.fromkeys(condition.text for condition in self.conditions))[-8:]
        want = self.memory.demand
        given = f"{pods=} {machines=} {steps=} {conditions=}"
        return f"{given} capped={want and want.capped} unplaceable={want and want.unplaceable}"

    async def where(self, selector: str = "") -> dict[str, str]:
        """Node by pod, of those that are bound and not ending."""
        found = (await self.client.get(PODS, **({"labelSelector": selector} if selector else {})))["items"]
        return {
            p["metadata"]["name"]: p["spec"]["nodeName"]
            for p in found
            if p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"]
        }

    async def all_bound(self, count: int, selector: str = "") -> bool:
        """Whether so many run somewhere and nobody waits."""
        found = (await self.client.get(PODS, **({"labelSelector": selector} if selector else {})))["items"]
        live = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return len(live) == count and all(p["status"].get("phase") == "Running" for p in live)

    def steps(self, kind: type) -> list[Any]:
        """Steps of one kind that were in the plans."""
        return [step for plan in self.plans for step in plan.steps if isinstance(step, kind)]


@contextlib.asynccontextmanager
async def stage(
    plane: ControlPlane,
    folder: Path,
    *configs: PoolConfig,
    limits: ScalingLimits | None = None,
    start: dict[str, int] | None = None,
    node_of: Callable[[str, str], dict[str, Any]] = pool_node,
    kubeconfig: Path | None = None,
) -> AsyncIterator[Stage]:
    """
    Our scheduler, a machine controller for every pool (with `start` machines), and a world over it all.

    The world acts as `kubeconfig` says, as the administrator without one.
    """
    async with sharing(plane, folder) as (client, _), Growing(client, ()).alive() as kubelets:

        def made(name: str, of: str) -> dict[str, Any]:
            node = node_of(name, of)
            kubelets.adopt(node)
            return node

        machines = MachineDeployments(client, made)
        async with machines.running(), Access(kubeconfig or plane.kubeconfig) as access:
            for one in configs:
                await machines.create(one.name, (start or {}).get(one.name, 0))
                await machines.settled(one.name)
            sources = Sources(access)
            async with sources.following():
                await asyncio.wait_for(sources.synced(), 20)
                yield Stage(client, access, sources, machines, configs, limits or quick())
            await forget(client)


async def forget(client: ApiClient) -> None:
    """No machine, no reservation, no budget stays for the next test."""
    for path in (f"{ROOT}/machinedeployments", RESERVED, "/apis/policy/v1/namespaces/default/poddisruptionbudgets"):
        with contextlib.suppress(RefusedError):
            await client.delete(path)


class Killed(BaseException):
    """The controller is killed at a write; nothing of it catches this."""


class Deadly:
    """
    The way to the API on which the controller dies: at the first try of each write before it, at the second after it.

    The third try of the same write passes. Events are no step of anything and pass at once.
    """

    def __init__(self, access: Access, before_eviction: Callable[[str], Any] | None = None) -> None:
        self._access, self._before_eviction = access, before_eviction
        self.tries: dict[tuple[str, str], int] = {}
        self.deaths = 0

    async def send(
        self, method: str, path: str, body: object = None, kind: str = "json", seconds: float | None = None
    ) -> bytes:
        """As the real one, or death."""
        if method == "GET" or path.startswith("/apis/events"):
            return await self._access.send(method, path, body, kind, seconds)
        meta = body.get("metadata", {}) if isinstance(body, dict) else {}
        named = meta.get("annotations", {}).get(MOVED) or meta.get("name", "")
        key = (method, f"{path} {named}")
        self.tries[key] = self.tries.get(key, 0) + 1
        if self.tries[key] == 1:
            self.deaths += 1
            raise Killed(f"before {method} {path}")
        if path.endswith("/eviction") and self._before_eviction is not None:
            await self._before_eviction(path)
        answer = await self._access.send(method, path, body, kind, seconds)
        if self.tries[key] == 2:
            self.deaths += 1
            raise Killed(f"after {method} {path}")
        return answer

    async def page(self, path: str, query: Any) -> bytes:
        """As the real one."""
        return await self._access.page(path, query)


class Watcher:
    """What happened to pods, seen from outside: who was evicted, how few ever ran, how long anybody waited."""

    def __init__(self, client: ApiClient, selector: str = "") -> None:
        self._client, self._selector = client, selector
        self.fewest: int | None = None
        self.ended: set[str] = set()
        self._known: set[str] = set()
        self.longest_wait = 0.0
        self._waits: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """Look many times a second."""
        task = asyncio.create_task(self._look())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            given = {"labelSelector": self._selector} if self._selector else {}
            found = (await self._client.get(PODS, **given))["items"]
            now, names = time.monotonic(), {pod["metadata"]["name"] for pod in found}
            self.ended |= self._known - names
            self._known |= names
            for pod in found:
                meta = pod["metadata"]
                if not pod["spec"].get("nodeName"):
                    self.longest_wait = max(self.longest_wait, now - self._waits.setdefault(meta["uid"], now))
            running = sum(
                p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"] for p in found
            )
            self.fewest = running if self.fewest is None else min(self.fewest, running)
            await asyncio.sleep(0.03)


async def only(client: ApiClient, allowed: str) -> None:
    """Every other node is cordoned, and kube-scheduler knows it; an empty name opens all of them."""
    nodes = {node["metadata"]["name"]: node for node in (await client.get("/api/v1/nodes"))["items"]}
    closed = ""
    for name in sorted(nodes, key=lambda name: name != allowed):  # who is opened comes first
        shut = bool(allowed) and name != allowed
        if shut != bool(nodes[name]["spec"].get("unschedulable")):
            await client.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": shut or None}})
            closed = name if shut else closed
    if closed:
        await known_to_scheduler(client, closed)


async def known_to_scheduler(client: ApiClient, closed: str) -> None:
    """Until a pod that wants this node is refused: changes of nodes reach a watcher in their order."""
    probe = share_pod("wants-closed", 0, schedulerName=SCHEDULER, nodeSelector={"kubernetes.io/hostname": closed})
    path = f"{PODS}/wants-closed"
    while True:
        await client.create(probe)
        pod = await client.until(lambda pod: pod["spec"].get("nodeName") or why_pending(pod), path)
        await client.delete(path, force=True)
        if not pod["spec"].get("nodeName"):
            return
