# SPDX-License-Identifier: Apache-2.0
"""
One seed, one run: nodes are drained and given back while pods are bound to them by schedulers who see late.

Real are the autoscaler's loop, its deciders, its world and its watches. Around them: a server, a provider whose answers
may be lost and whose removals may come late, schedulers whose watch is up to `MAX_LAG` behind and whose binds take up
to the API server's --request-timeout, kubelets and a controller that makes evicted pods again. The judge knows what is
stored: a machine that goes while somebody runs there, or to which somebody is bound afterwards, is a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from interleave.clocks import LoopTime
from interleave.loop import Process, StuckError, VirtualLoop, thrown_away
from interleave.server import EPOCH, Route, Server, Thing, route_of, text
from interleave.stream import chosen_by, selected
from interleave.wire import Net, Weather, Wire
from support.autoscaler_harness import Silent, a_node, a_pod

from autoscaler.core.limits import ScalingLimits
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube import watches
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.core.conditions import ConditionError
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.usage import Nothing
from autoscaler.kube.watches import Sources
from autoscaler.providers.base import ChangedError, PoolState, ProviderInstance, ProviderUnreachableError
from autoscaler.providers.core.profile import make_template
from autoscaler.providers.registry import PoolSource, Providers
from isolation.contract.codec.cursor import At
from isolation.contract.codec.node import node_of
from isolation.contract.names import ALLOCATION, DRAIN
from isolation.kube import listwatch
from isolation.kube.core.errors import ClusterError, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from interleave.server import Happened

MAX_LAG: Final = 150.0
"""Seconds that a watch is behind at most."""
REQUEST_SECONDS: Final = 60.0
"""kube-apiserver's --request-timeout: a request is carried out by then, or never."""
RUN_SECONDS: Final = 1800.0
KEEPALIVE_SECONDS: Final = 20.0
NODES: Final = 4
LIMITS: Final = ScalingLimits(
    scale_down_unneeded_seconds=20.0,
    scale_down_delay_after_add_seconds=0.0,
    min_node_age_seconds=0.0,
    min_pod_age_seconds=0.0,
    move_cooldown_seconds=0.0,
    min_replicas=1,
    min_moves_per_hour=100,
    scale_down_utilization_threshold=1.0,
)
"""As impatient as may be; how long a taint stands before the removal is the default."""


@dataclass(slots=True)
class Result:
    """What became of a run."""

    seed: int
    findings: list[str] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)


class Late(Wire):
    """A client whose requests go as any other's, and whose watches tell in order and late, however alive they are."""

    def __init__(self, net: Net, who: str, lag: float) -> None:
        super().__init__(net, who)
        self._late, self._lag = net, lag

    async def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """As `Access.lines`."""
        loop, draw = self._late.loop, self._late.draw
        kind, chosen = route_of(path).kind, chosen_by(query)
        due: deque[tuple[float, bytes]] = deque()
        woken = asyncio.Event()

        def saw(happened: Happened) -> None:
            event = selected(happened, chosen) if happened.kind == kind else None
            if event is not None:
                at = loop.time() + draw.random() * self._lag
                due.append((max(at, due[-1][0]) if due else at, text({"type": event[0], "object": event[1]})))
                woken.set()

        yield b""
        for happened in self._late.server.since(kind, int(query.get("resourceVersion") or "0")):
            saw(happened)
        self._late.server.watchers.append(saw)
        try:
            while True:
                now = loop.time()
                if due and due[0][0] <= now:
                    yield due.popleft()[1]
                    continue
                woken.clear()
                rest = min(KEEPALIVE_SECONDS, idle_seconds / 2, due[0][0] - now if due else KEEPALIVE_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rest + 1e-6):
                        await woken.wait()
                if not due or due[0][0] > loop.time():
                    yield b""
        finally:
            self._late.server.watchers.remove(saw)


