# SPDX-License-Identifier: Apache-2.0
"""
The process's own gauges, joined with those of its latest observation; how long its certificates are valid.

Decides what is absent: ages of what was never heard, everything about pools while there is no observation, and
certificates that cannot be read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.kube.core.telemetry_rows import TelemetryReading, rows_of
from isolation.contract.metrics import autoscaler as catalogue
from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, server_context
from isolation.kube.election import boottime

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from autoscaler.apis.metrics.core.readings import LatestSnapshot
    from autoscaler.kube.condition_reporter import ConditionReporter
    from autoscaler.kube.config.file import ConfigFile
    from autoscaler.kube.cycle import Cycle
    from autoscaler.kube.reconciler import Reconciler
    from autoscaler.kube.watches import Sources
    from isolation.contract.metrics import MetricSpec

    Rows = dict[MetricSpec, Mapping[tuple[str, ...], float]]

WATCHES: Final = {"disruption budgets": "budgets"}


class ProcessRows:
    """Everything, at this moment; what comes from a reading is counted once for each."""

    def __init__(
        self,
        reconciler: Reconciler,
        reporter: ConditionReporter,
        sources: Sources,
        file: ConfigFile,
        board: LatestSnapshot,
    ) -> None:
        self._reconciler, self._reporter, self._sources, self._file, self._board = (
            reconciler,
            reporter,
            sources,
            file,
            board,
        )
        self._counted: tuple[Cycle | None, Rows] | None = None

    def __call__(self) -> Rows:
        """For a scrape."""
        reconciler, none = self._reconciler, ()
        now = reconciler.authority()
        position = now.position
        rows: Rows = {
            catalogue.LEADER: {none: float(now.epoch is not None)},
            catalogue.ENABLED: {none: float(not position.problem and position.enabled is not False)},
            catalogue.DRY_RUN: {none: float(now.is_dry_run)},
            catalogue.SYNCED: {none: float(not self._sources.missing())},
            catalogue.WATCH_STALENESS: _ages(self._sources),
            catalogue.INHIBITED: {(kind,): float(number) for kind, number in self._reporter.counts().items()},
            catalogue.CONFIG_RELOAD_SUCCESSFUL: {none: float(not self._file.problem)},
        }
        if reconciler.finished is not None:
            rows[catalogue.LAST_CYCLE] = {none: reconciler.finished}
        if now.epoch is not None and reconciler.handover.left is not None:
            rows[catalogue.HANDOVER_PENDING_PODS] = {none: float(reconciler.handover.left)}
        if self._file.loaded is not None:
            rows[catalogue.CONFIG_RELOAD_TIMESTAMP] = {none: self._file.loaded}
        if self._counted is None or self._counted[0] is not reconciler.last:
            self._counted = reconciler.last, _reading(reconciler, self._board)
        return {**rows, **_usage(reconciler), **_providers(reconciler), **self._counted[1]}


def _ages(sources: Sources) -> dict[tuple[str, ...], float]:
    now = time.monotonic()
    heard = {WATCHES.get(name, name): one.heard for name, one in sources.followers.items()}
    return {(name,): now - at for name, at in heard.items() if at is not None}


def _usage(reconciler: Reconciler) -> Rows:
    """How old the measured figures are."""
    measured, wanted = reconciler.backends.usage.last, reconciler.backends.config.metrics
    if measured is None or wanted.source == "none":
        return {}
    now = boottime()
    fresh = [now - at for node, at in measured.measured.items() if node not in measured.stale]
    stale = len(measured.stale)
    silent = len(measured.failed.keys() - measured.measured.keys())
    states = {"fresh": len(fresh), "stale": stale, "missing": silent}
    rows: Rows = {catalogue.METRICS_NODES: {(state,): float(number) for state, number in states.items()}}
    if fresh:
        rows[catalogue.METRICS_AGE] = {(wanted.source,): max(fresh)}
    return rows


def _providers(reconciler: Reconciler) -> Rows:
    observed = reconciler.cluster.observed
    if observed is None:
        return {}
    pools = reconciler.backends.config.pools
    return {
        catalogue.PROVIDER_UP: {(one.name, one.source.provider): float(one.name in observed.targets) for one in pools}
    }


def _reading(reconciler: Reconciler, board: LatestSnapshot) -> Rows:
    cluster, observed = reconciler.cluster, reconciler.cluster.observed
    observation = reconciler.last.observation if reconciler.last is not None else None
    if observation is None or observed is None:
        return {}
    limits, memory = reconciler.backends.config.limits, reconciler.state.memory
    budget = memory.budget(observation, limits, {})
    return rows_of(
        TelemetryReading(
            seen=observation,
            memory=memory,
            limits=limits,
            picture=board.latest(),
            targets=observed.targets,
            unknown=frozenset(
                condition.pool for condition in cluster.conditions() if condition.kind is ConditionKind.TEMPLATE
            ),
            unanswered=cluster.unanswered(),
            left=budget.left,
        )
    )


class Certificates:
    """Until when the certificates that our ports show are valid, by port; read again when a file changes."""

    def __init__(self, files: Mapping[str, CertificateFiles]) -> None:
        """By the label `door`."""
        # whom clients are signed by is not this metric's business
        self._files = {door: CertificateFiles(pair.certificate, pair.key) for door, pair in files.items()}
        self._loaded: dict[str, ReloadingTls[ssl.SSLContext]] = {}

    def __call__(self) -> Rows:
        """For a scrape."""
        for door, files in self._files.items():
            if door in self._loaded:
                self._loaded[door].refresh()
                continue
            try:
                self._loaded[door] = ReloadingTls(files, server_context)
            except TlsError:
                continue  # the port logs what is wrong
        ends = {(door,): loaded.end for door, loaded in self._loaded.items()}
        return {catalogue.CERTIFICATE_EXPIRY: {door: end for door, end in ends.items() if end is not None}}
