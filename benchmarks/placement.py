# SPDX-License-Identifier: Apache-2.0
"""
How well and how fast pods are placed: packing against the published figures, cost of one decision.

Prints medians and ratios, keeps whole runs in `--json`. Never a test: speed depends on the
machine, and figures of derived variants are approximations (see `variants`).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from benchmarks import ROOT
from benchmarks.trace_variants import VARIANTS, derive, divide_tenth
from isolation.contract.model import Placement, Slice
from isolation.placement.engine import Engine
from isolation.simulator.sim import report
from isolation.simulator.sim.parallel import count_cores, replay_all
from isolation.simulator.sim.replay import KINDS, ReplayJob, Run, Trace
from isolation.simulator.traces import openb, synthetic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.model import Node, Request

TRACES: Final = ROOT.parent / "shared" / "traces"
DEFAULT: Final = "default"
SYNTHETIC: Final = "synthetic"
DEMAND: Final = 1.3
SEEDS: Final = tuple(range(42, 52))
POLICIES: Final = ("potential", "fgd", "best-fit")
# Allocated % at 130 % arrived demand, mean of 10 seeds, (best-fit, FGD) as published:
# hkust-adsl/kubernetes-scheduler-simulator, experiments/analysis/expected_results,
# analysis_allo_discrete.csv.
PUBLISHED: Final = {
    "default": (93.1, 95.39),
    "cpu050": (93.8, 95.21),
    "cpu100": (93.4, 95.35),
    "cpu200": (92.4, 95.05),
    "cpu250": (91.5, 93.41),
    "gpushare40": (91.7, 94.15),
    "gpushare60": (89.4, 91.40),
    "gpushare80": (87.0, 89.31),
    "gpushare100": (85.0, 86.90),
    "gpuspec10": (93.3, 94.95),
    "gpuspec20": (93.3, 94.84),
    "gpuspec25": (93.2, 94.74),
    "gpuspec33": (93.1, 94.55),
    "multigpu20": (93.9, 95.65),
    "multigpu30": (94.7, 96.46),
    "multigpu40": (95.2, 96.99),
    "multigpu50": (95.7, 97.18),
}
PUBLISHED_GPUSPEC33_FULL: Final = 87.8
"""FGD on gpuspec33 at 100 % arrived demand, same source."""
CARDS: Final = 8
LEVEL: Final = 0.85
"""How full the fleet of a single decision is: full enough that most nodes matter, with room left."""
PARTS: Final = ("runs", "decision", "growth", "mig", "variants")
GROWTH: Final = (100, 300, 1000, 3000, 10000)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS))
@click.option("--seeds", default=len(SEEDS), show_default=True, type=click.IntRange(1, len(SEEDS)), help="From 42 on.")
@click.option("--workers", default=None, type=click.IntRange(1), help="Processes; by default one for each core.")
@click.option("--json", "json_out", metavar="OUT", help="Whole runs and all figures as JSON.")
@click.option(
    "--traces",
    default=TRACES,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Lists of the openb trace: openb_node_list_gpu_node.csv, openb_pod_list_*.csv.",
)
def main(parts: tuple[str, ...], seeds: int, workers: int | None, json_out: str | None, traces: Path) -> None:
    """Packing and speed of the placement engine; all parts unless --part says which."""
    chosen = SEEDS[:seeds]
    lists = _lists(traces)
    main_list = lists.get(DEFAULT) or lists[SYNTHETIC]
    found: dict[str, Any] = {}
    for part in parts or PARTS:
        if part == "runs":
            found[part] = runs(main_list, chosen, workers or count_cores())
        elif part == "decision":
            found[part] = decision(5000, main_list.requests)
        elif part == "growth":
            found[part] = growth(main_list.requests)
        elif part == "mig":
            found[part] = divided(main_list, chosen, workers or count_cores())
        else:
            found[part] = variants(lists, chosen, workers or count_cores())
    if json_out:
        Path(json_out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _lists(traces: Path) -> dict[str, Trace]:
    """The pod lists that are at hand, on the fleet of GPU nodes; without the trace, a synthetic default."""
    fleet, default = traces / "openb_node_list_gpu_node.csv", traces / "openb_pod_list_default.csv"
    if not fleet.is_file() or not default.is_file():
        print(f"no {fleet.name} with {default.name} in {traces} (--traces DIR): a synthetic workload stands in")
        return {SYNTHETIC: Trace(synthetic.nodes(), tuple(pod.request for pod in synthetic.pods()))}
    nodes = openb.read_nodes(fleet)
    return {
        path.stem.removeprefix("openb_pod_list_"): Trace(nodes, tuple(pod.request for pod in openb.read_pods(path)))
        for path in sorted(traces.glob("openb_pod_list_*.csv"))
    }


def runs(trace: Trace, seeds: Sequence[int], workers: int) -> dict[str, Any]:
    """One run alone, then all seeds over all cores, by wall clock with processes started."""
    print(f"\n== one run and {len(seeds)} seeds of the default trace at {DEMAND:.0%} ({workers} workers)")
    (alone,) = replay_all(trace, [ReplayJob("potential", seeds[0], DEMAND)], 1)
    print(f"one run, alone: {alone.seconds:.2f} s of placing for {alone.placed + alone.failed} pods")
    started = time.perf_counter()
    all_runs = list(replay_all(trace, [ReplayJob("potential", seed, DEMAND) for seed in seeds], workers))
    wall = time.perf_counter() - started
    (found,) = report.summarise(all_runs)
    print(f"{len(seeds)} seeds: {wall:.1f} s in all, {found.seconds_median:.2f} s median of placing per run")
    print(f"allocated {100 * found.allocated_ratio_mean:.2f} % ± {100 * found.allocated_ratio_std:.2f}")
    return {"wall_seconds": wall, "alone_seconds": alone.seconds, **report.as_json(all_runs)}


def decision(count: int, mix: Sequence[Request]) -> dict[str, float]:
    """One decision on a busy fleet: warm while pods come and go, and cold, when nothing is remembered."""
    print(f"\n== one decision at {count:,} nodes x {CARDS} cards, {LEVEL:.0%} full")
    warm, cold = _decide(count, mix, 3000, 40)
    found = {
        "warm_median_ms": median(warm),
        "warm_p99_ms": quantiles(warm, n=100)[98],
        "cold_median_ms": median(cold),
        "cold_worst_ms": max(cold),
    }
    print("  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return found


def growth(mix: Sequence[Request]) -> list[dict[str, float]]:
    """How the cost of a decision grows with the fleet; exponent 1 is proportional."""
    print(f"\n== growth from {GROWTH[0]:,} to {GROWTH[-1]:,} nodes x {CARDS} cards")
    rows = []
    for count in GROWTH:
        warm, cold = _decide(count, mix, 1000, 15)
        rows.append({"nodes": float(count), "warm_median_ms": median(warm), "cold_median_ms": median(cold)})
        print(f"{count:>7,} nodes: warm {rows[-1]['warm_median_ms']:.3f} ms, cold {rows[-1]['cold_median_ms']:.2f} ms")
    for name in ("warm_median_ms", "cold_median_ms"):
        slope = np.polyfit(np.log([row["nodes"] for row in rows]), np.log([row[name] for row in rows]), 1)[0]
        print(f"{name} grows with nodes to the power of {slope:.2f}")
    return rows


def _decide(count: int, mix: Sequence[Request], warm: int, cold: int) -> tuple[list[float], list[float]]:
    """Milliseconds of decisions, each followed by a hold and by another pod's end."""
    random = np.random.Generator(np.random.PCG64(count))
    nodes = [openb.make_node(f"n{i}", 96000, 393216, CARDS, "G2") for i in range(count)]
    engine = Engine(nodes)
    queue = [mix[i] for i in random.integers(len(mix), size=2000 + warm + cold).tolist()]
    for request in queue:
        engine.arrive(request)
    uids = _fill(engine, nodes, mix, random)
    timed: list[float] = []
    for number, request in enumerate(queue[: 2000 + warm]):
        started = time.perf_counter()
        outcome = engine.place(request)
        timed.append(1000 * (time.perf_counter() - started))
        if isinstance(outcome, Placement):
            uids.append(f"new-{number}")
            engine.hold(uids[-1], request, outcome)
            # A pod ends for every pod that comes: the fleet stays as full as it was.
            end = int(random.integers(len(uids)))
            uids[end], uids[-1] = uids[-1], uids[end]
            engine.release(uids.pop())
    frozen = []
    for request in queue[2000 + warm :]:
        twin = engine.fork()
        started = time.perf_counter()
        twin.place(request)
        frozen.append(1000 * (time.perf_counter() - started))
    return timed[2000:], frozen


