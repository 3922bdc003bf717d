# SPDX-License-Identifier: Apache-2.0
"""
The node agent as one process: its parts joined, started and stopped in the right order.

Decides the order: the lock, the cards, the book, then the kubelet; at the end first the word to the
schedulers, then a moment for pods that are already on their way, then the kubelet. It waits for nobody whom
running pods do not need: a node agent that comes back while the API server is away serves at once what it
served before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics import node as catalogue
from isolation.contract.names import ACK, NODE_AGENT
from isolation.host.core.health import Reason
from isolation.host.machine import NvmlMachine
from isolation.kube.access import Access
from isolation.kube.background import Background
from isolation.kube.core.errors import CredentialsError
from isolation.kube.listwatch import Reflector, Selection
from isolation.kube.writes import Writer
from isolation.node.agent import Agent
from isolation.node.inventory import NodeInventory
from isolation.node.lock import LockError, alone
from isolation.node.metrics import NodeMetrics
from isolation.node.plugin import Plugin, PluginError
from isolation.node.register import Registrar
from isolation.node.resources import PodResourcesClient
from isolation.node.status import NodeStatus, NodeWatch
from isolation.node.watch import NodePods
from isolation.node.web import serving
from isolation.node.wiring import Outside, WiringError, alarms_of, delivery_of, feeding_of, world_of
from isolation.node.world import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.contract.metrics import MetricSpec
    from isolation.kube.gauges import Rows
    from isolation.node.settings import Settings
    from isolation.node.world import Bound

log = logging.getLogger(__name__)
ENDPOINT: Final = "gpushare.sock"
LOCK: Final = "agent.lock"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
TICK_SECONDS: Final = 1.0
_CARDS_SECONDS: Final = 5.0
_NVML_SECONDS: Final = 30.0
_MEMORY_SECONDS: Final = 0.2
_SWEEP_SECONDS: Final = 600.0
_LATE_SECONDS: Final = 5.0
"""A kubelet that restarts takes less; the schedulers need not hear of it."""
_CARDS_LIMIT_SECONDS: Final = 300.0
"""A driver that is being reset answers again; restarting the agent earlier would only take containers their starts."""
_HOUR_SECONDS: Final = 3600.0
LEAVE_SECONDS: Final = 1.5
"""Pods whose binding was under way when we said that we leave are admitted in this time."""
_WORD_SECONDS: Final = 3.0
_GRACE_SECONDS: Final = 2.0


class NodeError(Exception):
    """The agent cannot work here; the message says what to do."""


class Seconds:
    """Fulfils `world.Clock`: seconds that nobody can set."""

    def now(self) -> float:
        """See `world.Clock`."""
        return time.monotonic()

    def moment(self) -> Moment:
        """See `world.Clock`."""
        try:
            boot = _BOOT.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            boot = ""
        return Moment(self.now(), time.time(), boot)

    async def sleep(self, seconds: float) -> None:
        """See `world.Clock`."""
        await asyncio.sleep(seconds)


class NodeAgent:
    """See the module."""

    def __init__(self, settings: Settings, access: Access) -> None:
        node = settings.node
        writer = Writer(access, f"{NODE_AGENT}/{node}")
        self._settings = settings
        self.metrics = NodeMetrics()
        machine = NvmlMachine(settings.simgpu)
        self._alarms, self._card_news = alarms_of(settings), asyncio.Event()
        self.inventory = NodeInventory(machine, settings.terms, settings.run_dir / "node.json", self._alarms.sick)
        self.pods = NodePods(access, writer, node)
        self.resources = PodResourcesClient(settings.pod_resources, ACK.memory)
        self._delivery = delivery_of(settings, machine, self.inventory)
        self._bound: dict[str, Bound] = {}
        self._feeding = feeding_of(settings, lambda: self._bound)
        outside = Outside(self.pods, self.resources, Seconds())
        world = world_of(settings, outside, self.inventory, self._delivery)
        self.agent = Agent(world, settings.terms.unit_bytes)
        self.plugin = Plugin(self.agent, settings.plugins / ENDPOINT, self.metrics)
        self.registrar = Registrar(self.plugin, settings.plugins, ACK.memory)
        self._memory = settings.run_dir / "pods.json"
        self._node = NodeWatch(node, self.inventory)
        what = Selection("/api/v1/nodes", fields=f"metadata.name={node}")
        self._node_follower = Reflector(access, what, self._node)
        self.status = NodeStatus(writer, node, self._node, self.inventory)
        self.background = Background()
        self._reading: asyncio.Task[bool] | None = None
        self._cards_read = False
        self._unregistered = time.monotonic()
        self._leaving = False
        self.metrics.watch(self._rows)
        self.metrics.watch(lambda: self.background.rows(catalogue.FAILURES, catalogue.HEALTHY))

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop."""
        async with contextlib.AsyncExitStack() as stack:
            enter, tasks = stack.enter_async_context, self.background
            self.pods.sight.recall(self._memory)
            stack.push_async_callback(self.resources.close)
            await enter(serving(self._settings, self.metrics.page, tasks.problems, self.not_ready))
            for name, follower in (*self.pods.followers.items(), ("watch-node", self._node_follower)):
                await enter(tasks.keep(name, follower.run))
            await enter(tasks.cycles("memory", self._remember))
            await enter(tasks.cycles("cards", self._read_cards, news=self._card_news, limit=_CARDS_LIMIT_SECONDS))
            heard = self._heard_of_cards()
            if self._alarms.watched:
                stack.enter_context(tasks.thread("card-events", lambda: self._alarms.cycle(heard)))
            if not await self._until(lambda: self._cards_read or self.inventory.usable, stop):
                return
            await self.agent.start()
            await enter(tasks.cycles("node-status", self.status.cycle, news=self._node.news))
            if not await self._usable(stop):
                return
            stack.push_async_callback(self.plugin.stop, _GRACE_SECONDS)
            await enter(tasks.cycles("sweep", self._sweep))
            await enter(tasks.cycles("registration", self.registrar.cycle))
            await enter(tasks.cycles("reconcile", self._tick))
            await enter(tasks.cycles("pod-resources", self._probe))
            stack.enter_context(tasks.thread("gpu-time", self._feeding.cycle))
            await stop.wait()
            await self._leave()

    async def _usable(self, stop: asyncio.Event) -> bool:
        """Wait for cards and a mode, which a node that never served has yet to learn; False: told to stop."""
        told = False

        def usable() -> bool:
            nonlocal told
            if not told and not self.inventory.usable and self.inventory.told:
                told = True
                log.warning("no devices to offer yet: %s", self.inventory.trouble or "no cards")
            return self.inventory.usable

        return await self._until(usable, stop)

    async def _until(self, true: Callable[[], bool], stop: asyncio.Event) -> bool:
        """Look ten times a second; False: told to stop."""
        while not true():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.1)
                return False
        return True

    async def _leave(self) -> None:
        """Tell the schedulers, wait for what is on its way; the kubelet hears last."""
        log.info("shutting down: running pods continue")
        self._leaving = True
        self.status.ready(yes=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WORD_SECONDS):
                if await self.status.turn():
                    await asyncio.sleep(LEAVE_SECONDS)

    # What is done over and over; each returns the seconds until the next time.

    async def _tick(self) -> float:
        self._bound = {pod.uid: pod for pod in self.pods.bound()}
        await self.agent.tick()
        if self.registrar.standing.registered:
            self._unregistered = time.monotonic()
        self.status.ready(yes=not self._leaving and not self.not_ready())
        self.plugin.changed()
        return TICK_SECONDS

    async def _read_cards(self) -> float:
        """In a thread: a driver may take its time, or hang. Then no second thread is sent after the first."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self.inventory.refresh))
        done, _ = await asyncio.wait((self._reading,), timeout=_NVML_SECONDS)
        if not done:
            raise TimeoutError(f"NVML did not answer within {_NVML_SECONDS:.0f} s")
        if self._reading.result():
            self.plugin.changed()
            self.status.look()
        self._cards_read = True
        return _CARDS_SECONDS

    def _heard_of_cards(self) -> Callable[[], None]:
        """To be called from another thread."""
        loop = asyncio.get_running_loop()

        def news() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits for it
                loop.call_soon_threadsafe(self._card_news.set)

        return news

    async def _remember(self) -> float:
        await self.pods.changed(_CARDS_SECONDS)
        await self.pods.sight.keep(self._memory)
        return _MEMORY_SECONDS

    async def _sweep(self) -> float:
        await asyncio.to_thread(self._delivery.sweep_libraries)
        return _SWEEP_SECONDS

    async def _probe(self) -> float:
        """Every hour, and as soon as the kubelet is there."""
        if not self.registrar.standing.registered:
            return 0.1
        if trouble := await self.resources.probe():
            log.error("%s", trouble)
        return _HOUR_SECONDS

    # What is told.

    def not_ready(self) -> str:
        """Why no pods should be bound here; empty: they may."""
        if self._leaving:
            return "the node agent is shutting down"
        if not self.registrar.standing.times:
            return self.registrar.standing.trouble or self.inventory.trouble or "not registered with the kubelet yet"
        if not self.registrar.standing.registered and time.monotonic() - self._unregistered > _LATE_SECONDS:
            return self.registrar.standing.trouble
        return self.agent.fault

    def _rows(self) -> Rows:
        devices = self.agent.devices()
        healthy = sum(1 for one in devices if one.healthy)
        heard = self.pods.follower.heard
        alone: dict[MetricSpec, float | None] = {
            catalogue.READY: not self.not_ready(),
            catalogue.REGISTERED: self.registrar.standing.registered,
            catalogue.REGISTRATIONS: self.registrar.standing.times,
            catalogue.HELD: len(self.agent.book.held()),
            catalogue.HOLDERS: len(self.agent.book),
            catalogue.LISTENED: self._alarms.heard,
            catalogue.WRITES: self.status.writes,
            catalogue.SILENCE: None if heard is None else time.monotonic() - heard,
        }
        rows: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            spec: {(): float(value)} for spec, value in alone.items() if value is not None
        }
        rows[catalogue.INFO] = {(self._settings.node,): 1.0}
        rows[catalogue.DEVICES] = {("healthy",): healthy, ("unhealthy",): len(devices) - healthy}
        rows[catalogue.SICK] = self._sick_cards()
        return rows

    def _sick_cards(self) -> Mapping[tuple[str, ...], float]:
        """How many there are, by reason."""
        why = self._alarms.reasons()
        found = Counter(why.get(card.uuid, Reason.LOST) for card in self.inventory.cards() if not card.healthy)
        return {(reason.value,): float(found[reason]) for reason in Reason}


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """The agent, until told to stop; NodeError where it cannot begin."""
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        settings.plugins.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise NodeError(f"cannot create {exc.filename}: {exc.strerror}: run the agent as root on its node") from None
    try:
        async with alone(settings.run_dir / LOCK, stop), Access(settings.kubeconfig, settings.context) as access:
            await NodeAgent(settings, access).run(stop)
    except CredentialsError as exc:
        raise NodeError(f"{exc}: use a service account inside a cluster, or set --kubeconfig") from None
    except (LockError, PluginError, WiringError) as exc:
        raise NodeError(str(exc)) from None
