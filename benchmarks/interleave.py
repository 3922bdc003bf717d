# SPDX-License-Identifier: Apache-2.0
"""
The proof of Zero: thousands of random interleavings of schedulers, agents, kubelets, runtimes, an API server.

    python -m benchmarks.interleave --runs 10000 --json out.json     # as it is
    python -m benchmarks.interleave --runs 2000 --rule bought        # with places kept on nodes to come
    python -m benchmarks.interleave --seed 42 --trace                # one of them, step by step

The simulator is tests/interleave; what is real in it, and what is not, is docs/proof.md. Prints what was
found by kind, and what went wrong how often. Exit status 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIRST_SEED = 100_000
"""Away from the small seeds that the tests run."""
HASH_SEED = "0"
"""The order within a set is part of an interleaving: a seed is the same story in every process."""
CHUNK = 8
CHUNKS_PER_PROCESS = 25
"""What is cut off in the middle of something is never quite given back: after so many a fresh process goes on."""
SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="how many interleavings")
    parser.add_argument("--seed", type=int, help="this one alone, or the first of --runs")
    parser.add_argument("--rule", choices=("ours", "bought"), default="ours")
    parser.add_argument("--trace", action="store_true", help="every step of one seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so long, however many there were"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    asked = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (this very command again)
    if asked.trace:
        return _one(asked.rule, asked.seed if asked.seed is not None else FIRST_SEED)
    runs = asked.runs
    first = asked.seed if asked.seed is not None else FIRST_SEED
    tally = Tally(asked.rule, first, runs)
    with multiprocessing.get_context("spawn").Pool(asked.processes, _pin, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
        for results in pool.imap_unordered(_some, _chunks(asked.rule, first, runs)):
            tally.add(results)
            tally.progress()
            if tally.seconds() >= asked.seconds:
                break
    tally.report()
    if asked.json:
        asked.json.write_text(json.dumps(tally.figures(), indent=2) + "\n")
    return 1 if tally.kinds else 0


class Tally:
    """What has been seen so far."""

    def __init__(self, rule: str, first: int, wanted: int) -> None:
        self.rule, self.first, self.wanted = rule, first, wanted
        self.done = self.steps = 0
        self.count: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.longest: dict[str, float] = {}
        self.bad: list[tuple[int, float, str, str]] = []
        self.bad_runs = 0
        self._began = time.monotonic()

    def add(self, results: list[dict[str, Any]]) -> None:
        """Some more runs."""
        for one in results:
            self.done += 1
            self.steps += one["steps"]
            self.count.update(one["count"])
            self.bad_runs += bool(one["findings"])
            for name, seconds in one["longest"].items():
                self.longest[name] = max(self.longest.get(name, 0.0), seconds)
            for moment, kind, text in one["findings"]:
                self.kinds[kind] += 1
                self.bad.append((one["seed"], moment, kind, text))
                if len(self.bad) <= SHOWN:
                    _overwrite("")
                    print(f"seed {one['seed']} at {moment:.1f} s: {kind}: {text}", flush=True)

    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def progress(self) -> None:
        """One line that is overwritten."""
        pace = self.done / self.seconds()
        _overwrite(f"{self.done}/{self.wanted} runs, {pace:.1f}/s, found {dict(self.kinds)}")

    def figures(self) -> dict[str, Any]:
        """For a file."""
        return {
            "rule": self.rule,
            "first_seed": self.first,
            "runs": self.done,
            "steps": self.steps,
            "seconds": round(self.seconds(), 1),
            "findings": dict(self.kinds),
            "runs_with_findings": self.bad_runs,
            "events": dict(sorted(self.count.items())),
            "longest_seconds": {name: round(seconds, 3) for name, seconds in sorted(self.longest.items())},
            "seeds": sorted({seed for seed, *_ in self.bad})[:1000],
        }

    def report(self) -> None:
        """For people."""
        _overwrite("")
        print(f"{self.done} interleavings, {self.steps} steps, rule {self.rule}")
        for name, number in sorted(self.count.items()):
            print(f"  {name:24} {number}")
        for name, seconds in sorted(self.longest.items()):
            print(f"  longest {name:16} {seconds:.3f} s")
        print(f"found in {self.bad_runs} runs: {dict(self.kinds) or 'nothing'}")
        for seed in sorted({seed for seed, *_ in self.bad})[:SHOWN]:
            print(f"  python -m benchmarks.interleave --rule {self.rule} --seed {seed} --trace")


def _overwrite(text: str) -> None:
    """The progress, on a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _chunks(rule: str, first: int, runs: int) -> Iterator[tuple[str, int, int]]:
    for seed in range(first, first + runs, CHUNK):
        yield rule, seed, min(CHUNK, first + runs - seed)


def _pin() -> None:
    """One processor per process: threads that hand one baton around are several times as fast on one."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[os.getpid() % len(usable)]})


def _some(chunk: tuple[str, int, int]) -> list[dict[str, Any]]:
    rule, first, many = chunk
    run, case = _simulator()
    logging.disable(logging.CRITICAL)
    results = (run.play(case.setup_of(rule, seed)) for seed in range(first, first + many))
    return [
        {
            "seed": one.seed,
            "steps": one.steps,
            "count": dict(one.count),
            "longest": one.longest,
            "findings": one.findings,
        }
        for one in results
    ]


def _one(rule: str, seed: int) -> int:
    run, case = _simulator()
    logging.disable(logging.CRITICAL)
    result = run.play(case.setup_of(rule, seed, trace=True))
    print("\n".join(result.trace))
    for moment, kind, text in result.findings:
        print(f"{moment:8.3f}  FOUND {kind}: {text}")
    print(f"seed {seed}: {len(result.findings)} findings in {result.steps} steps")
    return 1 if result.findings else 0


def _simulator() -> tuple[Any, Any]:
    """The modules of tests/interleave."""
    return import_module("interleave.run"), import_module("interleave.case")


if __name__ == "__main__":
    sys.exit(main())