def _fill(engine: Engine, nodes: Sequence[Node], mix: Sequence[Request], random: np.random.Generator) -> list[str]:
    """Fill every node to about `LEVEL` with single-card pods of the mix, first fit within the node."""
    single = [request for request in mix if request.cards == 1]
    uids: list[str] = []
    for node in nodes:
        free, cpu, memory = [card.allocatable_bytes for card in node.cards], node.cpu_milli, node.memory_bytes
        floor = (1 - LEVEL) * sum(free)
        for at in random.integers(len(single), size=40).tolist():
            request = single[at]
            fitting = [i for i, left in enumerate(free) if left >= request.card_bytes]
            short = cpu < request.cpu_milli or memory < request.memory_bytes
            if not fitting or short or sum(free) - request.card_bytes < floor:
                continue
            card = node.cards[fitting[0]]
            free[fitting[0]] -= request.card_bytes
            cpu, memory = cpu - request.cpu_milli, memory - request.memory_bytes
            uids.append(f"old-{len(uids)}")
            slices = (Slice(card.uuid, card.index, request.card_bytes),)
            engine.hold(uids[-1], request, Placement(node.name, slices))
    return uids


def divided(trace: Trace, seeds: Sequence[int], workers: int) -> dict[str, Any]:
    """The same pods on the fleet as it is, and with a tenth of its nodes divided by MIG."""
    fleets = {"whole": trace, "divided": Trace(divide_tenth(trace.nodes), trace.requests)}
    instances = sum(card.instance is not None for node in fleets["divided"].nodes for card in node.cards)
    print(f"\n== a tenth of the nodes divided into {instances:,} MIG instances, {DEMAND:.0%}, {len(seeds)} seeds")
    jobs = [ReplayJob(policy, seed, DEMAND) for policy in POLICIES for seed in seeds]
    found = {}
    for name, fleet in fleets.items():
        all_runs = list(replay_all(fleet, jobs, workers))
        for one in report.summarise(all_runs):
            kinds = " ".join(f"{kind} {ratio:.1%}" for kind, ratio in zip(KINDS, one.accepted, strict=True) if ratio)
            print(f"{name:<8}{one.policy:<10} allocated {100 * one.allocated_ratio_mean:.2f} %, accepted: {kinds}")
        found[name] = report.as_json(all_runs)
    return found


