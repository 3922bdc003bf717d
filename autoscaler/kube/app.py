# SPDX-License-Identifier: Apache-2.0
"""
The autoscaler process: everything wired together, from the first open port to the Lease given back.

Decides the order of life and nothing else. The metrics port opens first; then the cluster is read, the switch looked
at and the Lease campaigned for; cycle follows cycle. At the end the cycle under way takes no further step, what it did
is saved, and the Lease is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import time
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.app import serve_metrics_api
from autoscaler.apis.metrics.core.readings import LatestSnapshot
from autoscaler.apis.rpc.ports import serve_ports
from autoscaler.apis.rpc.provider_groups import ProviderGroups
from autoscaler.apis.rpc.server import ServingError
from autoscaler.core.rightsizing.recommend import EvidencePolicy
from autoscaler.kube.condition_reporter import ConditionReporter
from autoscaler.kube.config.file import ConfigFile
from autoscaler.kube.events import Recorder
from autoscaler.kube.handover import PASS_SECONDS
from autoscaler.kube.metrics_server import measured_app, serving
from autoscaler.kube.node_pods import Occupants
from autoscaler.kube.reconciler import Collaborators, Reconciler
from autoscaler.kube.right_sizing import ROUND_SECONDS, RightSizing
from autoscaler.kube.state_store import StateConfigMap, StateStore
from autoscaler.kube.switch import Switch
from autoscaler.kube.telemetry.metrics import Telemetry
from autoscaler.kube.telemetry.process import WATCHES, Certificates, ProcessRows
from autoscaler.kube.watches import Sources
from isolation.contract.metrics import autoscaler as catalogue
from isolation.contract.names import AUTOSCALER
from isolation.kube.access import Access
from isolation.kube.background import Background
from isolation.kube.election import Election, boottime
from isolation.kube.writes import LeaseClient
from isolation.shutdown import stop_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.kube.options import Options

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.2
AGAIN_SECONDS: Final = 5.0
CYCLE_SECONDS: Final = 900.0
"""A reconcile cycle that takes longer hangs: each of its requests has a deadline."""
YOUNG_OBJECTS: Final = 50_000
"""New objects after which the garbage collector looks for cycles: an observation makes millions and has none."""
GRACE_SECONDS: Final = 20.0
"""For the step under way at SIGTERM: as long as a provider may take."""


class Autoscaler:
    """One process."""

    def __init__(self, options: Options, access: Access) -> None:
        self._options, self._access = options, access
        me = options.identity or f"{options.pod or AUTOSCALER}_{secrets.token_hex(4)}"
        self.telemetry, self.board = Telemetry(), LatestSnapshot()
        self.sources = Sources(access, unit_bytes=options.unit_bytes)
        self.election = Election(LeaseClient(access, options.namespace, options.lease), me)
        self.switch = Switch(access, options.namespace, boottime)
        self.file = ConfigFile(options.config)
        self._relay = ProviderGroups((), Occupants(access, time.time)) if options.grpc.changing else None
        about = (options.namespace, options.pod)
        leads = Recorder(access, me, lambda: "" if self.election.fence() is not None else "standby", boottime)
        self.reporter = ConditionReporter(leads, self.sources, about, boottime)
        self._events = Recorder(access, me, self._fence, boottime)
        self.right_sizing = RightSizing(access, options.namespace, EvidencePolicy(unit_bytes=options.unit_bytes))
        given = Collaborators(
            access=access,
            sources=self.sources,
            events=self._events,
            board=self.board,
            telemetry=self.telemetry,
            election=self.election,
            switch=self.switch,
            store=StateStore(StateConfigMap(access, options.namespace), boottime),
            reporter=self.reporter,
            relay=self._relay,
            dry_run=options.dry_run,
            wall=time.time,
            steady=boottime,
            right_sizing=self.right_sizing,
            namespace=options.namespace,
        )
        self.reconciler = Reconciler(given, self.file)
        self.telemetry.watch(ProcessRows(self.reconciler, self.reporter, self.sources, self.file, self.board))
        self.telemetry.watch(Certificates(options.certificates()))
        self.telemetry.watch(self.right_sizing.rows)
        self.background = Background()
        self.telemetry.watch(lambda: self.background.rows(catalogue.TASK_FAILURES, catalogue.TASK_HEALTHY))
        self._decided = asyncio.Event()
        self._next_round = 0.0
        """Of right-sizing, on the steady clock."""
        self._closed = ""
        """Why the gRPC ports are not open although they should be."""

    def _fence(self) -> str:
        return self.reconciler.fence()

    async def run(self, stop: asyncio.Event, opened: Callable[[Mapping[str, int]], None] = lambda _: None) -> None:
        """
        Reconcile until `stop` is set.

        Whoever serves the metrics APIs does so without a valid configuration too: an API without a server keeps every
        namespace of the cluster from being deleted.
        """
        self.reconciler.start(strict=not self._options.metrics_api.groups)
        async with contextlib.AsyncExitStack() as stack:
            enter, keep = stack.enter_async_context, self.background.keep
            stack.push_async_callback(self.reconciler.close)
            found = {}
            if self._options.metrics is not None:
                doors = measured_app(self.telemetry.page, self.background.problems, self.unready)
                found["metrics"] = await enter(serving(doors, self._options.metrics))
            for name, follower in self.sources.followers.items():
                await enter(keep(f"watch-{WATCHES.get(name, name)}", follower.run))
            await self.switch.look()
            await enter(keep("election", self._campaign))
            await enter(keep("switch", self.switch.run))
            if self._options.grpc.listen is not None or self._options.grpc.expander is not None:
                await enter(keep("grpc", self._grpc))
            found |= await self._more_doors(stack)
            opened(found)
            stack.push_async_callback(self.reconciler.finish)
            await enter(self.background.cycles("handover", self._handover, news=self._decided))
            await enter(self.background.cycles("right-sizing", self._right_size))
            await enter(self.background.cycles("reconcile", self._cycle, limit=CYCLE_SECONDS, grace=GRACE_SECONDS))
            await stop.wait()
            self.reconciler.stopping = True
            log.info("stopping: taking no further steps, then releasing the Lease")

    async def _campaign(self) -> None:
        """For the Lease, as soon as there is a configuration: who has none leaves it to the other replicas."""
        while not self.reconciler.configured:  # noqa: ASYNC110 (a look at a value)
            await asyncio.sleep(LOOK_SECONDS)
        await self.election.run()

    async def _more_doors(self, stack: contextlib.AsyncExitStack) -> dict[str, int]:
        """What was asked for besides metrics; their ports."""
        settings = self._options.metrics_api.settings()
        if settings is None:
            return {}
        api = serve_metrics_api(
            self._access,
            self.board,
            settings,
            self.background,
            closed=lambda: self.reconciler.unconfigured,
            fresh=lambda: self.reconciler.backends.config.fresh_seconds,
        )
        return {"metrics-api": await stack.enter_async_context(api)}

    async def _grpc(self) -> None:
        """
        The gRPC ports, open while we lead and no longer.

        Orders to cluster-autoscaler stand in the leader's memory: whoever is connected to another replica would not
        hear of them. A refused connection is tried at the next replica.
        """
        grpc = self._options.grpc
        while True:
            await self._until(leads=True)
            given = serve_ports(
                grpc.settings(self.reconciler.backends.config.fresh_seconds),
                state=self._relay,
                known=self.reconciler.known_pools if grpc.expander is not None else None,
                readings=self.board if grpc.listen is not None else None,
                tally=self.telemetry,
            )
            try:
                async with given as there:
                    self._closed = ""
                    log.info(
                        "serving gRPC: cloud provider and KEDA scaler port=%s, expander port=%s",
                        there.number,
                        there.expander_number,
                    )
                    await self._until(leads=False)
            except ServingError as exc:
                # A mistake in the options or files: a restart would mend nothing, and take the metrics APIs away.
                if str(exc) != self._closed:
                    log.error("gRPC is not served: %s", exc)  # noqa: TRY400 (its text is the whole story)
                self._closed = str(exc)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                log.info("gRPC is not served any more: another replica leads")

    async def _until(self, *, leads: bool) -> None:
        while (self.election.fence() is not None) != leads:  # noqa: ASYNC110 (a right that ends by the clock tells nobody)
            await asyncio.sleep(LOOK_SECONDS)

    async def _cycle(self) -> float:
        """One cycle; the next begins a period after its beginning."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.reconciler.reconcile()
        self._decided.set()
        return max(0.0, self.reconciler.backends.config.limits.scan_interval_seconds - (loop.time() - began))

    async def _handover(self) -> float:
        """Annotations for cluster-autoscaler on pods that exist; also in a dry run, which hands its pools back."""
        await self.reconciler.hand_over()
        return PASS_SECONDS

    async def _right_size(self) -> float:
        """Recommendations by the latest measurements; the leader publishes them."""
        last, now, fence = self.reconciler.last, time.time(), self.election.fence()
        leads = fence is not None and not self.reconciler.stopping
        # who has just become the leader knows nothing yet
        news = fence is not None and leads and await self.right_sizing.load(fence.epoch, now)
        if last is None or last.observation is None or (boottime() < self._next_round and not news):
            return LOOK_SECONDS
        self._next_round = boottime() + ROUND_SECONDS
        nodes = self.sources.view().cluster.nodes
        past = self.reconciler.backends.usage.past(now) if self.right_sizing.unknown else None
        if past is not None:
            await self.right_sizing.backfill(last.observation, past, nodes)
        self.right_sizing.observe(last.observation, self.reconciler.backends.usage.last, nodes)
        if leads:
            await self.right_sizing.announce(last.observation, self.sources.notes.of_pod, self._events)
            await self.right_sizing.publish(now, acts=self.reconciler.acts())
        return LOOK_SECONDS

    def unready(self) -> str:
        """Why readiness is denied; empty: ready."""
        missing = self.sources.missing()
        grpc = f"gRPC is not served: {self._closed}" if self._closed else ""
        lists = f"waiting for the initial list of: {missing}" if missing else ""
        return "; ".join(filter(None, (self.reconciler.unconfigured, grpc, lists)))


async def run(options: Options, opened: Callable[[Mapping[str, int]], None]) -> None:
    """The whole life of a process, ended by SIGTERM or SIGINT."""
    stop = stop_event()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    async with Access(options.kubeconfig, options.context) as access:
        await Autoscaler(options, access).run(stop, opened)
