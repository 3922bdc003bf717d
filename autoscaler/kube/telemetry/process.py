# SPDX-License-Identifier: Apache-2.0
"""
The process's own gauges, joined with those of its latest observation; how long its certificates are valid.

Decides what is absent: ages of what was never heard, everything about pools while there is no observation, and
certificates that cannot be read.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Final

from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.kube.core.telemetry_rows import Reading, rows_of
from isolation.contract.metrics import autoscaler as catalogue
from isolation.kube import certificate_files
from isolation.kube.certificate import first_end
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.apis.metrics.core.readings import Board
    from autoscaler.apis.rpc.server import Files
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
        self, reconciler: Reconciler, reporter: ConditionReporter, sources: Sources, file: ConfigFile, board: Board
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
            catalogue.LEADS: {none: float(now.epoch is not None)},
            catalogue.ENABLED: {none: float(not position.problem and position.enabled is not False)},
            catalogue.DRY_RUN: {none: float(now.is_dry_run)},
            catalogue.SYNCED: {none: float(not self._sources.missing())},
            catalogue.VIEW_AGE: _ages(self._sources),
            catalogue.DOUBTS: {(kind,): float(number) for kind, number in self._reporter.counts().items()},
            catalogue.CONFIG_OK: {none: float(not self._file.problem)},
        }
        if reconciler.finished is not None:
            rows[catalogue.LAST_TURN] = {none: reconciler.finished}
        if now.epoch is not None and reconciler.handover.left is not None:
            rows[catalogue.HANDOVER_LEFT] = {none: float(reconciler.handover.left)}
        if self._file.loaded is not None:
            rows[catalogue.CONFIG_LOADED] = {none: self._file.loaded}
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
    rows: Rows = {catalogue.FIGURES_NODES: {(state,): float(number) for state, number in states.items()}}
    if fresh:
        rows[catalogue.FIGURES_AGE] = {(wanted.source,): max(fresh)}
    return rows


def _providers(reconciler: Reconciler) -> Rows:
    observed = reconciler.cluster.observed
    if observed is None:
        return {}
    pools = reconciler.backends.config.pools
    return {
        catalogue.PROVIDER_UP: {(one.name, one.source.provider): float(one.name in observed.targets) for one in pools}
    }


def _reading(reconciler: Reconciler, board: Board) -> Rows:
    cluster, observed = reconciler.cluster, reconciler.cluster.observed
    observation = reconciler.last.observation if reconciler.last is not None else None
    if observation is None or observed is None:
        return {}
    limits, memory = reconciler.backends.config.limits, reconciler.state.memory
    budget = memory.budget(observation, limits, {})
    return rows_of(
        Reading(
            seen=observation,
            memory=memory,
            limits=limits,
            picture=board.picture(),
            targets=observed.targets,
            unknown=frozenset(
                condition.pool for condition in cluster.conditions() if condition.kind is ConditionKind.TEMPLATE
            ),
            unanswered=cluster.unanswered(),
            left=budget.left,
        )
    )


class Certificates:
    """
    Until when the certificates that we show are valid, by the port that shows them; read again when a file changes.

    Half of a pair on its way to the disk keeps the old one in force, as at the ports.
    """

    def __init__(self, pairs: Mapping[str, Files]) -> None:
        """By the label `door`."""
        self._pairs = pairs
        self._stamps: dict[str, certificate_files.Stamp] = {}
        self._ends: dict[str, float] = {}

    def __call__(self) -> Rows:
        """For a scrape."""
        for door, pair in self._pairs.items():
            stamp = certificate_files.stamp((pair.certificate, pair.key))
            if self._stamps.get(door) == stamp:
                continue
            self._stamps[door] = stamp
            try:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(pair.certificate, pair.key, password=certificate_files.no_password)
                end = first_end(pair.certificate.read_bytes())
            except (OSError, ValueError):  # ssl.SSLError is an OSError; the port says in the log what is wrong
                continue
            self._ends.pop(door, None)
            if end is not None:
                self._ends[door] = end
        return {catalogue.CERTIFICATE_ENDS: {(door,): end for door, end in self._ends.items()}}