class Machines:
    """The provider; the judge stands where machines go."""

    name = "memory"

    def __init__(self, run: Run) -> None:
        self._run = run
        self.nodes = [f"n{at}" for at in range(NODES)]
        self.target, self.made, self.leaving = NODES, NODES, set[str]()

    async def pools(self) -> tuple[PoolState, ...]:
        """As a provider."""
        return (PoolState("a", self.target, tuple(ProviderInstance(f"id-{name}", name) for name in self.nodes)),)

    async def grow(self, _: str, by: int, seen: int | None = None) -> int:
        """A machine is there at once, its node some time later."""
        if seen != self.target:
            raise ChangedError("somebody else")
        self.target += by
        for _number in range(by):
            self.made += 1
            name = f"n{self.made}"
            self.nodes.append(name)
            self._run.loop.later(self._run.draw.uniform(5.0, 60.0), self._run.join, name)
        return self.target

    async def remove(self, _: str, names: set[str]) -> tuple[str, ...]:
        """At once, or only after its caller has given up."""
        gone = tuple(name for name in names if name in self.nodes and name not in self.leaving)
        late = self._run.draw.random() < 0.2
        for name in gone:
            self.leaving.add(name)
            self._run.loop.later(self._run.draw.uniform(5.0, 60.0) if late else 0.0, self._go, name)
        if late:
            await asyncio.sleep(4.0)
            raise ProviderUnreachableError("no answer")
        await asyncio.sleep(0.1)
        return tuple(name for name in names if name in self.nodes or name in gone)

    def _go(self, name: str) -> None:
        self.nodes.remove(name)
        self.target -= 1
        self._run.gone(name)

    async def cancel(self, _: str, by: int) -> int:
        """Nothing is ever missing here."""
        return self.target - 0 * by

    async def template(self, _: str) -> None:
        """Cannot tell."""

    async def close(self) -> None:
        """Nothing is open."""


class Scheduler:
    """Knows what its watch has told, and binds whoever waits to a node without a taint that has room."""

    def __init__(self, run: Run, lag: float) -> None:
        self._run, self._lag, self._last = run, lag, 0.0
        self._nodes: dict[str, Thing] = {}
        self._pods: dict[str, Thing] = {}
        for kind in ("nodes", "pods"):
            for thing in run.server.things[kind].values():
                self._take(kind, None, thing)
        run.server.watchers.append(self._saw)

    def _saw(self, happened: Happened) -> None:
        run = self._run
        self._last = max(self._last, run.loop.time() + run.draw.random() * self._lag)
        run.loop.later(self._last - run.loop.time(), self._take, happened.kind, happened.before, happened.after)

    def _take(self, kind: str, before: Thing | None, after: Thing | None) -> None:
        known = {"nodes": self._nodes, "pods": self._pods}.get(kind)
        if known is None:
            return
        if after is not None:
            known[after["metadata"]["name"]] = after
        elif before is not None:
            known.pop(before["metadata"]["name"], None)

    def decide(self) -> None:
        """One pod."""
        run = self._run
        waiting = [pod for pod in self._pods.values() if not pod["spec"].get("nodeName") and _alive(pod)]
        open_ = [
            name
            for name, node in sorted(self._nodes.items())
            if all(taint["key"] != DRAIN for taint in node["spec"].get("taints", ()))
            and sum(pod["spec"].get("nodeName") == name and _alive(pod) for pod in self._pods.values()) < 3
        ]
        if waiting and open_:
            pod, node = run.draw.choice(waiting), run.draw.choice(open_)
            # what was decided may be carried out as late as the server allows
            travel = run.draw.uniform(0.0, REQUEST_SECONDS) if run.draw.random() < 0.3 else run.draw.random()
            run.loop.later(travel, run.bind, pod["metadata"]["name"], node)


