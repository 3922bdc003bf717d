# SPDX-License-Identifier: Apache-2.0
"""
What `gpushare autoscaler plan` shows: what would be done now and why, who waits, and what keeps it from acting.

Decides how it is shown, as tables or as one JSON document; what is shown was decided elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from autoscaler.core.lifecycle import STANDING
from autoscaler.core.plan import get_action
from autoscaler.kube.core.telemetry_rows import TelemetryReading, answer_of, why_of
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from autoscaler.core.plan import Step

_LINE = 200


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step."""

    action: str
    target: str
    """The pool, node or pod it is about."""
    reason: str


@dataclass(frozen=True, slots=True)
class PodLine:
    """One waiting pod."""

    pod: str
    pending_seconds: float
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One pool."""

    pool: str
    nodes: int
    starting: int
    min_nodes: int | None
    """None, as the largest: the pool's provider cannot tell, and it neither grows nor shrinks."""
    max_nodes: int | None
    backoff_seconds: float
    """Back-off left."""
    error: str = ""
    """Why its provider cannot tell; empty: it can."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Everything that is shown."""

    actions: tuple[StepLine, ...] = ()
    pods: tuple[PodLine, ...] = ()
    pools: tuple[PoolLine, ...] = ()
    conditions: tuple[str, ...] = ()
    """What is not known, or may not be touched."""
    inhibited_by: tuple[str, ...] = ()
    """What keeps the running autoscaler from doing any of it."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is said beside the steps."""

    conditions: tuple[str, ...] = ()
    inhibited_by: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    """By pool, why its provider cannot tell."""


def make_prospect(reading: TelemetryReading, steps: tuple[Step, ...], beside: Beside) -> Prospect:
    """From one reading and what was decided on it."""
    seen = reading.seen
    keys = {pod.uid: pod.key for pod in seen.pods.values()}
    return Prospect(
        actions=tuple(StepLine(get_action(step), _what(step, keys), step.reason) for step in steps),
        pods=tuple(
            PodLine(pod.key, max(0.0, seen.at - pod.created), answer_of(reading, pod.uid), *why_of(reading, pod.uid))
            for pod in seen.pending
        ),
        pools=_pools(reading, beside.silent),
        conditions=beside.conditions,
        inhibited_by=beside.inhibited_by,
    )


def _pools(reading: TelemetryReading, silent: Mapping[str, str]) -> tuple[PoolLine, ...]:
    """Pools with a known size, and those whose provider does not answer, whether or not a node of theirs is known."""
    seen, backoffs = reading.seen, reading.memory.backoffs
    coming = Counter(machine.pool for machine in seen.coming())
    sizes = Counter(machine.pool for machine in seen.machines.values() if machine.state in STANDING)
    return tuple(
        PoolLine(
            name,
            sizes[name],
            coming[name],
            None if name in silent else seen.pools[name].min_nodes,
            None if name in silent else seen.pools[name].max_nodes,
            max(0.0, backoffs[name].until - seen.at) if name in backoffs else 0.0,
            silent.get(name, ""),
        )
        for name in sorted(seen.pools.keys() | silent.keys())
    )


def _what(step: Step, keys: dict[str, str]) -> str:
    pod = getattr(step, "pod", "")
    if pod:
        return keys.get(pod, pod)
    return str(getattr(step, "node", "") or getattr(step, "pool", ""))


def as_json(prospect: Prospect) -> str:
    """One document."""
    return json.dumps(asdict(prospect), indent=2, allow_nan=False)


def show(prospect: Prospect, stream: TextIO) -> None:
    """Tables for people."""
    console = Console(file=stream, highlight=False, soft_wrap=not stream.isatty())
    if not stream.isatty():
        console.width = _LINE
    for why in prospect.inhibited_by:
        console.print(_plain(f"the running autoscaler does not take these actions: {why}"))
    for condition in prospect.conditions:
        console.print(_plain(f"condition: {condition}"))
    if prospect.actions:
        _table(
            console,
            ("action", "target", "reason"),
            [(line.action, line.target, line.reason) for line in prospect.actions],
        )
    else:
        console.print("no actions to take now")
    if prospect.pods:
        rows = [(line.pod, f"{line.pending_seconds:.0f} s", line.status, line.message) for line in prospect.pods]
        _table(console, ("pending pod", "age", "status", "reason"), rows)
    if prospect.pools:
        _table(
            console,
            ("pool", "nodes", "provisioning", "min to max", "backoff"),
            [_pool(line) for line in prospect.pools],
        )


def _pool(line: PoolLine) -> tuple[str, ...]:
    rest = f"{line.backoff_seconds:.0f} s" if line.backoff_seconds else "-"
    # why, a line above the table says
    bounds = "unknown" if line.error else f"{line.min_nodes} to {line.max_nodes}"
    return line.pool, str(line.nodes), str(line.starting), bounds, rest


def _table(console: Console, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    console.print(table)


def _plain(text: Any) -> str:
    """Untrusted text on one line, without control characters and mark-up."""
    return printable(str(text), mark=" ").replace("[", "\\[")
