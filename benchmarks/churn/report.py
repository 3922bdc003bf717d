# SPDX-License-Identifier: Apache-2.0
"""
Churn and the contest of autoscalers, summed up: tables for people, JSON for programs.

Pure. Means over the seeds; draws nothing and writes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.churn.comparison import Score
    from benchmarks.churn.freed_cards import Freed

    Figure = Callable[[Score], float]

FREED: Final = ("move budget", "moves", "cards freed", "nodes emptied", "cards per move", "lowest to highest")
COMPARISON: Final[tuple[tuple[str, Figure], ...]] = (
    ("node-hours", lambda score: score.node_hours),
    ("pending pods, total hours", lambda score: score.pending_pod_hours),
    ("longest wait, s", lambda score: score.longest_wait),
    ("pods pending, fit only by sum", lambda score: score.fragmented),
    ("nodes fewer than per-card FFD", lambda score: score.short),
    ("nodes more than per-card FFD", lambda score: score.over),
    ("nodes added", lambda score: score.bought),
    ("nodes drained", lambda score: score.drained),
    ("pods moved", lambda score: score.moves),
    ("flaps", lambda score: score.flaps),
    ("pods pending at the end", lambda score: score.waiting),
)


@dataclass(frozen=True, slots=True)
class Mean:
    """One budget over its seeds."""

    budget: float
    moves: float
    cards: float
    nodes: float
    per_move: float | None
    """None where no seed moved a pod."""
    lowest: float | None
    highest: float | None


def means(found: Iterable[Freed]) -> list[Mean]:
    """By budget, in the order given."""
    by: dict[float, list[Freed]] = {}
    for each in found:
        by.setdefault(each.budget, []).append(each)
    return [_mean(budget, runs) for budget, runs in by.items()]


def _mean(budget: float, runs: Sequence[Freed]) -> Mean:
    known = [run.per_move for run in runs if run.per_move is not None]
    return Mean(
        budget,
        fmean(run.moves for run in runs),
        fmean(run.cards for run in runs),
        fmean(run.nodes for run in runs),
        fmean(known) if known else None,
        min(known, default=None),
        max(known, default=None),
    )


def freed_row(mean: Mean) -> tuple[str, ...]:
    """One line under `FREED`."""
    span = "-" if mean.lowest is None or mean.highest is None else f"{mean.lowest:.2f} to {mean.highest:.2f}"
    per_move = "-" if mean.per_move is None else f"{mean.per_move:.2f}"
    return (f"{mean.budget:.0%}", f"{mean.moves:.1f}", f"{mean.cards:.1f}", f"{mean.nodes:.1f}", per_move, span)


def names(scores: Iterable[Score]) -> list[str]:
    """The autoscalers, in the order in which they ran."""
    return list(dict.fromkeys(score.name for score in scores))


def comparison_rows(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """One line for each figure, one column for each autoscaler."""
    columns = [[score for score in scores if score.name == name] for name in names(scores)]
    return [(title, *(_number(fmean(figure(s) for s in column)) for column in columns)) for title, figure in COMPARISON]


def as_json(freed: Sequence[Freed], scores: Sequence[Score]) -> dict[str, Any]:
    """The document of `--churn --json`."""
    return {
        "churn": {
            "runs": [asdict(each) | {"cards_per_move": each.per_move} for each in freed],
            "summary": [asdict(mean) for mean in means(freed)],
        },
        "contest": [asdict(score) for score in scores],
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.1f}"
