# SPDX-License-Identifier: Apache-2.0
"""
How well right-sizing recommends: fleets of 30 days walked forward, and a production trace.

    python -m benchmarks.rightsizing [--seeds 1,2,3] [--programs 100] [--trace FOLDER]

Prints, for our recommendations, VPA's and peak + 15 %: container-days with an OOM that the old promise would not have
had (bar: 0.1 %), the cut of the median of promise - p99 use (40 %), container-days with a recommendation (70 %), and
abstentions for greedy programs (95 %) and for others (at most 10 %).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from benchmarks.rightsizing.fleet import Mix, generate
from benchmarks.rightsizing.genai import load, replay
from benchmarks.rightsizing.replay import OurAdviser, PeakAdviser, VpaAdviser, walk

ADVISERS: Final = {"gpushare": OurAdviser, "VPA": VpaAdviser, "peak + 15 %": PeakAdviser}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--trace", type=Path, help="folder with memory_mib.csv.gz")
    given = parser.parse_args()
    print(
        "| seed | recommender | container-days | new OOMs | cut | recommended | greedy abstained | others abstained |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for seed in given.seeds.split(","):
        fleet = generate(int(seed), Mix(programs=given.programs))
        for name, adviser in ADVISERS.items():
            score = walk(fleet, adviser)
            print(
                f"| {seed} | {name} | {score.all_days} | {score.oom_ratio:.3%} ({score.new_ooms}) | {score.cut:.1%} "
                f"| {score.advised_ratio:.1%} | {score.greedy_ratio:.1%} | {score.others_abstained:.1%} |",
                flush=True,
            )
    if given.trace is not None:
        samples = load(given.trace)
        for by_replica in (False, True):
            found = replay(samples, by_replica=by_replica)
            print(f"{'by replica' if by_replica else 'by owner'}: {found}")


if __name__ == "__main__":
    main()
