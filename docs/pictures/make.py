# SPDX-License-Identifier: Apache-2.0
"""
The README's curve of a replay, drawn from the real thing: docs/pictures/packing.svg.

    python docs/pictures/make.py [NODES.csv PODS.csv]

Without a trace the curve is that of the synthetic workload. The live screen beside it is drawn by docs/draw_up.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def curve(*files: str) -> None:
    """Allocation against arrived demand, four policies."""
    given = ["--nodes", files[0], "--pods", files[1]] if files else ["--synthetic"]
    policies = ["--policy", "potential,fgd,best-fit,random", "--seeds", "42-51"]
    command = [sys.executable, "-m", "gpushare", "sim", *given, *policies, "--plot", str(HERE / "packing.svg")]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    curve(*sys.argv[1:3])
