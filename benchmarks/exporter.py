# SPDX-License-Identifier: Apache-2.0
"""
What the exporter costs a node: samples, the time of a scrape, of a turn as pods grow, memory over a day.

    python benchmarks/exporter.py                        # every part, about five minutes
    python benchmarks/exporter.py --quick                # a first look
    python benchmarks/exporter.py --part scrape --json runs.json

The sources answer from memory (`recorded`); everything behind them is what a node runs. Never a test: speed
depends on the machine. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent)]  # this file has the name of the package that it measures
sys.path.append(str(HERE))

from exporter_bars import main

if __name__ == "__main__":
    main()
