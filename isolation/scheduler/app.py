"""
The scheduler process: everything wired together, from the first open port to the Lease given back.

Decides the order of life and nothing else. Doors open first (admission is served from the first second,
by every replica); then the cluster is read; whoever holds the Lease and has read it answers about pods.
At the end the doors close, what is being answered is answered, and the Lease is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from isolation.cluster.access import Access
from isolation.cluster.background import Background
from isolation.cluster.failure import ClusterError
from isolation.cluster.store import Store
from isolation.cluster.writes import Leases, Writer
from isolation.contract import metrics_scheduler as catalogue
from isolation.scheduler import legacy
from isolation.scheduler.admission import fleet
from isolation.scheduler.admission.review import World as Admission
from isolation.scheduler.admission.review import review
from isolation.scheduler.binder import Binder
from isolation.scheduler.books import Books
from isolation.scheduler.errands import Errands
from isolation.scheduler.extender import Extender, World
from isolation.scheduler.fresh import Fresh
from isolation.scheduler.leader import Leadership
from isolation.scheduler.metrics import Metrics, count
from isolation.scheduler.objects import Objects
from isolation.scheduler.picture import Picture
from isolation.scheduler.server import Answers, Doors, serving
from isolation.scheduler.tls import Certificates
from isolation.scheduler.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.cluster.store import Change
    from isolation.contract.metrics import MetricSpec
    from isolation.scheduler.settings import Settings

log = logging.getLogger(__name__)
DRAIN_SECONDS: Final = 5.0
"""For binds whose outcome is open when we are told to stop."""
_ROLE_RETRY_SECONDS: Final = 2.0
_YOUNG: Final = 50_000
"""New objects after which unused ones are looked for; what we keep has no cycles."""


class Scheduler:
    """One process."""

    def __init__(self, settings: Settings, access: Access) -> None:
        self._settings = settings
        me = settings.identity or f"{settings.pod or settings.host or 'gpushare'}_{secrets.token_hex(4)}"
        self._writer, self._objects = Writer(access, me), Objects(access)
        store = Store(unit_bytes=settings.unit_bytes)
        self.books = Books(policy=settings.policy, unit_bytes=settings.unit_bytes)
        self.picture = Picture(access, self.books, store)
        beside = Leases(access, settings.namespace, settings.beside) if settings.beside else None
        lease = Leases(access, settings.namespace, settings.lease)
        self.leadership = Leadership(lease, me, beside=beside, host=settings.host)
        self.metrics = Metrics()
        self.binder = Binder(self.books, self._writer, self.leadership.fence, unit_bytes=settings.unit_bytes)
        self.leadership.give_back_when(self.binder.settled)
        self.world = World(
            self.picture, self.leadership, self.binder, Fresh(access, self.picture), Waiting(), settings.unit_bytes
        )
        self._extender = Extender(self.world)
        self._errands = Errands(self.world, self._objects, self._writer, self.metrics)
        self._shared: dict[tuple[str, str], str] = {}
        self._fleet = fleet.UNKNOWN
        self._fleet_stale = True
        self._certificates: Certificates | None = None
        self.background = Background()
        store.listen(self._note)
        self.metrics.watch(self._gauges)
        self.metrics.watch(lambda: self.background.rows(catalogue.FAILURES, catalogue.HEALTHY))

    # Life.

    async def run(self, stop: asyncio.Event, opened: Callable[[Mapping[str, int]], None] = lambda _: None) -> None:
        """Serve until told to stop."""
        async with contextlib.AsyncExitStack() as stack:
            keep = self.background.keep
            for name, follower in self.picture.followers.items():
                await stack.enter_async_context(keep(f"watch-{name}", follower.run))
            for name, work in self.leadership.works().items():
                await stack.enter_async_context(keep(name, work))
            await stack.enter_async_context(keep("preemption", self._errands.run))
            if self._settings.pod:
                await stack.enter_async_context(keep("leader-label", self._wear_role))
            stack.push_async_callback(self.binder.drain, DRAIN_SECONDS)
            opened(await self._open(stack))
            await stop.wait()
            log.info("stopping: finish open requests, then release the Lease")

    async def _open(self, stack: contextlib.AsyncExitStack) -> Mapping[str, int]:
        """Every door that was asked for; their ports."""
        settings, ports = self._settings, {}
        doors = Doors(Answers(self._extender, self.admit, self.inspect, self.health, release()), self.metrics)
        if settings.listen is not None and settings.certificate is not None and settings.key is not None:
            self._certificates = Certificates(settings.certificate, settings.key, settings.client_ca)
            await stack.enter_async_context(self.background.keep("certificates", self._certificates.run))
            app = doors.secure(trusts_clients=settings.client_ca is not None)
            ports["tls"] = await stack.enter_async_context(serving(app, settings.listen, self._certificates.context))
        if settings.sidecar is not None:
            ports["sidecar"] = await stack.enter_async_context(serving(doors.sidecar(), settings.sidecar))
        if settings.metrics is not None:
            ports["metrics"] = await stack.enter_async_context(serving(doors.measured(), settings.metrics))
        return ports

    async def _wear_role(self) -> None:
        """The label by which a Service finds the leader, kept true; also of a container that was killed leading."""
        worn: bool | None = None
        while True:
            leads = self.leadership.fence() is not None
            if leads != worn:
                try:
                    said = await self._objects.role(self._settings.namespace, self._settings.pod, leads=leads)
                except ClusterError as exc:
                    said = str(exc)
                if said:
                    log.warning("cannot set the leader label of this pod: %s", said)
                    await asyncio.sleep(_ROLE_RETRY_SECONDS)
                    continue
                worn = leads
            await asyncio.sleep(0.2)

    # Answers that need the whole process.

    def admit(self, body: bytes) -> bytes:
        """One AdmissionReview."""
        if self._fleet_stale and not self.picture.missing():
            self._fleet = fleet.fleet_of(self.picture.store.nodes.values(), may_grow=self._settings.growing)
            self._fleet_stale = False
        world = Admission(
            is_shared=self._is_shared,
            fleet=self._fleet,
            scheduler=self._settings.scheduler_name,
            unit_bytes=self._settings.unit_bytes,
        )
        return review(body, world)

    def inspect(self, node: str | None) -> bytes:
        """The classic picture of all nodes or one."""
        return legacy.inspect(self.books.inspect(node), node)

    def health(self) -> dict[str, str]:
        """What is wrong, by probe: serving admission needs nothing but us."""
        wrong = {"healthz": self.background.unwell()}
        missing = self.picture.missing()
        if missing:
            wrong["leader"] = f"informer caches are not synced yet: {missing}"
        elif self.leadership.fence() is None:
            wrong["leader"] = f"this replica is not the leader; Lease holder: {self.leadership.holder() or 'none'}"
        return wrong

    def _is_shared(self, namespace: str, name: str) -> bool | None:
        if (namespace, name) in self._shared:
            return True
        return None if self.picture.missing() else False

    def _note(self, change: Change) -> None:
        """Names of pods with shares, and that the fleet may have changed."""
        if change.pod is not None:
            self._shared[change.pod.namespace, change.pod.name] = change.pod.uid
        elif change.pod_before is not None:
            gone = change.pod_before
            if self._shared.get((gone.namespace, gone.name)) == gone.uid:
                del self._shared[gone.namespace, gone.name]
            self.world.waiting.served(gone.uid)
        else:
            before, after = change.node_before, change.node
            if before is None or after is None or fleet.shape_of(before) != fleet.shape_of(after):
                self._fleet_stale = True

    def _gauges(self) -> Mapping[MetricSpec, Mapping[tuple[str, ...], float]]:
        store, none = self.picture.store, ()
        placed = sum(1 for pod in store.pods.values() if pod.placement is not None)
        view = store.view()
        rows: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            catalogue.LEADS: {none: float(self.leadership.fence() is not None)},
            catalogue.SYNCED: {none: float(not self.picture.missing())},
            catalogue.VIEW_AGE: {(name,): age for name, age in self.picture.ages().items()},
            catalogue.NODES: {none: float(sum(1 for node in store.nodes.values() if node.cards))},
            catalogue.PODS: {none: float(placed)},
            catalogue.ASSUMED: {none: float(len(self.books.assumed()))},
            catalogue.WAITING: {none: float(len(self.world.waiting))},
            catalogue.RESERVED: count(made.reason for made in self.picture.reservations.known.values()),
            catalogue.OVERCOMMITTED: {none: float(len(self.books.overcommitted()))},
            catalogue.UNREADABLE: {none: float(len(view.unreadable))},
        }
        if self._certificates is not None:
            rows[catalogue.CERTIFICATE] = {none: self._certificates.loaded}
            if self._certificates.ends is not None:
                rows[catalogue.CERTIFICATE_ENDS] = {none: self._certificates.ends}
        return rows


def release() -> str:
    """The version as installed."""
    try:
        return version("gpushare")
    except PackageNotFoundError:
        return "unknown"


async def run(settings: Settings, opened: Callable[[Mapping[str, int]], None]) -> None:
    """The whole life of a process, ended by SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for kind in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(kind, stop.set)
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    async with Access(settings.kubeconfig, settings.context) as access:
        made = Scheduler(settings, access)
        settling = asyncio.create_task(_settle(made.picture))
        try:
            await made.run(stop, opened)
        finally:
            settling.cancel()


async def _settle(picture: Picture) -> None:
    """The first picture stays for good: looked through for what is unused, all of it stops every answer for 0.1 s."""
    await picture.synced()
    gc.collect()
    gc.freeze()
