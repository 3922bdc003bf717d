# SPDX-License-Identifier: Apache-2.0
"""
Runs, summed up: per policy for people and as JSON for programs.

Pure. Decides which figures are averaged and how they are spelt; draws nothing and writes nothing.
A figure that no run could give is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any, Final

from isolation.simulator.sim.replay import KINDS, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PACKING: Final = (
    "policy",
    "allocated %",
    "unallocated\ncards",
    "fragmented,\n% of idle",
    "pods failed,\nby reason",
    "seconds\nper run",
)
ACCEPTED: Final = ("policy", "cpu only", "shared", "whole\ncard", "multi\ncard", "pods\nplaced", "pods\nfailed")


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy over its seeds; means unless the name says otherwise."""

    policy: str
    runs: int
    allocated_ratio_mean: float
    allocated_ratio_std: float
    """Spread of the runs shown (population), 0 for a single run."""
    unallocated_cards: float
    fragment_ratio: float | None
    placed: float
    failed: float
    failed_by: tuple[tuple[str, float], ...]
    """Mean pods a run by reason, commonest first."""
    accepted: tuple[float | None, ...]
    seconds_median: float


def summarise(runs: Iterable[Run]) -> tuple[Summary, ...]:
    """One summary per policy, in the order in which policies first appear."""
    by: dict[str, list[Run]] = {}
    for run in runs:
        by.setdefault(run.job.policy, []).append(run)
    return tuple(_summary(policy, found) for policy, found in by.items())


def _summary(policy: str, runs: Sequence[Run]) -> Summary:
    """One policy."""
    ratios = [run.allocated_ratio for run in runs]
    failed: Counter[str] = Counter()
    for run in runs:
        failed.update(dict(run.failed_by))
    return Summary(
        policy=policy,
        runs=len(runs),
        allocated_ratio_mean=fmean(ratios),
        allocated_ratio_std=pstdev(ratios),
        unallocated_cards=fmean(unallocated_cards(run) for run in runs),
        fragment_ratio=_mean(run.fragment_ratio for run in runs),
        placed=fmean(run.placed for run in runs),
        failed=fmean(run.failed for run in runs),
        failed_by=tuple(
            (why, count / len(runs)) for why, count in sorted(failed.items(), key=lambda item: (-item[1], item[0]))
        ),
        accepted=tuple(_mean(column) for column in zip(*(accepted(run) for run in runs), strict=True)),
        seconds_median=median(run.seconds for run in runs),
    )


def unallocated_cards(run: Run) -> float:
    """Idle GPU, in whole cards."""
    return (run.total_milli - run.allocated_milli) / 1000


def accepted(run: Run) -> tuple[float | None, ...]:
    """Accepted part of the pods that arrived, by kind; None where none of the kind arrived."""
    return tuple(got / came if came else None for got, came in zip(run.accepted, run.arrived, strict=True))


def as_json(runs: Sequence[Run], *, details: bool = False) -> dict[str, Any]:
    """The document of `--json`; `details` adds reasons, fragments and the curve to every run."""
    return {
        "runs": [_run_json(run, details=details) for run in runs],
        "summary": [
            {
                "policy": found.policy,
                "allocated_ratio_mean": round(found.allocated_ratio_mean, 6),
                "allocated_ratio_std": round(found.allocated_ratio_std, 6),
                "seconds_median": round(found.seconds_median, 4),
            }
            for found in summarise(runs)
        ],
    }


def _run_json(run: Run, *, details: bool) -> dict[str, Any]:
    """One run."""
    document: dict[str, Any] = {
        "policy": run.job.policy,
        "seed": run.job.seed,
        "demand": run.job.demand,
        "allocated_ratio": round(run.allocated_ratio, 6),
        "unallocated_cards": unallocated_cards(run),
        "placed": run.placed,
        "failed": run.failed,
        "accepted": {k: _rounded(ratio) for k, ratio in zip(KINDS, accepted(run), strict=True)},
        "seconds": round(run.seconds, 4),
    }
    if details:
        document["failed_by"] = dict(run.failed_by)
        document["fragment_ratio"] = _rounded(run.fragment_ratio)
        document["curve"] = [list(point) for point in run.curve]
    return document


def packing_row(found: Summary) -> tuple[str, ...]:
    """One line under `PACKING`."""
    return (
        found.policy,
        f"{100 * found.allocated_ratio_mean:.2f} ± {100 * found.allocated_ratio_std:.2f}",
        f"{found.unallocated_cards:.1f}",
        _percent(found.fragment_ratio),
        "\n".join(f"{why} {_pods(count)}" for why, count in found.failed_by) or "-",
        f"{found.seconds_median:.2f}",
    )


def accepted_row(found: Summary) -> tuple[str, ...]:
    """One line under `ACCEPTED`."""
    return (found.policy, *map(_percent, found.accepted), f"{found.placed:.0f}", f"{found.failed:.0f}")


def _pods(count: float) -> str:
    """A mean number of pods; a few are not rounded away."""
    return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"  # noqa: PLR2004 (two digits)


def _percent(ratio: float | None) -> str:
    """A ratio for people."""
    return "-" if ratio is None else f"{100 * ratio:.1f}"


def _rounded(ratio: float | None) -> float | None:
    """A ratio for programs."""
    return None if ratio is None else round(ratio, 6)


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
