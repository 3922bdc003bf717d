"""
What `gpushare autoscaler plan` shows: what would be done now and why, who waits, and what keeps it from acting.

Decides how it is shown, as tables or as one JSON document; what is shown was decided elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from autoscaler.kube.telemetry import step_name
from autoscaler.kube.telemetry_rows import Reading, answer_of, why_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from autoscaler.plan import Step

_LINE = 200


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step."""

    step: str
    what: str
    """The pool, node or pod it is about."""
    reason: str


@dataclass(frozen=True, slots=True)
class PodLine:
    """One waiting pod."""

    pod: str
    seconds: float
    answer: str
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One pool."""

    pool: str
    nodes: int
    coming: int
    smallest: int
    largest: int
    resting_seconds: float
    """Back-off left."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Everything that is shown."""

    steps: tuple[StepLine, ...] = ()
    pods: tuple[PodLine, ...] = ()
    pools: tuple[PoolLine, ...] = ()
    doubts: tuple[str, ...] = ()
    """What is not known, or may not be touched."""
    holds: tuple[str, ...] = ()
    """What keeps the running autoscaler from doing any of it."""


def prospect_of(reading: Reading, steps: tuple[Step, ...], doubts: tuple[str, ...], holds: tuple[str, ...]) -> Prospect:
    """From one reading and what was decided on it."""
    seen = reading.seen
    keys = {pod.uid: pod.key for pod in seen.pods.values()}
    coming = {machine.name for machine in seen.coming()}
    sizes = seen.sizes()
    return Prospect(
        steps=tuple(StepLine(step_name(step), _what(step, keys), step.reason) for step in steps),
        pods=tuple(
            PodLine(pod.key, max(0.0, seen.at - pod.created), answer_of(reading, pod.uid), *why_of(reading, pod.uid))
            for pod in seen.pending
        ),
        pools=tuple(
            PoolLine(
                name,
                sizes[name],
                sum(1 for each in coming if seen.machines[each].pool == name),
                pool.smallest,
                pool.largest,
                max(0.0, reading.memory.closed[name].until - seen.at) if name in reading.memory.closed else 0.0,
            )
            for name, pool in sorted(seen.pools.items())
        ),
        doubts=doubts,
        holds=holds,
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
    for hold in prospect.holds:
        console.print(_plain(f"the running autoscaler does none of this: {hold}"))
    for doubt in prospect.doubts:
        console.print(_plain(f"in doubt: {doubt}"))
    if prospect.steps:
        _table(console, ("step", "what", "why"), [(line.step, line.what, line.reason) for line in prospect.steps])
    else:
        console.print("nothing to do now")
    if prospect.pods:
        rows = [(line.pod, f"{line.seconds:.0f} s", line.answer, line.reason) for line in prospect.pods]
        _table(console, ("waiting pod", "for", "answer", "why"), rows)
    if prospect.pools:
        _table(console, ("pool", "nodes", "coming", "bounds", "back-off"), [_pool(line) for line in prospect.pools])


def _pool(line: PoolLine) -> tuple[str, ...]:
    rest = f"{line.resting_seconds:.0f} s" if line.resting_seconds else "-"
    return line.pool, str(line.nodes), str(line.coming), f"{line.smallest} to {line.largest}", rest


def _table(console: Console, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    console.print(table)


def _plain(text: Any) -> str:
    """A stranger's text: on one line, no control characters, no mark-up."""
    clean = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return clean.replace("[", "\\[")
