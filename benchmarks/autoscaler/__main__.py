# SPDX-License-Identifier: Apache-2.0
"""
Is a decision quick enough for a large fleet? Seconds of one full pass and memory, beside their bars.

    python -m benchmarks.autoscaler
    python -m benchmarks.autoscaler --part kube
    python -m benchmarks.autoscaler --part rpc
    python -m benchmarks.autoscaler --part handover
    python -m benchmarks.autoscaler --json figures.json

Never a test: it takes a minute. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.autoscaler import decision, handover, reconcile, rpc

PARTS = {"pass": decision, "kube": reconcile, "rpc": rpc, "handover": handover}


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
