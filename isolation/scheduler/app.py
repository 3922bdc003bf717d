# SPDX-License-Identifier: Apache-2.0
"""
The scheduler process: everything wired together, from the first open port to the Lease given back.

Decides the order of life and nothing else. Listeners open first (admission is served from the first second,
by every replica); then the cluster is read; whoever holds the Lease and has read it answers about pods.
At the end the listeners close, what is being answered is answered, and the Lease is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
from functools import partial
from typing import TYPE_CHECKING, Final

from isolation.contract.handover import Ours
from isolation.contract.metrics import scheduler as catalogue
from isolation.kube.access import Access
from isolation.kube.background import Background
from isolation.kube.core.errors import ClusterError
from isolation.kube.store import Store
from isolation.kube.writes import LeaseClient, Writer
from isolation.release import release
from isolation.scheduler.admission.supervise import Admission, Cluster
from isolation.scheduler.binder import Binder
from isolation.scheduler.core import legacy_inspect
from isolation.scheduler.core.cache import Books
from isolation.scheduler.core.unschedulable import Waiting
from isolation.scheduler.extender import Extender, World
from isolation.scheduler.http import listener
from isolation.scheduler.informers import Picture
from isolation.scheduler.leader import Leadership
from isolation.scheduler.leader_tasks import Errands
from isolation.scheduler.live_read import Fresh
from isolation.scheduler.metrics import Metrics, count
from isolation.scheduler.server import EXTENDER_LIMITS, METRICS_LIMITS, Answers, Doors, serving
from isolation.scheduler.tls import Certificates
from isolation.scheduler.writes import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.contract.metrics import MetricSpec
    from isolation.kube.store import ClusterChange
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
        self.picture = Picture(access, self.books, store, settings.namespace)
        beside = LeaseClient(access, settings.namespace, settings.beside) if settings.beside else None
        lease = LeaseClient(access, settings.namespace, settings.lease)
        self.leadership = Leadership(lease, me, beside=beside, host=settings.host)
        self.metrics = Metrics()
        self.binder = Binder(self.books, self._writer, self.leadership.fence, unit_bytes=settings.unit_bytes)
        self.leadership.give_back_when(self.binder.settled)
        self.world = World(
            self.picture, self.leadership, self.binder, Fresh(access, self.picture), Waiting(), settings.unit_bytes
        )
        self._extender = Extender(self.world)
        self._errands = Errands(self.world, self._objects, self._writer, self.metrics)
        self.admission: Admission | None = None
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
        doors = Doors(Answers(self._extender, self.inspect, self.health, release()), self.metrics)
        if settings.certificate is not None and settings.key is not None:
            if settings.admission is not None:
                Certificates(settings.certificate, settings.key, settings.admission_client_ca)  # a mistake ends us now
                sock = stack.enter_context(listener(settings.admission))
                ports["admission"] = sock.getsockname()[1]
                known = Cluster(self.picture, may_grow=settings.growing)
                self.admission = Admission(settings, known, sock, self.metrics)
                await stack.enter_async_context(self.background.keep("admission-process", self.admission.run))
            if settings.extender is not None:
                self._certificates = Certificates(settings.certificate, settings.key, settings.extender_client_ca)
                await stack.enter_async_context(self.background.keep("certificates", self._certificates.run))
                keep = partial(self.background.keep, "listener-extender-tls")
                made = serving(doors.extender(), settings.extender, EXTENDER_LIMITS, self._certificates, keep)
                ports["extender-tls"] = await stack.enter_async_context(made)
        if settings.sidecar is not None:
            keep = partial(self.background.keep, "listener-extender")
            made = serving(doors.extender(), settings.sidecar, EXTENDER_LIMITS, keep=keep)
            ports["extender"] = await stack.enter_async_context(made)
        if settings.metrics is not None:
            keep = partial(self.background.keep, "listener-metrics")
            made = serving(doors.measured(), settings.metrics, METRICS_LIMITS, keep=keep)
            ports["metrics"] = await stack.enter_async_context(made)
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

    def inspect(self, node: str | None) -> bytes:
        """The classic picture of all nodes or one."""
        return legacy_inspect.inspect(self.books.inspect(node), node)

    def health(self) -> dict[str, str]:
        """What is wrong, by probe: serving admission needs its process and nothing else."""
        wrong = {"healthz": self.background.problems()}
        if self.admission is not None and (problem := self.admission.problem()):
            wrong["readyz"] = problem
        missing = self.picture.missing()
        if missing:
            wrong["leader"] = f"informer caches are not synced yet: {missing}"
        elif self.leadership.fence() is None:
            holder = self.leadership.holder() or "none"
            wrong["leader"] = f"this replica is not the leader; Lease holder: {holder}"
        return wrong

    def _note(self, change: ClusterChange) -> None:
        """Pods that are gone wait no longer."""
        if change.pod is None and change.pod_before is not None:
            self.world.waiting.served(change.pod_before.uid)

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
            catalogue.UNREADABLE: {none: float(len(view.unreadable) + self.picture.pools.unreadable)},
            catalogue.POOLS: {none: float(sum(pool.ours != Ours() for pool in self.picture.pools.known))},
        }
        if self.admission is not None:
            rows |= self.admission.rows()
        if self._certificates is not None:
            certificate: tuple[float, float | None] | None = self._certificates.loaded, self._certificates.ends
        else:
            certificate = self.admission.certificate() if self.admission is not None else None
        if certificate is not None:
            rows[catalogue.CERTIFICATE] = {none: certificate[0]}
            if certificate[1] is not None:
                rows[catalogue.CERTIFICATE_ENDS] = {none: certificate[1]}
        return rows


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
