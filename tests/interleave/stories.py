# SPDX-License-Identifier: Apache-2.0
"""
One seed, one story beside a cluster-autoscaler: pods come and go, and whatever can go wrong does.

Real are the autoscaler's loop, deciders, world and watches, orders (`ProviderGroups`, `OrderingProvider`), answers of
gRPC without its sockets, and the stand-in's loop and deciders. Around them: a server, two pools with boot times and
stock-outs, and our scheduler's cache (`placing`) without its processes. Leader and cluster-autoscaler are killed and
frozen, the connection between them breaks, certificates are rotated (another authority, which cluster-autoscaler does
not know until its restart), the scheduler's leader changes, pods are deleted while they wait.

The judge knows what is stored: a purchase that serves nobody, room on a bought node that others take from those that it
was bought for, a running share pod that is evicted, a machine that goes under a pod, and a pod that waits at the end
although a purchase would serve it, are findings.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from e2e.cluster_autoscaler.cloud import Cloud
from e2e.cluster_autoscaler.loop import Autoscaler
from e2e.cluster_autoscaler.loop import ClusterError as TheirClusterError
from e2e.cluster_autoscaler.objects import SAFE_TO_EVICT, SCALE_UP_DELAY, TO_BE_DELETED, budget_of, node_of, pod_of
from e2e.cluster_autoscaler.options import Options
from e2e.cluster_autoscaler.snapshot import Snapshot
from interleave.clocks import LoopTime
from interleave.loop import Process, StuckError, VirtualLoop, thrown_away
from interleave.market import Market
from interleave.placing import Promised, Scheduler
from interleave.removal import Late
from interleave.server import EPOCH, Route, Server, stamp
from interleave.wire import Net, Weather
from support.autoscaler_harness import Silent, a_pod

from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.expander import Expander
from autoscaler.apis.rpc.provider_groups import OfferedPool, OrderingProvider, ProviderGroups
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.reconcile import reconcile
from autoscaler.kube import watches
from autoscaler.kube.backends import KnownPools
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.core.conditions import ConditionError
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.node_pods import Occupants
from autoscaler.kube.reconciler import CONFIRMED_CYCLES
from autoscaler.kube.state import ControllerState, decode, encode
from autoscaler.kube.usage import Nothing
from autoscaler.kube.watches import Sources
from autoscaler.providers.core.profile import make_template
from autoscaler.providers.registry import PoolSource, Providers
from isolation.contract.codec import decode_allocation, encode_allocation, encode_cards
from isolation.contract.codec.cursor import At
from isolation.contract.codec.node import decode_cards
from isolation.contract.codec.node import node_of as shared_node_of
from isolation.contract.model import Ask, Card, Request
from isolation.contract.names import ACK, ALLOCATION, CARDS, POOL, RESERVATION
from isolation.contract.quantity import GIB
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube import listwatch
from isolation.kube.core.errors import ClusterError, RefusedError
from isolation.scheduler.core.cache import SchedulerCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from e2e.cluster_autoscaler.objects import Budget, Node, Pod
    from interleave.server import Thing

RUN_SECONDS: Final = 1500.0
CALM_SECONDS: Final = 3600.0
"""Longer than any backoff and provisioning time together: then whoever can be served has been."""
PERMIT_SECONDS: Final = 60.0
"""A purchase may be on its way for so long: both loops, the pause between deciding and acting, and the calls."""
MAX_NODES: Final = 6
LIMITS: Final = ScalingLimits(
    scale_down_unneeded_seconds=120.0,
    scale_down_delay_after_add_seconds=120.0,
    min_node_age_seconds=120.0,
    scale_down_utilization_threshold=0.0,
    make_room_max_moves_per_pod=0,
    defragment_start_ratio=1.0,
    defragment_stop_ratio=1.0,
)
"""Nodes are given back when they are empty and nobody is moved: moves have stories of their own."""
SHAPES: Final = {"one": (1, 8, "8"), "two": (2, 16, "16")}
"""Pools: cards, GiB of each, CPUs."""


@dataclass(slots=True)
class Result:
    """What became of a story."""

    seed: int
    findings: list[str] = field(default_factory=list)
    """Evictions of share pods, machines that went under pods, whatever broke."""
    spare: list[str] = field(default_factory=list)
    """Machines bought for nobody."""
    robbed: list[str] = field(default_factory=list)
    """Pods that took room of nodes from those that they were bought for."""
    waits: list[str] = field(default_factory=list)
    """Pods that wait at the end and need not."""
    count: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    """What happened, for whoever reads a finding."""


class AnsweredError(Exception):
    """An error's way back, as gRPC's client shows it."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self._code = code

    def code(self) -> str:
        """Its status."""
        return self._code

    def details(self) -> str:
        """Its text."""
        return str(self)