class Run:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 (chance, no secret)
        self.loop = VirtualLoop(random.Random(~seed))  # noqa: S311 (chance, no secret)
        self.server = Server(self.loop.time)
        self.result = Result(seed)
        self._made = 0
        self._removed: set[str] = set()
        weather = Weather(lost=0.01, unanswered=0.03, belated=0.02, slow=0.1)
        self._net = Net(self.loop, self.server, self.draw, weather)
        self._lag = self.draw.choice((0.1, 5.0, 45.0, MAX_LAG, MAX_LAG))
        self.machines = Machines(self)

    def play(self) -> Result:
        """Run it."""
        clock = LoopTime(self.loop)
        try:
            with patch.object(listwatch, "time", clock), patch.object(watches, "time", clock):
                self.loop.run_until_complete(self._play())
        except StuckError as exc:
            self.result.findings.append(str(exc))
        finally:
            self.loop.close()
        self.result.findings += self.loop.broken
        return self.result

    async def _play(self) -> None:
        for name in self.machines.nodes:
            self.join(name)
        self.server.watchers.append(self._ended)
        for _ in range(self.draw.randint(1, 4)):
            self.create()
        lags = [self.draw.choice((0.1, self._lag)) for _ in range(2)]
        schedulers = [Scheduler(self, lag) for lag in lags]
        at = 0.0
        while at < RUN_SECONDS:
            at += self.draw.expovariate(1 / 60)
            self.loop.later(at, self.create)
        for scheduler in schedulers:
            at = 0.0
            while at < RUN_SECONDS:
                at += self.draw.uniform(0.5, 8.0)
                self.loop.later(at, scheduler.decide)
        while self.loop.time() < RUN_SECONDS:
            process = Process("autoscaler")
            life = self.draw.uniform(200.0, RUN_SECONDS)
            self.loop.spawn(process, self._autoscaler(), "autoscaler")
            await asyncio.sleep(min(life, RUN_SECONDS - self.loop.time()))
            process.die()

    async def _autoscaler(self) -> None:
        """From nothing but what is stored."""
        wire = Late(self._net, "autoscaler", self._lag)
        shown = a_node("any")
        config = PoolConfig("a", PoolSource("a", "memory", At({})), max_nodes=6, profile=make_template(node_of(shown)))
        followed = Sources(wire)
        parts = ClusterParts(
            access=wire,  # type: ignore[arg-type]
            sources=followed,
            providers=Providers({"a": self.machines}),  # type: ignore[dict-item]
            usage=Nothing(),
            events=Silent(),
            fence=lambda: "",
            now=lambda: EPOCH + self.loop.time(),
            steady=self.loop.time,
        )
        world, memory = KubeCluster(parts, (config,), LIMITS), AutoscalerState()
        async with followed.following():
            await followed.synced()
            while True:
                try:
                    plan, memory = await reconcile(world, LIMITS, memory)
                except (ConditionError, ClusterError):
                    self.result.count["no turn"] += 1
                else:
                    self.result.count.update(type(step).__name__ for step in plan.steps)
                await asyncio.sleep(LIMITS.scan_interval_seconds)

    # The cluster.

    def join(self, name: str) -> None:
        """A machine's node."""
        if name in self.machines.nodes:
            self.server.put(Route("nodes", "", name), a_node(name))

    def create(self) -> None:
        """A replica."""
        self._made += 1
        name = f"p{self._made}"
        pod = a_pod(name, units=self.draw.choice((1, 2, 2)), app=f"web{self._made % 3}")
        self.server.put(Route("pods", "default", name), pod)

    def bind(self, name: str, node: str) -> None:
        """A Binding is carried out."""
        pod = self.server.things["pods"].get(("default", name))
        if pod is None:
            return
        units = int(pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"])
        records = a_pod(name, node, units)["metadata"]["annotations"][ALLOCATION]
        body = {"metadata": {"uid": name, "annotations": {ALLOCATION: records}}, "target": {"name": node}}
        try:
            self.server.handle("scheduler", "POST", f"/api/v1/namespaces/default/pods/{name}/binding", body)
        except RefusedError:
            return
        self.result.count["bound"] += 1
        if node in self._removed:
            self.result.findings.append(f"{self.loop.time():.1f}: {name} was bound to {node}, which had been removed")
        taints = self.server.things["nodes"].get(("", node), {"spec": {}})["spec"].get("taints")
        self.result.count["bound to a tainted node"] += bool(taints)
        self.server.put(
            Route("pods", "default", name),
            self.server.things["pods"]["default", name] | {"status": {"phase": "Running"}},
        )
        self.loop.later(self.draw.expovariate(1 / 150), self._finish, name)

    def _finish(self, name: str) -> None:
        pod = self.server.things["pods"].get(("default", name))
        if pod is not None and _alive(pod):
            self.server.put(Route("pods", "default", name), pod | {"status": {"phase": "Succeeded"}})

    def _ended(self, happened: Happened) -> None:
        """A kubelet ends what is to be deleted; its controller makes it again."""
        after, before = happened.after, happened.before
        if happened.kind != "pods" or after is None or "deletionTimestamp" not in after["metadata"]:
            return
        if before is not None and "deletionTimestamp" in before["metadata"]:
            return
        self.result.count["evicted"] += 1
        self.loop.later(self.draw.uniform(1.0, 20.0), self._drop, happened.after)

    def _drop(self, pod: Thing) -> None:
        route = Route("pods", "default", pod["metadata"]["name"])
        if route.key in self.server.things["pods"]:
            self.server.remove(route)
            self.create()

    def gone(self, name: str) -> None:
        """A machine is no more: the judge looks, then its node goes too."""
        self._removed.add(name)
        self.result.count["removed"] += 1
        for pod in self.server.things["pods"].values():
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                lost = pod["metadata"]["name"]
                self.result.findings.append(
                    f"{self.loop.time():.1f}: {name} was removed under {lost} (lag {self._lag})"
                )
        if ("", name) in self.server.things["nodes"]:
            self.server.remove(Route("nodes", "", name))


def _alive(pod: Thing) -> bool:
    return pod["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]


def play(seed: int) -> Result:
    """One run, and nothing of it left."""
    with thrown_away():
        return Run(seed).play()
