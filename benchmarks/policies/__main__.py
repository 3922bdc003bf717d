# SPDX-License-Identifier: Apache-2.0
"""
Do pods get what their compute policy says? From the node's label through a real API server and the node agent.

    python -m benchmarks.policies --draws 20 --json runs.json

Each draw is one node of simulated cards with its own time slices, switching costs and sample periods; its label is
changed between the bindings, so that all policies run on it side by side. The simulator's own records judge. Needs the
control plane of the tests. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import click

from benchmarks.isolation import fairness, judge
from benchmarks.isolation.jobs import Job, Record, hurry
from benchmarks.isolation.judge import SECOND, SKIPPED, Finding
from benchmarks.isolation.scenarios import draw
from benchmarks.policies import pods

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.isolation.jobs import Track

SECONDS: Final = 21.0
TRIES: Final = 3
TURN: Final = 3.0


def _burst(pattern: str, neighbour: str) -> tuple[Job, ...]:
    return (Job(pattern, 30, "burst"), Job(neighbour, 70, "burst", begin=3, on=TURN, off=TURN))


def _online(pattern: str) -> tuple[Job, ...]:
    """The online pod works and rests in turns, three offline pods always want the card."""
    offline = (Job(pattern, 0, "priority") for _ in range(3))
    return (Job("2ms", 50, "priority", online=True, on=TURN, off=TURN), *offline)


CARDS: Final = {
    "fixed": ((Job("2ms", 30),),),
    "burst": (_burst("2ms", "2ms"), _burst("20ms", "2ms")),
    "weight": (tuple(Job(pattern, 0, "weight", weight=weight) for weight in (1, 2, 4)) for pattern in ("2ms", "mixed")),
    "priority": (_online("2ms"), _online("20ms")),
    "ceiling": ((Job("2ms", 10, "burst", ceiling=60),),),
}


def _spans(online: Track, record: Record) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Between its turns: where it works, and where it rests."""
    works = [(t + 0.5 * SECOND, t + TURN * SECOND) for t in online.client["turns"]]
    rests = [(t + (TURN + 0.5) * SECOND, t + 2 * TURN * SECOND) for t in online.client["turns"]]
    return [one for one in works if one[1] <= record.end], [one for one in rests if one[1] <= record.end]


def _judge_priority(record: Record, switch_ns: int) -> Iterator[Finding]:
    """
    How much online and offline pods get of the card in their turns.

    Idle is what is left of it: changing between the three offline pods takes time that nobody can have.
    """
    kept, used = {}, {}
    for card in sorted({track.card for track in record.tracks}):
        online, *offline = [track for track in record.tracks if track.card == card]
        works, rests = _spans(online, record)
        rests = rests[1:]  # costs are learnt first
        label = offline[0].job.pattern
        kept[label] = fmean(online.share(b, e) for b, e in works)
        used[label] = fmean(
            sum(track.share(b, e) for track in offline) / judge.usable(offline, b, e, switch_ns) for b, e in rests
        )
    yield Finding("online beside three offline", "%", min(kept.values()), 95, least=True, each=kept)
    yield Finding("offline, of what is idle", "%", min(used.values()), 90, least=True, each=used)


def _judge_whole(record: Record, name: str, bar: float) -> Finding:
    """
    How far the mean of the whole run lies from the ceiling, or from the promise where there is none.

    Of a window's own error, kernels of 2 ms that its borders cut make 0.05 points of a second and 0.003 of a run.
    """
    shares = [(track.share(record.begin + SKIPPED, record.end), track.job) for track in record.tracks]
    return Finding(name, "points", max(abs(share - (job.ceiling or job.core)) for share, job in shares), bar)


