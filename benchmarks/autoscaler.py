# SPDX-License-Identifier: Apache-2.0
"""
Is a decision quick enough for a large fleet? Seconds of one full pass and memory, beside their bars.

    python benchmarks/autoscaler.py
    python benchmarks/autoscaler.py --part kube
    python benchmarks/autoscaler.py --part rpc
    python benchmarks/autoscaler.py --part handover
    python benchmarks/autoscaler.py --json figures.json

Never a test: it takes a minute. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent)]  # this file has the name of the package that it measures
sys.path.append(str(HERE))

import autoscaler_handover
import autoscaler_kube
import autoscaler_pass
import autoscaler_rpc
import click

PARTS = {"pass": autoscaler_pass, "kube": autoscaler_kube, "rpc": autoscaler_rpc, "handover": autoscaler_handover}


@click.command()
@click.option("--part", type=click.Choice(tuple(PARTS)), default="pass", show_default=True, help="What is measured.")
@click.option("--one", hidden=True)
@click.option("--json", "json_out", type=click.Path(path_type=Path), metavar="FILE", help="All figures.")
def main(part: str, one: str | None, json_out: Path | None) -> None:
    """Seconds of a decision (pass), of a turn on Kubernetes (kube), for cluster-autoscaler (rpc, handover)."""
    measured = PARTS[part]
    if one:
        measured.measure(one)
    else:
        sys.exit(not measured.compared(json_out))


if __name__ == "__main__":
    main()
