"""
Is a decision quick enough for a large fleet? Seconds of one full pass and memory, beside their bars.

    python benchmarks/autoscaler.py
    python benchmarks/autoscaler.py --json figures.json

Never a test: it takes a minute. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent)]  # this file has the name of the package that it measures
sys.path.append(str(HERE))

from autoscaler_pass import main

if __name__ == "__main__":
    main()