class Context:
    """A call's context on the server's side; `left` tells the seconds until the client gives up."""

    def __init__(self, left: Callable[[], float]) -> None:
        self.time_remaining = left

    def auth_context(self) -> dict[str, list[bytes]]:
        """The name in the client's certificate."""
        return {"x509_common_name": [b"cluster-autoscaler"]}

    async def abort(self, code: Any, why: str) -> None:
        """An answer that is an error."""
        raise AnsweredError(code.name, why)


@dataclass(frozen=True, slots=True)
class Call:
    """One method asked for."""

    method: str
    invocation_metadata: tuple[()] = ()


class Line:
    """The connection from cluster-autoscaler to whoever leads; everything but sockets and TLS is real."""

    def __init__(self, story: Story) -> None:
        """Certificates are read now, and only now."""
        self._story, self._authority = story, story.authority

    def unary_unary(
        self, path: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Any:
        """As a gRPC channel."""

        async def ask(message: Any, timeout: float) -> Any:  # noqa: ASYNC109 (gRPC's own name)
            async with asyncio.timeout(timeout):
                return response_deserializer(await self._carried(path, request_serializer(message), timeout))

        return ask

    async def _carried(self, path: str, raw: bytes, seconds: float) -> bytes:
        story = self._story
        end = story.loop.time() + seconds
        await asyncio.sleep(story.draw.random() * 0.02)
        process, handlers = story.leader, story.handlers
        if process is None or not process.alive or story.loop.time() < story.cut_until:
            raise AnsweredError("UNAVAILABLE", "failed to connect to all addresses")
        if self._authority != story.authority:
            raise AnsweredError("UNAVAILABLE", "certificate signed by unknown authority")
        found = next(h for h in (one.service(Call(path)) for one in handlers) if h is not None)
        answer: asyncio.Future[bytes] = story.loop.create_future()

        async def serve() -> None:
            if answer.done():
                return  # gRPC drops a call whose client has gone before it began
            context = Context(lambda: max(0.001, end - story.loop.time()))
            try:
                said = found.response_serializer(await found.unary_unary(found.request_deserializer(raw), context))
            except AnsweredError as exc:
                story.loop.later(0.0, _settle, answer, exc)
            else:
                story.loop.later(story.draw.random() * 0.02, _settle, answer, said)

        def mourner() -> None:
            _settle(answer, AnsweredError("UNAVAILABLE", "connection reset"))

        process.mourners.append(mourner)
        try:
            story.loop.spawn(process, serve(), path)
            return await answer
        finally:
            with contextlib.suppress(ValueError):
                process.mourners.remove(mourner)


def _settle(answer: asyncio.Future[bytes], said: bytes | Exception) -> None:
    if answer.done():
        return
    if isinstance(said, Exception):
        answer.set_exception(said)
    else:
        answer.set_result(said)


class Theirs:
    """The cluster as cluster-autoscaler reads and writes it."""

    def __init__(self, story: Story) -> None:
        self._story = story

    async def nodes(self) -> list[Node]:
        """All of them."""
        await asyncio.sleep(0.01)
        return self._story.nodes()

    async def pods(self) -> list[Pod]:
        """Those that have not ended."""
        await asyncio.sleep(0.01)
        return self._story.pods()

    async def budgets(self) -> list[Budget]:
        """None here."""
        return [budget_of(one) for one in self._story.server.things["poddisruptionbudgets"].values()]

    async def mark(self, node: str, *, leaving: bool) -> None:
        """The taint."""
        thing = self._story.server.things["nodes"].get(("", node))
        if thing is None:
            raise TheirClusterError(f"node {node} not found")
        taints = [taint for taint in thing["spec"].get("taints", ()) if taint["key"] != TO_BE_DELETED]
        if leaving:
            taints.append({"key": TO_BE_DELETED, "value": "now", "effect": "NoSchedule"})
        self._story.server.put(Route("nodes", "", node), thing | {"spec": {**thing["spec"], "taints": taints}})

    async def evict(self, pod: Pod, grace: float) -> None:
        """Always allowed: there are no budgets."""
        self._story.evicted(pod)
        body = {"deleteOptions": {"gracePeriodSeconds": int(grace)}}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        with contextlib.suppress(RefusedError):
            self._story.server.handle("cluster-autoscaler", "POST", path, body)


class LoopClock:
    """The story's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self._loop.time()

    def at(self, wall: float) -> float:
        """The same."""
        return wall

    async def sleep(self, seconds: float) -> None:
        """Of the story."""
        await asyncio.sleep(seconds)


class Story:
    """See the module."""

    def __init__(
        self,
        seed: int,
        *,
        annotations: dict[str, str] | None = None,
        cache: Callable[[], SchedulerCache] = SchedulerCache,
    ) -> None:
        self.draw = random.Random(seed)  # noqa: S311 (chance, no secret)
        self.loop = VirtualLoop(random.Random(~seed))  # noqa: S311 (chance, no secret)
        self.server = Server(self.loop.time)
        self.result = Result(seed)
        self._net = Net(self.loop, self.server, self.draw, Weather(slow=0.05))
        self._annotations = HANDED_OVER if annotations is None else annotations
        self.market = Market(self.loop, self.draw, SHAPES)
        self.market.bought, self.market.up, self.market.gone = self._bought, self._up, self._gone
        self.leader: Process | None = None
        self.handlers: tuple[Any, ...] = ()
        self.cut_until = 0.0
        self.authority = 0
        """Of the server's certificate."""
        self._running: dict[str, Process] = {}
        self._scheduler = Scheduler(self.server, self.loop.time, cache)
        self._cache, self._promised = cache, Promised(self.server, self.loop.time)
        self._stored = ""
        self._epoch = 0
        self._made = 0
        self._wanted: list[tuple[float, Counter[str], Counter[str]]] = []
        """Since the last purchase: when, pods without a machine by pool, machines by pool if those were packed anew."""
        self._permit, self._permit_until = PERMIT_SECONDS, 0.0
        self._known: dict[Any, tuple[str, Any]] = {}
        self._looked: object = None

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

    def _tell(self, text: str) -> None:
        self.result.told.append(f"{self.loop.time():7.1f} {text}")

    def _find(self, where: list[str], text: str) -> None:
        self._tell(f"FOUND {text}")
        where.append(f"{self.loop.time():.1f}: {text}")

    async def _play(self) -> None:
        self._plain_node()
        self._plan()
        self.loop.later(1.0, self._schedule)
        lives = [
            asyncio.create_task(self._lives("leader", self._leader, 15.0, 60.0)),
            asyncio.create_task(self._lives("cluster-autoscaler", self._cluster_autoscaler, 20.0, 500.0)),
        ]
        await asyncio.sleep(RUN_SECONDS + CALM_SECONDS)
        for life in lives:
            life.cancel()
        self._judge_end()

    async def _lives(self, name: str, work: Any, least: float, most: float) -> None:
        """Life after life; the last one lasts."""
        while True:
            process = self._begin(name, work)
            dies = self.draw.uniform(30.0, RUN_SECONDS * 1.5)
            if self.loop.time() + dies > RUN_SECONDS:
                await asyncio.sleep(RUN_SECONDS + CALM_SECONDS)
                return
            freezes = self.draw.random() < 0.5
            if freezes:
                at = self.draw.uniform(0.0, dies)
                await asyncio.sleep(at)
                seconds = min(self.draw.uniform(5.0, 120.0), RUN_SECONDS - self.loop.time())
                process.frozen = self.loop.time() + seconds
                # what is frozen on its way to a purchase goes on where it was
                self._permit, self._permit_until = PERMIT_SECONDS + seconds, process.frozen + PERMIT_SECONDS
                self._tell(f"{name} is frozen until {process.frozen:.0f}")
                await asyncio.sleep(dies - at)
            else:
                await asyncio.sleep(dies)
            process = self._running[name]
            process.fuse = self.draw.randint(0, 400)  # somewhere in the middle of something
            await asyncio.sleep(12.0)
            process.die()
            self._tell(f"{name} is dead")
            self.result.count[f"{name} killed"] += 1
            await asyncio.sleep(self.draw.uniform(least, most))

    def _begin(self, name: str, work: Any) -> Process:
        process = self._running[name] = Process(name)
        self.loop.spawn(process, work(process), name)
        return process

    # The autoscalers.

    async def _leader(self, process: Process) -> None:
        """`gpushare autoscaler` from what is stored."""
        wire = Late(self._net, "autoscaler", 2.0)
        relay = ProviderGroups((), Occupants(wire, lambda: EPOCH + self.loop.time()), self.loop.time)  # type: ignore[arg-type]
        known = KnownPools()
        ordering = OrderingProvider(relay, self.market)  # type: ignore[arg-type]
        followed = Sources(wire)  # type: ignore[arg-type]
        parts = ClusterParts(
            access=wire,  # type: ignore[arg-type]
            sources=followed,
            providers=Providers(dict.fromkeys(SHAPES, ordering)),
            usage=Nothing(),
            events=Silent(),
            fence=lambda: "",
            now=lambda: EPOCH + self.loop.time(),
            steady=self.loop.time,
        )
        configs = tuple(
            PoolConfig(
                name,
                PoolSource(name, "memory", At({})),
                max_nodes=MAX_NODES,
                price=float(cards),
                profile=make_template(shared_node_of(self._node(name, f"{name}-any"))),
            )
            for name, (cards, _, _) in SHAPES.items()
        )
        async with followed.following():
            await followed.synced()
            remembered = decode(self._stored, EPOCH + self.loop.time()) if self._stored else ControllerState()
            world, memory = KubeCluster(parts, configs, LIMITS, remembered), remembered.memory
            self._epoch += 1
            self.handlers = (CloudProvider(relay).handler(), Expander(known).handler())
            self.leader = process
            self._offer(relay, configs, None)
            while True:
                began = self.loop.time()
                try:
                    plan, memory = await reconcile(world, LIMITS, memory)
                except (ConditionError, ClusterError):
                    self.result.count["no turn"] += 1
                else:
                    relay.confirm(
                        CONFIRMED_CYCLES * LIMITS.scan_interval_seconds + LIMITS.action_validation_delay_seconds
                    )
                    for step in plan.steps:
                        self.result.count[type(step).__name__] += 1
                        self._tell(f"ours {str(step)[:300]}")
                known.observation = world.observed.observation if world.observed is not None else known.observation
                self._offer(relay, configs, known.observation)
                self._stored = encode(replace(world.state, memory=memory, epoch=self._epoch))
                await asyncio.sleep(max(0.0, began + LIMITS.scan_interval_seconds - self.loop.time()))

    def _offer(self, relay: ProviderGroups, configs: Iterable[PoolConfig], seen: Any) -> None:
        offers = []
        for one in configs:
            shaped = seen.pools[one.name].template if seen is not None and one.name in seen.pools else None
            fresh = one.shaped(None)
            template = shaped or (None if fresh is None else fresh.node(one.name))
            offers.append(OfferedPool(one.name, self.market, one.min_nodes, one.max_nodes, template))  # type: ignore[arg-type]
        relay.offer(offers)

    async def _cluster_autoscaler(self, _process: Process) -> None:
        """As shipped."""
        line = Line(self)
        options = Options(enforce_node_group_min_size=True)
        theirs = Autoscaler(Theirs(self), Cloud(line, line), LoopClock(self.loop), options)
        await theirs.run()

    # The cluster.

    def nodes(self) -> list[Node]:
        """As stored, by name."""
        return [self._read(node_of, thing) for _, thing in sorted(self.server.things["nodes"].items())]

    def pods(self) -> list[Pod]:
        """Those that have not ended."""
        return [self._read(pod_of, thing) for thing in self.server.things["pods"].values() if _alive(thing)]

    def _read(self, reader: Any, thing: Thing) -> Any:
        """What is read of a thing, once for each of its versions."""
        meta = thing["metadata"]
        known = self._known.get((reader, meta["uid"]))
        if known is None or known[0] != meta["resourceVersion"]:
            known = self._known[reader, meta["uid"]] = (meta["resourceVersion"], reader(thing))
        return known[1]

    def _node(self, pool: str, name: str) -> Thing:
        cards, gib, cpu = SHAPES[pool]
        amounts = {"cpu": cpu, "memory": "64Gi", "pods": "50", ACK.memory: str(cards * gib), ACK.card_count: str(cards)}
        named = [Card(f"GPU-{name}-{at}", at, gib * GIB) for at in range(cards)]
        return {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": stamp(self.loop.time()),
                "labels": {"ack.node.gpu.schedule": "cgpu", "kubernetes.io/hostname": name, POOL: pool},
                "annotations": {CARDS: encode_cards(named)},
            },
            "spec": {"providerID": f"sim://zone/{name}"},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def _plain_node(self) -> None:
        """A node of no pool, as every cluster has."""
        amounts = {"cpu": "4", "memory": "16Gi", "pods": "50"}
        meta = {"name": "plain", "uid": "uid-plain", "labels": {}, "annotations": {}}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        thing = {"metadata": meta | {"creationTimestamp": stamp(0.0)}, "spec": {}, "status": status}
        self.server.put(Route("nodes", "", "plain"), thing)

    def _up(self, pool: str, ident: str) -> None:
        name = ident.rpartition("/")[2]
        self._tell(f"node {name} is up")
        self.server.put(Route("nodes", "", name), self._node(pool, name))

    def _gone(self, name: str) -> None:
        self._tell(f"node {name} is given back")
        self.result.count["removed"] += 1
        lost = [pod.name for pod in self.pods() if pod.node == name]
        if lost:
            self._find(self.result.findings, f"{name} was removed under {lost}")
        if ("", name) in self.server.things["nodes"]:
            self.server.remove(Route("nodes", "", name))

    def _plan(self) -> None:
        """What will happen: pods, stock-outs, broken connections."""
        at = 0.0
        while at < RUN_SECONDS:
            at += self.draw.expovariate(1 / 70)
            for _ in range(self.draw.choice((1, 1, 1, 2, 4))):
                self.loop.later(at + self.draw.random() * 3.0, self._create_share)
        at = 0.0
        while at < RUN_SECONDS:
            at += self.draw.expovariate(1 / 250)
            self.loop.later(at, self._create_ordinary)
        for _ in range(self.draw.choice((0, 1, 2))):
            pool, begin = self.draw.choice(list(SHAPES)), self.draw.uniform(0.0, RUN_SECONDS * 0.8)
            self.loop.later(begin, self._stock, pool, False)
            self.loop.later(min(RUN_SECONDS, begin + self.draw.uniform(100.0, 600.0)), self._stock, pool, True)
        if self.draw.random() < 0.3:
            self.loop.later(self.draw.uniform(0.0, RUN_SECONDS), self._cut)
        if self.draw.random() < 0.4:
            self.loop.later(self.draw.uniform(0.0, RUN_SECONDS), self._rotate)
        for _ in range(self.draw.choice((0, 0, 1, 2))):
            self.loop.later(self.draw.uniform(0.0, RUN_SECONDS), self._lead)

    def _stock(self, pool: str, there: bool) -> None:  # noqa: FBT001 (a callback)
        shelf = self.market.shelves[pool]
        shelf.stock = None if there else len(shelf.machines)
        self._tell(f"{pool} is {'in' if there else 'out of'} stock")
        self.result.count["stock-outs"] += not there
        if there:
            self.market.fill(pool)

    def _cut(self) -> None:
        self.cut_until = min(RUN_SECONDS, self.loop.time() + self.draw.uniform(60.0, 600.0))
        self._tell(f"no connection until {self.cut_until:.0f}")
        self.result.count["connections cut"] += 1

    def _rotate(self) -> None:
        """By another authority, of which cluster-autoscaler knows once it is restarted."""
        self.result.count["certificates rotated"] += 1
        self.authority += 1
        self._tell("certificates are of another authority")
        seconds = min(self.draw.uniform(10.0, 600.0), RUN_SECONDS - self.loop.time())
        self.loop.later(seconds, self._restart)

    def _restart(self) -> None:
        """Somebody has cluster-autoscaler read its files again; where it is dead it does so anyway."""
        process = self._running["cluster-autoscaler"]
        if process.alive:
            self._tell("cluster-autoscaler is restarted")
            process.die()
            self._begin("cluster-autoscaler", self._cluster_autoscaler)

    def _lead(self) -> None:
        """Another leader of the scheduler, which chooses anew."""
        self._tell("the scheduler's leader changes")
        self.result.count["schedulers changed"] += 1
        self._scheduler.end()
        self._scheduler = Scheduler(self.server, self.loop.time, self._cache)

    def _create_share(self) -> None:
        self._made += 1
        name, units = f"s{self._made}", self.draw.choice((2, 3, 5, 6, 8, 8, 10, 16))
        thing = a_pod(name, units=units, app=f"web{self._made % 3}")
        requests = {"cpu": self.draw.choice(("500m", "1", "3", "6"))}
        thing["spec"]["containers"][0]["resources"]["requests"] = requests
        thing["metadata"]["annotations"] = dict(self._annotations)
        self._create(thing)

    def _create_ordinary(self) -> None:
        self._made += 1
        thing = a_pod(f"o{self._made}", app="plain")
        requests = {"cpu": self.draw.choice(("1", "2", "5"))}
        thing["spec"] |= {"schedulerName": "default-scheduler"}
        thing["spec"]["containers"][0]["resources"] = {"requests": requests}
        self._create(thing)

    def _create(self, thing: Thing) -> None:
        name = thing["metadata"]["name"]
        thing["metadata"]["creationTimestamp"] = stamp(self.loop.time())
        self.server.put(Route("pods", "default", name), thing)
        self._tell(f"pod {name} asks {thing['spec']['containers'][0]['resources']}")
        self.result.count["pods"] += 1
        if self.draw.random() < 0.3:
            self.loop.later(self.draw.uniform(3.0, 150.0), self._end, name)

    def _end(self, name: str) -> None:
        """A user deletes it, or it has done its work."""
        if ("default", name) in self.server.things["pods"] and self.loop.time() < RUN_SECONDS:
            self._tell(f"pod {name} is deleted")
            self.server.remove(Route("pods", "default", name))

    def evicted(self, pod: Pod) -> None:
        """By cluster-autoscaler; its controller makes it again."""
        self.result.count["evicted"] += 1
        if _is_share(pod):
            self._find(self.result.findings, f"running share pod {pod.name} was evicted from {pod.node}")
        self.loop.later(self.draw.uniform(1.0, 10.0), self._finish, pod.name)

    def _finish(self, name: str) -> None:
        thing = self.server.things["pods"].get(("default", name))
        if thing is not None:
            self.server.remove(Route("pods", "default", name))
            self._made += 1
            again = f"{name[0]}{self._made}"
            meta = {**thing["metadata"], "name": again, "uid": again}
            meta.pop("deletionTimestamp", None)
            meta["annotations"] = {key: text for key, text in meta["annotations"].items() if key != ALLOCATION}
            spec = {key: value for key, value in thing["spec"].items() if key != "nodeName"}
            self._create({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    # The scheduler.

    def _schedule(self) -> None:
        """Every pod that waits, the oldest first: by node sums as the stock scheduler, then by the cache."""
        self.loop.later(1.0 + self.draw.random(), self._schedule)
        for name in self._scheduler.tidy():
            self.server.handle("scheduler", "DELETE", f"{RESERVATIONS_PATH}/{name}", None)
        state = (self.server.version, self._coming())
        if state == self._looked:
            self._wanted[-1] = (self.loop.time(), *self._wanted[-1][1:])
            return
        self._looked = state
        self._note()
        snapshot, _ = self._room()
        for pod in sorted(self.pods(), key=lambda pod: (pod.created, pod.name)):
            if not pod.node and not self._served(pod, snapshot) and not pod.unschedulable:
                said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                thing = self.server.things["pods"]["default", pod.name]
                self.server.put(
                    Route("pods", "default", pod.name),
                    thing | {"status": {**thing["status"], "conditions": [said]}},
                )

    def _served(self, pod: Pod, snapshot: Snapshot) -> bool:
        """Whether it was bound."""
        if not _is_share(pod):
            where = snapshot.place(pod)
            if where:
                self._bind(pod, where, {})
            return bool(where)
        found = self._scheduler.place(pod.uid, [name for name in snapshot.nodes if snapshot.fits(pod, name)])
        if found is None:
            return False
        at, units = found.placement, _units(pod)
        request = Request(1, units * GIB, asks=(Ask("main", units * GIB),))
        records = {ALLOCATION: encode_allocation(pod.name, request, at)}
        if found.reservation:
            records[RESERVATION] = found.reservation
            self.result.count["reservations used"] += 1
        before = self._kept()
        self._bind(pod, at.node, records)
        self._scheduler.cache.confirm(pod.uid)
        snapshot.add(pod, at.node)
        after = self._kept()
        for pool in sorted(pool for pool, all_fit in before.items() if all_fit and after.get(pool) is False):
            who = [made.holder for made in self._promised.holders()[pool]]
            self._find(self.result.robbed, f"{pod.name} took room on {at.node}: {pool} has too little left for {who}")
        return True

    def _kept(self) -> dict[str, bool | None]:
        """By pool, whether those that its machines were bought for have their room, card by card."""
        pools = {node.name: node.labels.get(POOL, "") for node in self.nodes()}
        coming = {pool: [SHAPES[pool][1]] * SHAPES[pool][0] * count for pool, count in self._coming().items()}
        return self._promised.fit(self._room()[1], pools, coming)

    def _room(self) -> tuple[Snapshot, dict[str, dict[str, int]]]:
        """Sums, and what is free of each card, by node."""
        pods = self.pods()
        snapshot = Snapshot([node for node in self.nodes() if node.ready], pods)
        cards = {name: _cards_of(node) for name, node in snapshot.nodes.items()}
        for pod in pods:
            if pod.node in cards and ALLOCATION in pod.annotations:
                for uuid, units in _allocated(pod.annotations[ALLOCATION]):
                    cards[pod.node][uuid] -= units
        return snapshot, cards

    def _bind(self, pod: Pod, node: str, records: dict[str, str]) -> None:
        body = {"metadata": {"uid": pod.uid, "annotations": records}, "target": {"name": node}}
        self.server.handle("scheduler", "POST", f"/api/v1/namespaces/default/pods/{pod.name}/binding", body)
        thing = self.server.things["pods"]["default", pod.name]
        self.server.put(Route("pods", "default", pod.name), thing | {"status": {**thing["status"], "phase": "Running"}})
        self._tell(f"pod {pod.name} is on {node}")
        self.result.count["bound"] += 1
        if self.draw.random() < 0.8:
            self.loop.later(self.draw.expovariate(1 / 400), self._end, pod.name)

    # The judge.

    def _coming(self) -> dict[str, int]:
        """Machines that are asked for, can be had and are no nodes yet: whoever waits for stock is served elsewhere."""
        nodes = self.server.things["nodes"]
        return {
            pool: (shelf.target if shelf.stock is None else len(shelf.machines))
            - sum(("", ident.rpartition("/")[2]) in nodes for ident in shelf.machines)
            for pool, shelf in self.market.shelves.items()
        }

    def _short(self) -> list[Pod]:
        """Who waits and has no place on what there is and what comes, card by card."""
        snapshot, cards = self._room()
        for pool, count in self._coming().items():
            for at in range(count):
                node = node_of(self._node(pool, f"coming-{pool}-{at}"))
                snapshot.join(node)
                cards[node.name] = _cards_of(node)
        waiting = [pod for pod in self.pods() if not pod.node]
        waiting.sort(key=lambda pod: (-_units(pod), -float(pod.requests.get("cpu", 0))))
        return [pod for pod in waiting if _place(pod, snapshot, cards) is None]

    def _note(self) -> None:
        """What is missing now, for purchases of the next seconds."""
        now, short = self.loop.time(), self._short()
        since = now - (self._permit if now < self._permit_until else PERMIT_SECONDS)
        self._wanted = [entry for entry in self._wanted if entry[0] >= since]
        packed = Counter({pool: self._packed(short, pool) for pool in SHAPES} if short else {})
        self._wanted.append((now, self._lonely(), packed))

    def _lonely(self) -> Counter[str]:
        """
        By pool, how many pods wait that it would serve and that have neither room on a node nor a machine that comes.

        Each pod is taken alone; each machine that comes is left to one pod, first to those that few pools can serve.
        """
        snapshot, _ = self._room()
        fresh = {pool: node_of(self._node(pool, f"{pool}-any")) for pool in SHAPES}
        homeless = [
            {pool for pool, node in fresh.items() if _servable(pod, node)}
            for pod in self.pods()
            if not pod.node and not self._has_room(pod, snapshot)
        ]
        coming, found = self._coming(), Counter[str]()
        for pools in sorted(homeless, key=len):
            served = min((pool for pool in pools if coming[pool] > 0), key=lambda pool: SHAPES[pool], default="")
            if served:
                coming[served] -= 1
            else:
                found.update(pools)
        return found

    def _has_room(self, pod: Pod, snapshot: Snapshot) -> bool:
        """On a node that is up, as the scheduler sees it: what is kept for others is no room."""
        names = [name for name in snapshot.nodes if snapshot.fits(pod, name)]
        return self._scheduler.fits(pod.uid, names) if _is_share(pod) else bool(names)

    def _packed(self, short: list[Pod], pool: str) -> int:
        """How many machines of one pool those need whom it can serve, card by card."""
        snapshot, cards = Snapshot(()), dict[str, dict[str, int]]()
        for pod in short:
            if _place(pod, snapshot, cards) is None:
                node = node_of(self._node(pool, f"{pool}-{len(cards)}"))
                if _servable(pod, node):
                    snapshot.join(node)
                    cards[node.name] = _cards_of(node)
                    _place(pod, snapshot, cards)
        return len(cards)

    def _bought(self, pool: str, by: int) -> None:
        """
        Each machine that comes has a pod that waits for it, at some moment since the last purchase and not long ago.

        Packed anew, those pods might do with fewer machines: what is bought beyond that is counted. The target is
        raised already, so what is noted now is what this purchase leaves.
        """
        self._tell(f"bought {by} of {pool}")
        self.result.count["bought"] += by
        most = max((lonely[pool] for _, lonely, _ in self._wanted), default=0)
        if by > most:
            self._find(self.result.spare, f"{by} of {pool} bought for nobody: {most} pods waited without a machine")
        self.result.count["bought beyond packing"] += max(
            0, by - max((packed[pool] for *_, packed in self._wanted), default=0)
        )
        self._wanted = []
        self._note()

    def _judge_end(self) -> None:
        for pod in self._short():
            for pool, shelf in self.market.shelves.items():
                if shelf.target < MAX_NODES and _servable(pod, node_of(self._node(pool, "any"))):
                    self._find(self.result.waits, f"{pod.name} waits, and a node of {pool} would serve it")
                    break
        for pod in self.pods():
            if not pod.node and pod.uid not in {one.uid for one in self._short()}:
                self._find(self.result.waits, f"{pod.name} waits although there is room or a machine coming")


HANDED_OVER: Final = {SCALE_UP_DELAY: "8760h", SAFE_TO_EVICT: "false"}


def _place(pod: Pod, snapshot: Snapshot, cards: dict[str, dict[str, int]]) -> tuple[str, str] | None:
    """Node and card, taken; an ordinary pod has no card."""
    units = _units(pod)
    if not units:
        where = snapshot.place(pod)
        return (where, "") if where else None
    found = [
        (free - units, name, card)
        for name in snapshot.nodes
        if snapshot.fits(pod, name)
        for card, free in cards[name].items()
        if free >= units
    ]
    if not found:
        return None
    _, name, card = min(found)
    snapshot.add(pod, name)
    cards[name][card] -= units
    return name, card


def _servable(
    pod: Pod, node: Node, snapshot: Snapshot | None = None, cards: dict[str, dict[str, int]] | None = None
) -> bool:
    """Whether the node has room for it, as it stands in the snapshot, else when it is fresh."""
    snapshot, cards = snapshot or Snapshot([node]), cards or {node.name: _cards_of(node)}
    enough = not _units(pod) or any(free >= _units(pod) for free in cards[node.name].values())
    return enough and snapshot.fits(pod, node.name)


def _cards_of(node: Node) -> dict[str, int]:
    """GiB that each of its cards offers; none of a node without our annotation."""
    return dict(_offered(node.annotations[CARDS])) if CARDS in node.annotations else {}


@lru_cache(1024)
def _offered(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((card.uuid, card.allocatable_bytes // GIB) for card in decode_cards(text))


@lru_cache(1024)
def _allocated(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((part.uuid, part.bytes // GIB) for part in decode_allocation(text).slices)


def _units(pod: Pod) -> int:
    return int(pod.requests.get(ACK.memory, 0))


def _is_share(pod: Pod) -> bool:
    return _units(pod) > 0


def _alive(thing: Thing) -> bool:
    return thing["status"]["phase"] in ("Pending", "Running")


def play(seed: int, **more: Any) -> Result:
    """One story, and nothing of it left."""
    with thrown_away():
        return Story(seed, **more).play()
