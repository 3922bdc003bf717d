"""
The pictures in the README, drawn from the real thing: the live screen, and a replay's curve.

    python docs/pictures/make.py [NODES.csv PODS.csv]

Without a trace the curve is that of the synthetic workload.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console, Group

from autoscaler.sim.fleet import Embedded, demo_fleet, demo_limits, demo_workload
from dashboards.terminal.view import screen

HERE = Path(__file__).parent
WIDTH, HEIGHT = 110, 32
MOMENT = 500.0
"""Seconds into the demo: pools have grown, a pod waits, a node is being drained."""


def screenshot() -> None:
    """The demo's screen at one moment; the same seed draws the same picture."""
    fleet = Embedded(demo_fleet(), demo_workload(42), seed=42, limits=demo_limits())
    fleet.advance(MOMENT)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, height=HEIGHT, force_terminal=True, file=nowhere)
        console.print(Group(*screen(fleet.frame(), WIDTH, HEIGHT)))
    console.save_svg(str(HERE / "up.svg"), title="gpushare up")


def curve(*files: str) -> None:
    """Allocation against arrived demand, three policies."""
    given = ["--nodes", files[0], "--pods", files[1]] if files else ["--synthetic"]
    policies = ["--policy", "potential,fgd,best-fit,random", "--seeds", "42-51"]
    command = [sys.executable, "-m", "gpushare", "sim", *given, *policies, "--plot", str(HERE / "packing.svg")]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    screenshot()
    curve(*sys.argv[1:3])
