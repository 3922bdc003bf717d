# SPDX-License-Identifier: Apache-2.0
"""
Supervise the admission process: start it, send it what it needs of the cluster, watch it, restart it.

Decides when it counts as serving and when as dead. The socket that it listens on is bound once, here: while there is
no process, connections wait in the kernel's queue, and no other process can take the port. Of what callers of admission
send only counts reach this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.contract.metrics import scheduler as catalogue
from isolation.placement.card_sizes import CardSizes, measure_cards
from isolation.scheduler.admission.core import node_sizes
from isolation.scheduler.admission.core.messages import (
    AdmissionConfiguration,
    CardKinds,
    ClusterUpdate,
    ProcessReport,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.metrics import MetricSpec
    from isolation.kube.gauges import Rows
    from isolation.kube.store import ClusterChange
    from isolation.scheduler.informers import Informers
    from isolation.scheduler.metrics import Metrics
    from isolation.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)
START_SECONDS: Final = 60.0
"""To the first report; half a second on a machine that has nothing else to do."""
SILENT_SECONDS: Final = 10.0
"""Without a report (one a second) for so long it is killed."""
STOP_SECONDS: Final = 3.0
"""For the answers to open requests."""
FIRST_DELAY_SECONDS: Final = 0.1
MAX_DELAY_SECONDS: Final = 10.0
_LIVED_SECONDS: Final = 60.0
"""A process that ran for so long is restarted with the first delay."""
_BATCH: Final = 5000
_SETTLE_SECONDS: Final = 0.05
"""Changes within so long go into one message."""
_POLL_SECONDS: Final = 0.2
_MODULE: Final = "isolation.scheduler.admission.serve"


class ClusterFeed:
    """What the admission process has to know of the cluster, kept by listening to the store."""

    def __init__(self, informers: Informers, *, may_grow: bool, foreign: bool = False) -> None:
        """`foreign`: other dialects are served, which may ask for parts of cards."""
        self._informers, self._may_grow, self._foreign = informers, may_grow, foreign
        self._shared = {(pod.namespace, pod.name): pod.uid for pod in informers.store.pods.values()}
        self._changes: dict[tuple[str, str], bool] = {}
        self._fleet, self._fleet_stale, self._fleet_sent = node_sizes.UNKNOWN, True, node_sizes.UNKNOWN
        self._pools_sent = self._sizing_sent = ""
        self._cards, self._cards_stale, self._cards_sent = CardSizes(), foreign, CardSizes()
        self._synced = False
        self._owned: dict[str, str] = {}
        self._owned_sent = self._owned
        self.changed = asyncio.Event()
        informers.store.listen(self._note)

    def set_owned(self, owned: Mapping[str, str]) -> None:
        """Dialects that are not ours to serve."""
        self._owned = dict(owned)
        self.changed.set()

    def everything(self) -> list[ClusterUpdate]:
        """The whole content, for a new process; the last update marks the end."""
        self._changes.clear()
        self._fleet_sent, self._pools_sent = self._current_fleet(), self._informers.pools.text
        self._cards_sent, self._owned_sent = self._current_cards(), self._owned
        self._sizing_sent = self._informers.right_sizing.text
        self._synced = not self._informers.missing()
        names = list(self._shared)
        batches = [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]
        return [
            *(ClusterUpdate(whole=False, synced=False, shared=batch) for batch in batches),
            ClusterUpdate(
                whole=True,
                synced=self._synced,
                fleet=self._fleet_sent,
                pools=self._pools_sent,
                cards=_sent(self._cards_sent),
                owned=self._owned,
                right_sizing=self._sizing_sent,
            ),
        ]

    def update(self) -> ClusterUpdate | None:
        """What has changed since the last update; None: nothing."""
        changes, self._changes = self._changes, {}
        synced, shapes = not self._informers.missing(), self._current_fleet()
        pools = self._informers.pools.text
        cards, sizing = self._current_cards(), self._informers.right_sizing.text
        same = (
            self._synced,
            self._fleet_sent,
            self._pools_sent,
            self._cards_sent,
            self._owned_sent,
            self._sizing_sent,
        )
        if not changes and (synced, shapes, pools, cards, self._owned, sizing) == same:
            return None
        recommended = sizing if sizing != self._sizing_sent else None
        self._sizing_sent = sizing
        owned = self._owned if self._owned != self._owned_sent else None
        self._owned_sent = self._owned
        kinds = _sent(cards) if cards != self._cards_sent else None
        self._cards_sent = cards
        news = pools if pools != self._pools_sent else None
        self._synced, self._fleet_sent, self._pools_sent = synced, shapes, pools
        shared = [key for key, there in changes.items() if there]
        gone = [key for key, there in changes.items() if not there]
        return ClusterUpdate(True, synced, shared, gone, shapes, news, kinds, owned, recommended)

    def _current_fleet(self) -> node_sizes.NodeSizes:
        if self._fleet_stale and not self._informers.missing():
            self._fleet = node_sizes.measure_nodes(self._informers.store.nodes.values(), may_grow=self._may_grow)
            self._fleet_stale = False
        return self._fleet

    def _current_cards(self) -> CardSizes:
        if self._cards_stale and not self._informers.missing():
            self._cards, self._cards_stale = measure_cards(self._informers.store.nodes.values()), False
        return self._cards

    def _note(self, change: ClusterChange) -> None:
        if change.pod is not None:
            key = change.pod.namespace, change.pod.name
            if self._shared.get(key) == change.pod.uid:
                return
            self._shared[key], self._changes[key] = change.pod.uid, True
        elif change.pod_before is not None:
            key = change.pod_before.namespace, change.pod_before.name
            if self._shared.get(key) != change.pod_before.uid:
                return
            del self._shared[key]
            self._changes[key] = False
        else:
            before, after = change.node_before, change.node
            told = [node and (node.mode, node.cards, node.labels, node.taints) for node in (before, after)]
            if self._foreign and told[0] != told[1]:
                self._cards_stale = True
                self.changed.set()
            if (
                before is not None
                and after is not None
                and node_sizes.measure_node(before) == node_sizes.measure_node(after)
            ):
                return
            self._fleet_stale = True
        self.changed.set()


class AdmissionProcess:
    """One process after another, over one listening socket."""

    def __init__(
        self, settings: SchedulerSettings, cluster: ClusterFeed, sock: socket.socket, metrics: Metrics
    ) -> None:
        """The settings must have a certificate and a key."""
        self._configuration = AdmissionConfiguration(
            str(settings.certificate),
            str(settings.key),
            str(settings.admission_client_ca) if settings.admission_client_ca is not None else None,
            settings.scheduler_name,
            settings.unit_bytes,
            settings.log_format,
            settings.log_level,
            settings.systems.dialects,
            settings.systems.left,
            settings.trust_groups,
        )
        self._cluster, self._sock, self._metrics = cluster, sock, metrics
        self._process: asyncio.subprocess.Process | None = None
        self._report: ProcessReport | None = None
        self._reported_at = 0.0
        self._restarts = 0
        self._dropped = dict.fromkeys(("timeout", "evicted", "bytes"), 0)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now; None: there is none."""
        return self._process.pid if self._process is not None else None

    def problem(self) -> str:
        """Why it does not serve; empty where it does."""
        if self._report is None:
            return "admission process is starting"
        silent = time.monotonic() - self._reported_at
        return f"admission process has not reported for {silent:.0f} s" if silent > SILENT_SECONDS / 2 else ""

    def rows(self) -> Rows:
        """Gauges for a scrape."""
        none = ()
        rows: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            catalogue.ADMISSION_UP: {none: float(not self.problem())},
            catalogue.ADMISSION_RESTARTS: {none: float(self._restarts)},
            catalogue.ADMISSION_DROPPED_CONNECTIONS: {
                (reason,): float(number) for reason, number in self._dropped.items()
            },
        }
        if self._report is not None:
            rows[catalogue.ADMISSION_CONNECTIONS] = {none: float(self._report.connections)}
        if self.pid is not None and (resident := _resident(self.pid)) is not None:
            rows[catalogue.ADMISSION_RESIDENT_MEMORY] = {none: resident}
        return rows

    def certificate(self) -> tuple[float, float | None] | None:
        """When the certificate in use was loaded, and when it expires; None: no process has reported it."""
        return (self._report.loaded, self._report.ends) if self._report is not None else None

    async def run(self) -> None:
        """Run until cancelled; then open requests are answered."""
        delay = FIRST_DELAY_SECONDS
        while True:
            began = time.monotonic()
            try:
                why = await self._run_process()
            except OSError as exc:
                why = f"cannot be started ({exc})"
            self._restarts += 1
            delay = FIRST_DELAY_SECONDS if time.monotonic() - began > _LIVED_SECONDS else delay
            log.error("restarting admission process: it %s: delay_seconds=%.1f", why, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_DELAY_SECONDS)

    async def _run_process(self) -> str:
        """Run one process; how it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
            descriptors = theirs.fileno(), self._sock.fileno()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, *map(str, descriptors)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                env=os.environ | {"PYTHONPATH": path},
            )
        self._process = process
        reader, writer = await asyncio.open_connection(sock=ours)
        sending = asyncio.create_task(self._send_updates(writer))
        try:
            return await self._read_reports(reader, process)
        except asyncio.CancelledError:
            writer.close()  # which asks it to stop
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            raise
        finally:
            self._process = self._report = None
            sending.cancel()
            (failure,) = await asyncio.gather(sending, return_exceptions=True)
            if isinstance(failure, Exception):
                log.error("cannot send updates to the admission process: internal error", exc_info=failure)
            writer.close()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read_reports(self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> str:
        before = ProcessReport({}, [0] * (len(catalogue.BUCKETS) + 1), 0.0, 0, {}, 0.0, None)
        while True:
            patience = START_SECONDS if self._report is None else SILENT_SECONDS
            try:
                async with asyncio.timeout(patience):
                    report = decode(await reader.readuntil(), ProcessReport)
            except TimeoutError:
                return f"has not reported for {patience:.0f} s"
            except (asyncio.IncompleteReadError, ConnectionError):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_SECONDS):
                        await process.wait()
                return f"ended with status {process.returncode}" if process.returncode is not None else "hung up"
            except (msgspec.MsgspecError, ValueError) as exc:
                return f"sent an invalid report ({exc})"
            if self._report is None:
                log.info("admission process serves: pid=%d", process.pid)
            self._count(before, report)
            self._report, self._reported_at, before = report, time.monotonic(), report

    def _count(self, before: ProcessReport, report: ProcessReport) -> None:
        for outcome, number in report.outcomes.items():
            self._metrics.count_reviews(outcome, number - before.outcomes.get(outcome, 0))
        buckets = [new - old for old, new in zip(before.buckets, report.buckets, strict=True)]
        self._metrics.add_durations("admission", buckets, report.seconds - before.seconds)
        for reason, number in report.dropped.items():
            self._dropped[reason] += number - before.dropped.get(reason, 0)

    async def _send_updates(self, writer: asyncio.StreamWriter) -> None:
        """
        Send everything once, then changes; a process that does not read is noticed by its missing reports.

        However this ends, the process is asked to stop: without updates it would decide by an old cluster.
        """
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            writer.write(encode(self._configuration))
            for update in self._cluster.everything():
                writer.write(encode(update))
                await writer.drain()
            while True:
                self._cluster.changed.clear()
                if (changed := self._cluster.update()) is not None:
                    writer.write(encode(changed))
                    await writer.drain()
                await asyncio.sleep(_SETTLE_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._cluster.changed.wait()  # after a quiet time a change is sent at once


def _sent(cards: CardSizes) -> CardKinds:
    return CardKinds(cards.kinds, cards.dropped)


def _resident(pid: int) -> float | None:
    """Bytes; None: the process is gone."""
    try:
        return float(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, IndexError, ValueError):
        return None
