# SPDX-License-Identifier: Apache-2.0
"""
The process's own gauges, joined with those of its latest reading.

Decides what is absent: ages of what was never heard, and everything about pools while there is no reading.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from autoscaler.kube.core.conditions import Kind
from autoscaler.kube.core.telemetry_rows import Reading, rows_of
from isolation.contract.metrics import autoscaler as catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.apis.metrics.core.readings import LatestSnapshot
    from autoscaler.kube.condition_reporter import Voice
    from autoscaler.kube.config.file import ConfigFile
    from autoscaler.kube.guard import Turn
    from autoscaler.kube.reconciler import Turns
    from autoscaler.kube.watches import Sources
    from isolation.contract.metrics import MetricSpec

    Rows = dict[MetricSpec, Mapping[tuple[str, ...], float]]

WATCHES: Final = {"disruption budgets": "budgets"}


class ProcessRows:
    """Everything, at this moment; what comes from a reading is counted once for each."""

    def __init__(self, turns: Turns, voice: Voice, sources: Sources, file: ConfigFile, board: LatestSnapshot) -> None:
        self._turns, self._voice, self._sources, self._file, self._board = turns, voice, sources, file, board
        self._counted: tuple[Turn, Rows] | None = None

    def __call__(self) -> Rows:
        """For a scrape."""
        turns, none = self._turns, ()
        facts = turns.facts()
        position = facts.position
        rows: Rows = {
            catalogue.LEADS: {none: float(facts.epoch is not None)},
            catalogue.ENABLED: {none: float(not position.problem and position.enabled is not False)},
            catalogue.DRY_RUN: {none: float(facts.only_says)},
            catalogue.SYNCED: {none: float(not self._sources.missing())},
            catalogue.VIEW_AGE: _ages(self._sources),
            catalogue.DOUBTS: {(kind,): float(number) for kind, number in self._voice.counts().items()},
            catalogue.CONFIG_OK: {none: float(not self._file.problem)},
        }
        if turns.ended is not None:
            rows[catalogue.LAST_TURN] = {none: turns.ended}
        if facts.epoch is not None and turns.handover.left is not None:
            rows[catalogue.HANDOVER_LEFT] = {none: float(turns.handover.left)}
        if self._file.loaded is not None:
            rows[catalogue.CONFIG_LOADED] = {none: self._file.loaded}
        if self._counted is None or self._counted[0] is not turns.last:
            self._counted = turns.last, _reading(turns, self._board)
        return {**rows, **_figures(turns), **_providers(turns), **self._counted[1]}


def _ages(sources: Sources) -> dict[tuple[str, ...], float]:
    now = time.monotonic()
    heard = {WATCHES.get(name, name): one.heard for name, one in sources.followers.items()}
    return {(name,): now - at for name, at in heard.items() if at is not None}


def _figures(turns: Turns) -> Rows:
    """How old the measured figures are."""
    measured, wanted = turns.wired.figures.last, turns.wired.config.metrics
    if measured is None or wanted.source == "none":
        return {}
    now = turns.steady()
    fresh = [now - at for node, at in measured.measured.items() if node not in measured.stale]
    stale = len(measured.stale)
    silent = len(measured.failed.keys() - measured.measured.keys())
    states = {"fresh": len(fresh), "stale": stale, "missing": silent}
    rows: Rows = {catalogue.FIGURES_NODES: {(state,): float(number) for state, number in states.items()}}
    if fresh:
        rows[catalogue.FIGURES_AGE] = {(wanted.source,): max(fresh)}
    return rows


def _providers(turns: Turns) -> Rows:
    seen = turns.world.seen if turns.world is not None else None
    if seen is None:
        return {}
    pools = turns.wired.config.pools
    return {catalogue.PROVIDER_UP: {(one.name, one.source.provider): float(one.name in seen.targets) for one in pools}}


def _reading(turns: Turns, board: LatestSnapshot) -> Rows:
    seen, world = turns.last.seen, turns.world
    if seen is None or world is None or world.seen is None:
        return {}
    limits, memory = turns.wired.config.limits, turns.memory
    budget = memory.budget(seen, limits, {})
    return rows_of(
        Reading(
            seen=seen,
            memory=memory,
            limits=limits,
            picture=board.latest(),
            targets=world.seen.targets,
            unknown=frozenset(doubt.pool for doubt in world.doubts() if doubt.kind is Kind.TEMPLATE),
            unanswered=world.unanswered(),
            left=budget.left,
        )
    )
