# SPDX-License-Identifier: Apache-2.0
"""
What a record of a box says about the limiter. Pure; the simulator's records are the only witness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.isolation.jobs import Record, Track

SECOND: Final = 1_000_000_000
SKIPPED: Final = 2 * SECOND
"""Costs are learnt first; where nothing else is said this much is not judged."""
LONGEST_KERNEL: Final = {"2ms": 2.2e6, "20ms": 20e6, "mixed": 19.5e6}


@dataclass(slots=True)
class Finding:
    """One figure of one draw and the bar that it must meet."""

    name: str
    unit: str
    value: float
    bar: float
    least: bool = False
    """The bar is a least, not a most."""
    each: dict[str, Any] = field(default_factory=dict)
    """The figure of every job: whole runs are kept."""

    @property
    def text(self) -> str:
        """For a line."""
        return f"{self.name} {self.value:.2f} {self.unit}{'' if self.met else ' MISSED'}"

    @property
    def met(self) -> bool:
        """Whether the bar holds."""
        return self.value >= self.bar if self.least else self.value <= self.bar


def _windows(track: Track, begin: float, end: float, span: float) -> list[float]:
    """Shares over windows that follow each other."""
    count = int((end - begin) / span + 1e-6)
    return [track.share(begin + i * span, begin + (i + 1) * span) for i in range(count)]


def _label(track: Track) -> str:
    return f"card {track.card} {track.job.pattern} {track.job.core}"


def windows(record: Record, span: float = SECOND) -> Iterator[Finding]:
    """Error over windows, and what of the promise was not given although work waited."""
    errors, lost = {}, {}
    for track in record.tracks:
        shares = _windows(track, record.begin + SKIPPED, record.end, span)
        errors[_label(track)] = fmean(abs(share - track.job.core) for share in shares)
        lost[_label(track)] = 100 * max(0.0, 1 - fmean(shares) / track.job.core)
    yield Finding("mean absolute error", "points", max(errors.values()), 2, each=errors)
    yield Finding("lost", "%", max(lost.values()), 2, each=lost)


def long(record: Record) -> Iterator[Finding]:
    """Likewise over ten seconds."""
    yield from windows(record, 10 * SECOND)


def cap(record: Record) -> Iterator[Finding]:
    """The most that any ten seconds gave over the promise, the first two seconds included."""
    most = {}
    for track in record.tracks:
        starts = range(record.begin, record.end - 10 * SECOND + 1, SECOND // 4)
        most[_label(track)] = max(track.share(start, start + 10 * SECOND) for start in starts) - track.job.core
    yield Finding("over the promise in 10 s", "points", max(most.values()), 5, each=most)


def usable(tracks: Sequence[Track], begin: float, end: float, switch_ns: int) -> float:
    """Part of the card's time that is not spent changing from one process to another."""
    switches = sum(
        sum(b - a for a, b, at in zip(track.slices, track.slices[1:], track.at, strict=False) if begin <= at < end)
        for track in tracks
    )
    return 1 - switches * switch_ns / (end - begin)


def _by_card(record: Record) -> list[list[Track]]:
    cards = sorted({track.card for track in record.tracks})
    return [[track for track in record.tracks if track.card == card] for card in cards]


def _apart(record: Record, promised: Callable[[Track], float], switch_ns: int) -> dict[str, float]:
    """
    How far each job's mean lies from its part.

    Changing from one process to another takes time of the card that nobody can have: whoever is short of
    his part is compared with what the others, at their parts, left of the rest.
    """
    found = {}
    begin, end = record.begin + SKIPPED, record.end
    for tracks in _by_card(record):
        left = usable(tracks, begin, end, switch_ns)
        for track in tracks:
            share, part = track.share(begin, end), promised(track)
            others = sum(min(other.share(begin, end), promised(other)) for other in tracks if other is not track)
            found[_label(track)] = share - part if share > part else min(0.0, share - min(part, 100 * left - others))
    return found


def beside(record: Record, switch_ns: int) -> Iterator[Finding]:
    """Two containers, neighbours' slices in the event times of both."""
    apart = _apart(record, lambda track: track.job.core, switch_ns)
    yield Finding("from the promise", "points", max(map(abs, apart.values())), 2, each=apart)


def weights(record: Record, switch_ns: int) -> Iterator[Finding]:
    """By weight of the whole card."""
    sums = {tracks[0].card: sum(_weight(track) for track in tracks) for tracks in _by_card(record)}
    apart = _apart(record, lambda track: 100 * _weight(track) / sums[track.card], switch_ns)
    yield Finding("from the weight", "points", max(map(abs, apart.values())), 3, each=apart)


def _weight(track: Track) -> int:
    return track.job.weight or track.job.core


def _given_back(owner: Track, borrower: Track, turn: int) -> float:
    """
    Milliseconds from the owner's return until the borrower is down to its promise, the running kernel taken off.

    Down: over the next 400 ms it gets no more than its promise and 5 points.
    """
    end = min(turn + 2 * SECOND, owner.at[-1] - SECOND // 2)
    for at in borrower.at:
        if at >= turn and borrower.share(at, at + 0.4 * SECOND) <= borrower.job.core + 5:
            return (at - turn - LONGEST_KERNEL[borrower.job.pattern]) / 1e6
    return (end - turn) / 1e6


def burst(record: Record) -> Iterator[Finding]:
    """What an idle neighbour leaves is used, and given back soon."""
    used, back, got = {}, {}, {}
    for borrower, owner in _by_card(record):
        resting = [
            (turn + owner.job.on * SECOND + 0.5 * SECOND, turn + (owner.job.on + owner.job.off) * SECOND)
            for turn in owner.client["turns"]
        ]
        spans = [(b, e) for b, e in resting if e <= record.end]
        share = fmean(borrower.share(b, e) for b, e in spans)
        used[_label(borrower)] = 100 * (share - borrower.job.core) / (100 - borrower.job.core)
        turns = [turn for turn in owner.client["turns"] if turn + owner.job.on * SECOND <= record.end]
        back[_label(borrower)] = max(_given_back(owner, borrower, turn) for turn in turns)
        got[_label(borrower)] = min(owner.share(t + SECOND // 2, t + owner.job.on * SECOND) for t in turns)
    yield Finding("idle share used", "%", min(used.values()), 95, least=True, each=used)
    yield Finding(
        "given back after", "ms", max(back.values()), 100, each=back | {f"owner: {k}": v for k, v in got.items()}
    )


def priority(record: Record) -> Iterator[Finding]:
    """The online job's rate with an offline one beside it, of its rate alone."""
    kept = {}
    for online, offline in _by_card(record):
        alone = online.share(record.begin + SKIPPED, record.begin + offline.job.begin * SECOND)
        both = online.share(record.begin + (offline.job.begin + 0.5) * SECOND, record.end)
        kept[_label(offline)] = 100 * both / alone
    yield Finding("online keeps", "%", min(kept.values()), 95, least=True, each=kept)


def judge(name: str, record: Record, switch_ns: int) -> list[Finding]:
    """All findings of one record."""
    match name:
        case "beside" | "weights":
            return list({"beside": beside, "weights": weights}[name](record, switch_ns))
        case _:
            known: dict[str, Callable[[Record], Iterator[Finding]]] = {
                "windows": windows,
                "long": long,
                "cap": cap,
                "burst": burst,
                "priority": priority,
            }
            return list(known[name](record))
