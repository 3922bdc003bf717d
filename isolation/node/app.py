# SPDX-License-Identifier: Apache-2.0
"""
The node agent as one process: its parts joined, started and stopped in the right order.

Decides the order: the lock, the cards, the runtime, then the offer; at the end first the word to the schedulers, then
time for pods that are already on their way. It waits for nobody whom running pods do not need: a node agent that comes
back while the API server is away serves at once what it served before. What the kubelet is connected to is a process of
its own, the device plugin, which outlives this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics import node as catalogue
from isolation.contract.names import ACK, NODE_AGENT, TIME_SLICE
from isolation.host.core.card_health import HealthReason
from isolation.host.machine import NvmlMachine
from isolation.host.memory_limits import MemoryLimits
from isolation.kube.access import Access
from isolation.kube.background import Background
from isolation.kube.core.errors import CredentialsError
from isolation.kube.listwatch import Reflector, Selection
from isolation.kube.writes import Writer
from isolation.node.allocations import Allocations
from isolation.node.cgroups import KernelCgroups
from isolation.node.checkpoint import Checkpoint
from isolation.node.containers import Containers, Parts
from isolation.node.core.container_check import offers_shares
from isolation.node.core.units import foreign_ids, offer
from isolation.node.delivery import Delivery
from isolation.node.device_plugin.exchange import Exchange, Offer
from isolation.node.events import PodEvents
from isolation.node.guard_device import GuardDevice
from isolation.node.inventory import NodeInventory
from isolation.node.lock import LockError, alone
from isolation.node.memory_limits import LimitKeeper, LimitServer
from isolation.node.metrics import NodeMetrics
from isolation.node.mps.backend import MpsClients
from isolation.node.nri.session import NriSession
from isolation.node.resizing import Resizing
from isolation.node.status import NodeStatus, NodeWatch, applied_of
from isolation.node.watch import NodePods
from isolation.node.web import serving
from isolation.node.wiring import (
    WiringError,
    backends_of,
    feeding_of,
    hardware_of,
    health_watch,
    limits_socket,
    slices_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isolation.contract.metrics import MetricSpec
    from isolation.kube.gauges import Rows
    from isolation.node.core.units import Device
    from isolation.node.device_plugin.exchange import Report
    from isolation.node.settings import Settings

log = logging.getLogger(__name__)
LOCK: Final = "agent.lock"
TICK_SECONDS: Final = 1.0
_CARDS_SECONDS: Final = 5.0
_NVML_SECONDS: Final = 30.0
_SWEEP_SECONDS: Final = 600.0
_LATE_SECONDS: Final = 5.0
"""A kubelet that restarts takes less; the schedulers need not hear of it."""
_CARDS_LIMIT_SECONDS: Final = 300.0
"""A driver that is being reset answers again; restarting the agent earlier would only take containers their starts."""
_EVENTS_LIMIT_SECONDS: Final = 600.0
"""One Event after the other, each with its deadline, at an API server that is slow."""
LEAVE_SECONDS: Final = 1.5
"""Bindings that were under way when we said that we leave have come in this time."""
ADMIT_SECONDS: Final = 10.0
"""At most, for the kubelet to admit the pods that are bound here: without a device plugin it fails them for good."""
_WORD_SECONDS: Final = 3.0
NO_DEVICE_PLUGIN: Final = (
    "the device plugin does not run on this node: start `gpushare device-plugin` with the same directories (in the "
    "DaemonSet gpushare-node it is the container device-plugin)"
)


class NodeError(Exception):
    """The agent cannot work here; the message says what to do."""


class NodeAgent:
    """See the module."""

    def __init__(self, settings: Settings, access: Access) -> None:
        node = settings.node
        writer = Writer(access, f"{NODE_AGENT}/{node}")
        self._settings = settings
        self.metrics = NodeMetrics()
        machine = NvmlMachine(settings.simgpu)
        self._health, self._card_news, self._offer_news = health_watch(settings), asyncio.Event(), asyncio.Event()
        cgroups = KernelCgroups(settings.cgroup)
        self.allocations = Allocations(cgroups)
        self.inventory = NodeInventory(
            machine,
            settings.terms,
            settings.run_dir / "node.json",
            self._health.unhealthy,
            self.allocations.bytes_by_card,
        )
        self.pods = NodePods(access, node)
        self._guard_device = GuardDevice(settings.run_dir, settings.cdi_dir, settings.marks_dir)
        driver = MemoryLimits(machine)
        self._events = PodEvents(writer)
        self._mps = MpsClients(settings.run_dir, self.allocations, self.inventory, self._events.warn)
        self.backends = backends_of(settings, self.inventory, driver, self._mps.tell)
        self._limits = LimitServer(limits_socket(settings), settings.cgroup, driver)
        self._delivery = Delivery(settings.run_dir, hardware_of(settings, machine, self._looks_up), self.backends)
        self._node = NodeWatch(node, self.inventory)
        self._feeding = feeding_of(settings, self.allocations)
        self._resizing = Resizing(self.pods, self.allocations, lambda: self._node.units, self._used)
        parts = Parts(self.pods, self.inventory, self.allocations, self._delivery, self._guard_device, self._resizing)
        keeper = LimitKeeper(driver, cgroups.group, self.backends.is_kernel)
        self.containers = Containers(parts, settings.unsupported_images, keeper=keeper, mps=self._mps)
        self.session = NriSession(settings.nri_socket, self.containers, self.metrics.took)
        self._slices = slices_of(settings)
        self._checkpoint = Checkpoint(settings.plugins, ACK.memory)
        self._exchange = Exchange(settings.run_dir)
        self._report: Report | None = None
        what = Selection("/api/v1/nodes", fields=f"metadata.name={node}")
        self._node_follower = Reflector(access, what, self._node)
        self.status = NodeStatus(writer, node, self._node, self.inventory, lambda: self.backends.choice)
        self.background = Background()
        self._reading: asyncio.Task[bool] | None = None
        self._cards_read = False
        self._registered = False
        """Whether the device plugin was, at any time since our start."""
        self._unregistered = self._unseen = time.monotonic()
        self._leaving = False
        self.metrics.watch(self._rows)
        self.metrics.watch(lambda: self.background.rows(catalogue.TASK_FAILURES, catalogue.TASK_HEALTHY))

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop."""
        async with contextlib.AsyncExitStack() as stack:
            enter, tasks = stack.enter_async_context, self.background
            await asyncio.to_thread(self.containers.load)
            await enter(serving(self._settings, self.metrics.page, tasks.problems, self.not_ready))
            for name, follower in (*self.pods.followers.items(), ("watch-node", self._node_follower)):
                await enter(tasks.keep(name, follower.run))
            await enter(tasks.cycles("cards", self._read_cards, news=self._card_news, limit=_CARDS_LIMIT_SECONDS))
            on_change = self._on_health_change()
            if self._health.watched:
                stack.enter_context(tasks.thread("card-events", lambda: self._health.cycle(on_change)))
            if not await self._until(lambda: self._cards_read or self.inventory.usable, stop):
                return
            stack.callback(self.session.close)
            stack.callback(self._limits.close)
            stack.enter_context(tasks.thread("memory-limits", self._limits.cycle))
            stack.enter_context(tasks.thread("runtime", self.session.cycle))
            await enter(tasks.cycles("node-status", self.status.cycle, news=self._node.news))
            if not await self._usable(stop):
                return
            await enter(tasks.cycles("sweep", self._sweep))
            await enter(tasks.cycles("time-slices", self._keep_slices))
            await enter(tasks.cycles("reconcile", self._tick, news=self._offer_news))
            await enter(tasks.cycles("events", self._events.cycle, limit=_EVENTS_LIMIT_SECONDS))
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
        """Tell the schedulers, wait for what is on its way: the device plugin ends after us."""
        log.info("shutting down: running pods continue")
        self._leaving = True
        self.status.ready(yes=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WORD_SECONDS):
                if await self.status.turn():
                    await asyncio.sleep(LEAVE_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ADMIT_SECONDS):
                while not self.pods.uids() <= self._checkpoint.pods():  # noqa: ASYNC110 (a file of the kubelet's)
                    await asyncio.sleep(0.1)

    # What is done over and over; each returns the seconds until the next time.

    async def _tick(self) -> float:
        await asyncio.to_thread(self._mps.tell)
        await asyncio.to_thread(self.containers.tidy)
        await asyncio.to_thread(self._exchange_news)
        now = time.monotonic()
        report = self._report
        if report is not None and report.registered:
            self._unregistered, self._registered = now, True
        if report is not None and report.connected and not self._runtime_trouble():
            self._unseen = now
        self.status.ready(yes=not self._leaving and not self.not_ready())
        return TICK_SECONDS

    def _exchange_news(self) -> None:
        """Hear of the device plugin, and tell it what has changed."""
        self._report = self._exchange.reported()
        if self._node.said is not None:
            self._resizing.seed(applied_of(self._node.said))
        exempt = self.pods.exempt()
        now = Offer(
            devices=tuple(sorted(self.devices(), key=lambda one: not one.healthy)),  # as they stand in the file
            obstacle=self._old_units(),
            shares=offers_shares(self.inventory.mode(), whole=self.inventory.whole()),
            # While they are not known, those that were known before are.
            exempt=self._exchange.offer().exempt if exempt is None else exempt,
        )
        if now != self._exchange.offer():
            self._exchange.say(now)
        if not self.pods.synced():
            return
        terms, shares = self._settings.terms, now.shares and not now.obstacle
        total = sum(card.allocatable_bytes // terms.unit_bytes for card in self.inventory.cards())
        extra = self._resizing.extra()[0] // terms.unit_bytes
        self._resizing.offered(now.devices, total + extra if shares else None)
        if self._node.said is not None:
            self.status.resized(self._resizing.report())

    async def _read_cards(self) -> float:
        """In a thread: a driver may take its time, or hang. Then no second thread is sent after the first."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self.inventory.refresh))
        done, _ = await asyncio.wait((self._reading,), timeout=_NVML_SECONDS)
        if not done:
            raise TimeoutError(f"NVML did not answer within {_NVML_SECONDS:.0f} s")
        if self._reading.result():
            self._offer_news.set()
            self.status.look()
        self._cards_read = True
        return _CARDS_SECONDS

    def _on_health_change(self) -> Callable[[], None]:
        """To be called from another thread."""
        loop = asyncio.get_running_loop()

        def news() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits for it
                loop.call_soon_threadsafe(self._card_news.set)

        return news

    async def _sweep(self) -> float:
        await asyncio.to_thread(self._delivery.sweep_libraries)
        return _SWEEP_SECONDS

    async def _keep_slices(self) -> float:
        said = self._node.said
        if said is not None:
            boards = [card.uuid for card in self.inventory.cards() if card.healthy and card.instance is None]
            await asyncio.to_thread(self._slices.keep, said.labels.get(TIME_SLICE), boards)
        return _CARDS_SECONDS

    # What is offered.

    def devices(self) -> Sequence[Device]:
        """Every unit as it is now."""
        shares = offers_shares(self.inventory.mode(), whole=self.inventory.whole()) and not self._unseen_for_long()
        cards, unit = self.inventory.cards(), self._settings.terms.unit_bytes
        known = self.pods.follower.synced.is_set() and self._node.said is not None
        if not known and (before := self._exchange.offer().devices):
            return before  # of resized pods nothing is known yet, but this was made from what was
        extra, _ = self._resizing.extra()
        ended = self._checkpoint.used_by(self._checkpoint.pods() - self.pods.uids()) if self.pods.synced() else ()
        in_force = self.allocations.bytes_by_card()
        used = self._checkpoint.used()
        return offer(cards, unit, used, in_force, shares=shares, extra=extra // unit, ended=ended)

    def _used(self, ident: str) -> Mapping[str, int]:
        """Bytes in use by card of one container: the larger of its ledger and the driver's latest figure."""
        books, sampled = self._delivery.used(ident), self._feeding.used(ident)
        return {uuid: max(books.get(uuid, 0), sampled.get(uuid, 0)) for uuid in books.keys() | sampled.keys()}

    def _runtime_trouble(self) -> str:
        """Why a container that is created now would not get its share."""
        if not self.session.in_force:
            return self.session.trouble
        return ""

    def _backend_trouble(self) -> str:
        """Why nothing can be promised here; only where something is."""
        mode = self.inventory.mode()
        return self.backends.available() if offers_shares(mode, whole=self.inventory.whole()) else ""

    def _looks_up(self) -> bool:
        """CRI-O silently ignores CDI devices that a plugin names; what they stand for works in every runtime."""
        return self.session.runtime.startswith("containerd")

    def _old_units(self) -> str:
        old = foreign_ids(self._checkpoint.used(), self._settings.terms.unit_bytes)
        if not old:
            return ""
        return (
            f"the kubelet has given containers {ACK.memory} devices of another unit or release ({old[0]}): drain the "
            f"node, stop the kubelet, remove {self._settings.plugins}/kubelet_internal_checkpoint, start the kubelet"
        )

    def _unseen_for_long(self) -> bool:
        return time.monotonic() - self._unseen > _LATE_SECONDS

    # What is told.

    def not_ready(self) -> str:
        """Why no pods should be bound here; empty: they may."""
        if self._leaving:
            return "the node agent is shutting down"
        report = self._report
        if report is None:
            return NO_DEVICE_PLUGIN
        if not self._registered:
            return self.inventory.trouble or report.trouble or "not registered with the kubelet yet"
        if not report.registered and time.monotonic() - self._unregistered > _LATE_SECONDS:
            return report.trouble
        if not self.session.times or self._unseen_for_long():
            return self._runtime_trouble() or report.trouble
        return self._backend_trouble() or self.containers.fault

    def _rows(self) -> Rows:
        devices = self.devices()
        healthy = sum(1 for one in devices if one.healthy)
        heard = self.pods.follower.heard
        report = self._report
        alone: dict[MetricSpec, float | None] = {
            catalogue.READY: not self.not_ready(),
            catalogue.DEVICE_PLUGIN: report is not None,
            catalogue.KUBELET_REGISTERED: report is not None and report.registered,
            catalogue.KUBELET_REGISTRATIONS: None if report is None else report.registrations,
            catalogue.UNPREPARED_CONTAINERS: None if report is None else report.refused,
            catalogue.ALLOCATED_DEVICES: len(self._checkpoint.used()),
            catalogue.ALLOCATIONS: len(self.allocations),
            catalogue.RUNTIME_CONNECTED: self.session.in_force,
            catalogue.RUNTIME_CONNECTIONS: self.session.times,
            catalogue.HEALTH_MONITORED_CARDS: self._health.monitored,
            catalogue.MPS_FAILED_CONTAINERS: self._mps.failed,
            catalogue.NODE_UPDATES: self.status.writes,
            catalogue.WATCH_STALENESS: None if heard is None else time.monotonic() - heard,
        }
        rows: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            spec: {(): float(value)} for spec, value in alone.items() if value is not None
        }
        rows[catalogue.INFO] = {(self._settings.node,): 1.0}
        rows[catalogue.DEVICES] = {("healthy",): healthy, ("unhealthy",): len(devices) - healthy}
        rows[catalogue.UNHEALTHY_CARDS] = self._unhealthy_cards()
        return rows

    def _unhealthy_cards(self) -> Mapping[tuple[str, ...], float]:
        """How many there are, by reason."""
        why = self._health.reasons()
        why = {**why, **dict.fromkeys(self.inventory.changed, HealthReason.MIG)}
        found = Counter(why.get(card.uuid, HealthReason.LOST) for card in self.inventory.cards() if not card.healthy)
        return {(reason.value,): float(found[reason]) for reason in HealthReason}


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """The agent, until told to stop; NodeError where it cannot begin."""
    try:
        async with (
            alone(settings, LOCK, stop, "node agent"),
            Access(settings.kubeconfig, settings.context) as access,
        ):
            await NodeAgent(settings, access).run(stop)
    except CredentialsError as exc:
        raise NodeError(f"{exc}: use a service account inside a cluster, or set --kubeconfig") from None
    except (LockError, WiringError) as exc:
        raise NodeError(str(exc)) from None