def variants(lists: dict[str, Trace], seeds: Sequence[int], workers: int) -> list[dict[str, Any]]:
    """Every variant under every policy, beside what was published for it."""
    if SYNTHETIC in lists:
        print("\n== variants skipped: the published figures are about the trace, which is not there")
        return []
    print(f"\n== allocated % at {DEMAND:.0%}, mean of {len(seeds)} seeds; * derived list, an approximation")
    print(
        f"{'variant':<13}{'best-fit':>15}{'fgd':>15}{'potential':>11}{'- fgd publ.':>13}{'cpu-only':>14}{'multi':>13}"
    )
    rows, gains = [], []
    default = lists[DEFAULT]
    donors = [request for trace in lists.values() for request in trace.requests]
    for name in VARIANTS:
        try:
            trace = lists.get(name) or Trace(default.nodes, derive(name, default.requests, donors))
        except ValueError as exc:
            print(f"{name:<13} skipped: {exc}")
            continue
        jobs = [ReplayJob(policy, seed, DEMAND) for policy in POLICIES for seed in seeds]
        all_runs = list(replay_all(trace, jobs, workers))
        gains.append(_print_variant(name, all_runs, exact=name in lists))
        rows.append({"variant": name, "derived": name not in lists, **report.as_json(all_runs)})
        if name == "gpuspec33":
            full = list(
                replay_all(trace, [ReplayJob(policy, seed, 1.0) for policy in POLICIES[:2] for seed in seeds], workers)
            )
            mean = {found.policy: 100 * found.allocated_ratio_mean for found in report.summarise(full)}
            ours = f"potential {mean['potential']:.2f}, fgd {mean['fgd']:.2f}"
            print(f"  at 100 %: {ours}, published fgd {PUBLISHED_GPUSPEC33_FULL}")
            rows.append({"variant": name, "derived": name not in lists, **report.as_json(full)})
    print(f"potential above published FGD: least {min(gains):+.2f}, mean {fmean(gains):+.2f} points")
    return rows


def _print_variant(name: str, all_runs: Sequence[Run], *, exact: bool) -> float:
    """One line of the comparison; the gain over published FGD in points."""
    by = {found.policy: found for found in report.summarise(all_runs)}
    mine = {policy: 100 * found.allocated_ratio_mean for policy, found in by.items()}
    best, fgd = PUBLISHED[name]
    gain = mine["potential"] - fgd

    def kinds(at: int) -> str:
        ratios = (by[policy].accepted[at] for policy in ("potential", "fgd"))
        return "/".join("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)

    print(
        f"{name + ('' if exact else '*'):<13}{mine['best-fit']:>8.2f}/{best:<6}{mine['fgd']:>8.2f}/{fgd:<6}"
        f"{mine['potential']:>10.2f}{gain:>+12.2f}{kinds(0):>14}{kinds(3):>13}",
        flush=True,
    )
    return gain


if __name__ == "__main__":
    main()
