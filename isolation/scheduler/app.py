# SPDX-License-Identifier: Apache-2.0
"""
The scheduler process: everything wired together, from the first open port to the released Lease.

Decides the order of start and stop. Listeners open first (every replica serves admission from the first second); then
the informers sync; the replica that holds the Lease and is synced answers about pods. At the end the listeners close,
open requests are answered, and the Lease is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.contract.metrics import scheduler as catalogue
from isolation.distribution import release
from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, server_context
from isolation.kube.access import Access
from isolation.kube.background import Background
from isolation.kube.core.errors import ClusterError
from isolation.kube.store import Store
from isolation.kube.writes import LeaseClient, Writer
from isolation.scheduler.admission.supervise import AdmissionProcess, ClusterFeed
from isolation.scheduler.adoption import Adoption
from isolation.scheduler.binder import Binder
from isolation.scheduler.core import inspection
from isolation.scheduler.core.cache import SchedulerCache
from isolation.scheduler.core.unschedulable import UnschedulableQueue
from isolation.scheduler.endpoints import EXTENDER_LIMITS, METRICS_LIMITS, Endpoints, serve
from isolation.scheduler.extender import Extender, SchedulerContext
from isolation.scheduler.http_server import open_listener
from isolation.scheduler.informers import Informers
from isolation.scheduler.leader import Leadership
from isolation.scheduler.leader_tasks import LeaderTasks
from isolation.scheduler.live_read import LiveRead
from isolation.scheduler.metrics import Metrics, count
from isolation.scheduler.ownership import OwnershipWatch
from isolation.scheduler.provisioning_requests import ProvisioningRequests
from isolation.scheduler.resizer import Resizer
from isolation.scheduler.writes import ObjectWriter
from isolation.shutdown import stop_event

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from isolation.contract.metrics import MetricSpec
    from isolation.kube.store import ClusterChange
    from isolation.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)
DRAIN_SECONDS: Final = 5.0
"""For bindings whose outcome is open at SIGTERM."""
_ROLE_RETRY_SECONDS: Final = 2.0
_YOUNG: Final = 50_000
"""New objects between two garbage collections; what this process keeps has no cycles."""


class Scheduler:
    """One process."""

    def __init__(self, settings: SchedulerSettings, access: Access) -> None:
        self._settings, self._access = settings, access
        me = settings.identity or f"{settings.pod or settings.host or 'gpushare'}_{secrets.token_hex(4)}"
        self._writer, self._objects = Writer(access, me), ObjectWriter(access)
        noted = frozenset(name for one in settings.systems.on for name in one.node_resources)
        store = Store(unit_bytes=settings.unit_bytes, noted=noted)
        self.cache = SchedulerCache(policy=settings.policy, unit_bytes=settings.unit_bytes)
        self.informers = Informers(access, self.cache, store, settings.namespace)
        name = settings.kube_scheduler_lease
        beside = LeaseClient(access, settings.namespace, name) if name else None
        lease = LeaseClient(access, settings.namespace, settings.lease)
        self.leadership = Leadership(lease, me, beside=beside, host=settings.host)
        self.metrics = Metrics()
        self._adoption = Adoption(access, self._objects, self.informers, settings.unit_bytes)
        self.binder = Binder(self.cache, self._writer, self.leadership.fence, unit_bytes=settings.unit_bytes)
        self.leadership.release_when(self.binder.settled)
        self.context = SchedulerContext(
            self.informers,
            self.leadership,
            self.binder,
            LiveRead(access, self.informers),
            UnschedulableQueue(),
            settings.unit_bytes,
        )
        self._extender = Extender(self.context)
        self._leader_tasks = LeaderTasks(
            self.context, self._objects, self._writer, self.metrics, Resizer(self.context, access, self._writer)
        )
        self._provisioning_requests = ProvisioningRequests(self.context, self._objects, {settings.scheduler_name})
        self.admission: AdmissionProcess | None = None
        self._certificates: ReloadingTls[ssl.SSLContext] | None = None
        self.background = Background()
        store.listen(self._note)
        self.metrics.add_gauges(self._gauges)
        self.metrics.add_gauges(lambda: self.background.rows(catalogue.TASK_FAILURES, catalogue.TASK_HEALTHY))

    # Start and stop.

    async def run(self, stop: asyncio.Event, opened: Callable[[Mapping[str, int]], None] = lambda _: None) -> None:
        """Serve until `stop` is set."""
        async with contextlib.AsyncExitStack() as stack:
            keep = self.background.keep
            for name, follower in self.informers.followers.items():
                await stack.enter_async_context(keep(f"watch-{name}", follower.run))
            await stack.enter_async_context(keep("adoption", self._adoption.run))
            for name, work in self.leadership.works().items():
                await stack.enter_async_context(keep(name, work))
            await stack.enter_async_context(keep("preemption", self._leader_tasks.run))
            await stack.enter_async_context(keep("gangs", self._provisioning_requests.run))
            if self._settings.pod:
                await stack.enter_async_context(keep("leader-label", self._keep_leader_label))
            stack.push_async_callback(self.binder.drain, DRAIN_SECONDS)
            opened(await self._open(stack))
            await stop.wait()
            log.info("stopping: finish open requests, then release the Lease")

    async def _open(self, stack: contextlib.AsyncExitStack) -> Mapping[str, int]:
        """Open the configured listeners; their ports by name."""
        settings, ports = self._settings, {}
        endpoints = Endpoints(self._extender, self.metrics, inspect=self.inspect, health=self.health, release=release())
        if settings.certificate is not None and settings.key is not None:
            if settings.admission is not None:
                # loaded for its error only: the process of the webhook would fail after the start
                files = CertificateFiles(settings.certificate, settings.key, settings.admission_client_ca)
                ReloadingTls(files, server_context)
                sock = stack.enter_context(open_listener(settings.admission))
                ports["admission"] = sock.getsockname()[1]
                known = ClusterFeed(
                    self.informers, may_grow=settings.allow_oversized_requests, foreign=bool(settings.systems.on)
                )
                if settings.systems.on:
                    watch = OwnershipWatch(self._access, self.informers, settings.systems, known.set_owned)
                    await stack.enter_async_context(self.background.keep("dialect-ownership", watch.run))
                self.admission = AdmissionProcess(settings, known, sock, self.metrics)
                await stack.enter_async_context(self.background.keep("admission-process", self.admission.run))
            if settings.extender is not None:
                files = CertificateFiles(settings.certificate, settings.key, settings.extender_client_ca)
                self._certificates = ReloadingTls(files, server_context, "extender")
                await stack.enter_async_context(self.background.keep("certificates", self._certificates.run))
                keep = partial(self.background.keep, "listener-extender-tls")
                made = serve(endpoints.extender_app(), settings.extender, EXTENDER_LIMITS, self._certificates, keep)
                ports["extender-tls"] = await stack.enter_async_context(made)
        if settings.sidecar is not None:
            keep = partial(self.background.keep, "listener-extender")
            made = serve(endpoints.extender_app(), settings.sidecar, EXTENDER_LIMITS, keep=keep)
            ports["extender"] = await stack.enter_async_context(made)
        if settings.metrics is not None:
            keep = partial(self.background.keep, "listener-metrics")
            made = serve(endpoints.metrics_app(), settings.metrics, METRICS_LIMITS, keep=keep)
            ports["metrics"] = await stack.enter_async_context(made)
        return ports

    async def _keep_leader_label(self) -> None:
        """Keep the label by which a Service finds the leader; also after a container that was killed as the leader."""
        labelled: bool | None = None
        while True:
            leads = self.leadership.fence() is not None
            if leads != labelled:
                try:
                    error = await self._objects.set_leader_label(
                        self._settings.namespace, self._settings.pod, leads=leads
                    )
                except ClusterError as exc:
                    error = str(exc)
                if error:
                    log.warning("cannot set leader label of this pod: %s", error)
                    await asyncio.sleep(_ROLE_RETRY_SECONDS)
                    continue
                labelled = leads
            await asyncio.sleep(0.2)

    # What needs the whole process.

    def inspect(self, node: str | None) -> bytes:
        """The classic inspect answer for all nodes or one."""
        return inspection.encode_inspection(self.cache.inspect(node), node)

    def health(self) -> dict[str, str]:
        """What is wrong, by probe; admission is ready when its process is, synced or not."""
        problems = {"healthz": self.background.problems()}
        if self.admission is not None and (problem := self.admission.problem()):
            problems["readyz"] = problem
        missing = self.informers.missing()
        if missing:
            problems["leader"] = f"informer caches are not synced yet: {missing}"
        elif self.leadership.fence() is None:
            holder = self.leadership.holder() or "none"
            problems["leader"] = f"this replica is not the leader; Lease holder: {holder}"
        return problems

    def _note(self, change: ClusterChange) -> None:
        """Remove pods that are gone from the unschedulable queue."""
        if change.pod is None and change.pod_before is not None:
            self.context.unschedulable.remove(change.pod_before.uid)

    def _gauges(self) -> Mapping[MetricSpec, Mapping[tuple[str, ...], float]]:
        store, none = self.informers.store, ()
        placed = sum(1 for pod in store.pods.values() if pod.placement is not None)
        view = store.view()
        unread = self.informers.pools.unreadable + self.informers.right_sizing.unreadable
        rows: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            catalogue.LEADER: {none: float(self.leadership.fence() is not None)},
            catalogue.SYNCED: {none: float(not self.informers.missing())},
            catalogue.WATCH_STALENESS: {(name,): age for name, age in self.informers.ages().items()},
            catalogue.NODES: {none: float(sum(1 for node in store.nodes.values() if node.cards))},
            catalogue.PODS: {none: float(placed)},
            catalogue.ASSUMED_PODS: {none: float(len(self.cache.assumed_pods()))},
            catalogue.PENDING_PODS: {none: float(len(self.context.unschedulable))},
            catalogue.RESERVATIONS: count(made.reason for made in self.informers.reservations.known.values()),
            catalogue.OVERCOMMITTED_CARDS: {none: float(len(self.cache.find_overcommitted()))},
            catalogue.UNREADABLE_OBJECTS: {none: float(len(view.unreadable) + unread)},
            catalogue.HANDED_OVER_POOLS: {
                none: float(sum(pool.ours != Ours() for pool in self.informers.pools.known.pools))
            },
        }
        if self.admission is not None:
            rows |= self.admission.rows()
        if self._certificates is not None:
            certificate: tuple[float, float | None] | None = self._certificates.loaded, self._certificates.end
        else:
            certificate = self.admission.certificate() if self.admission is not None else None
        if certificate is not None:
            rows[catalogue.CERTIFICATE_LOADED] = {none: certificate[0]}
            if certificate[1] is not None:
                rows[catalogue.CERTIFICATE_EXPIRY] = {none: certificate[1]}
        return rows


async def run(settings: SchedulerSettings, opened: Callable[[Mapping[str, int]], None]) -> None:
    """The whole life of a process, ended by SIGTERM or SIGINT."""
    stop = stop_event()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    async with Access(settings.kubeconfig, settings.context) as access:
        made = Scheduler(settings, access)
        freezing = asyncio.create_task(_freeze_after_sync(made.informers))
        try:
            await made.run(stop, opened)
        finally:
            freezing.cancel()


async def _freeze_after_sync(informers: Informers) -> None:
    """Exempt what the first sync loaded from garbage collection: going through it all delays every answer by 0.1 s."""
    await informers.synced()
    gc.collect()
    gc.freeze()