def findings(record: Record, switch_ns: int) -> Iterator[tuple[str, Finding]]:
    """What the record says of each policy."""
    for name, numbers in _numbered().items():
        mine = replace(record, tracks=[track for track in record.tracks if track.card in numbers])
        match name:
            case "fixed":
                found = [_judge_whole(mine, "from the promise", 0.1), next(judge.windows(mine))]
            case "burst":
                found = list(judge.burst(mine))
            case "weight":
                found = list(judge.weights(mine, switch_ns))
            case "priority":
                found = list(_judge_priority(mine, switch_ns))
            case _:
                found = [_judge_whole(mine, "alone, from its ceiling", 2)]
        yield from ((name, one) for one in found)


def _numbered() -> dict[str, range]:
    """Numbers of the cards of each policy."""
    made, at = {}, 0
    for name, cards in ALL.items():
        made[name] = range(at, at + len(cards))
        at += len(cards)
    return made


ALL: Final = {name: tuple(cards) for name, cards in CARDS.items()}


@contextmanager
def _plane(folder: Path) -> Iterator[Any]:
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    plane = import_module("e2e.plane").ControlPlane(programs, folder)
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()


def _one(plane: Any, client: Path, seed: int, *, realtime: bool) -> tuple[Record, list[tuple[str, Finding]]]:
    settings = draw(seed)
    cards = [jobs for some in ALL.values() for jobs in some]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        record = asyncio.run(
            pods.run(
                plane, Path(folder), client, cards, seconds=SECONDS, settings=settings, seed=seed, realtime=realtime
            )
        )
    return record, list(findings(record, settings["switch_ns"]))


def _disturbed(record: Record) -> str:
    """Why the machine, not the limiter, may have missed a bar."""
    starved = max(track.client["starved_ns"] for track in record.tracks) / (record.end - record.begin)
    if starved > fairness.STARVED:
        return f"a job stood without a CPU for {100 * starved:.0f} % of its time"
    return f"the agent wrote {record.late:.1f} s late" if record.late > pods.LATEST else ""


def _tell(done: Sequence[list[tuple[str, Finding]]]) -> None:
    click.echo(f"\n{'policy':10}{'value':34}{'bar':>10}{'median':>10}{'worst':>10}{'met':>9}")
    for at, (name, first) in enumerate(done[0]):
        values = [one[at][1].value for one in done]
        worst = min(values) if first.least else max(values)
        met = sum(one[at][1].met for one in done)
        bar = f"{'>=' if first.least else '<='} {first.bar:g} {first.unit}"
        click.echo(f"{name:10}{first.name:34}{bar:>12}{median(values):>9.2f}{worst:>10.2f}{met:>6}/{len(done)}")


@click.command()
@click.option("--draws", default=3, show_default=True, type=click.IntRange(1), help="Random nodes.")
@click.option("--seed", default=0, show_default=True, help="First draw.")
@click.option("--realtime/--no-realtime", default=True, help="Before other work of this machine, where we may.")
@click.option("--json", "json_out", type=click.Path(path_type=Path), metavar="FILE", help="Whole runs.")
def main(draws: int, seed: int, *, realtime: bool, json_out: Path | None) -> None:
    """Figures for the bars of the compute policies of pods: median and worst over random nodes."""
    if realtime:
        hurry(20)
    done: list[list[tuple[str, Finding]]] = []
    whole: list[dict[str, Any]] = []
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with tempfile.TemporaryDirectory() as home, _plane(Path(home)) as plane:
        client = fairness.client(Path(home))
        for number in range(seed, seed + draws):
            for _ in range(TRIES):
                record, found = _one(plane, client, number, realtime=realtime)
                disturbed = _disturbed(record)
                if not disturbed or all(one.met for _, one in found):
                    break
            done.append(found)
            words = "; ".join(f"{name}: {one.text}" for name, one in found)
            click.echo(f"draw {number}: {words}" + (f" ({disturbed})" if disturbed else ""))
            tracks = [asdict(track) for track in record.tracks] if json_out else []
            whole.append({"seed": number, "parameters": draw(number), "disturbed": disturbed, "tracks": tracks})
    _tell(done)
    if json_out:
        json_out.write_text(json.dumps(whole))
    sys.exit(not all(one.met for found in done for _, one in found))


if __name__ == "__main__":
    main()
