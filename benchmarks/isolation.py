# SPDX-License-Identifier: Apache-2.0
"""
Is the isolation library fair and cheap? The figures of each bar, on simulated and fake drivers.

    python benchmarks/isolation.py                       # both parts, three draws
    python benchmarks/isolation.py --part fair --draws 20 --json runs.json
    python benchmarks/isolation.py --part fair --scenario burst --scenario weights

`fair`: jobs under the library on simulated cards, fed as `gpushare run` feeds; the simulator's own books
judge. `cost`: what the library adds to a call. Never a test: it takes minutes, and real-time priority where
it may. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent)]  # this file has the name of the package that it measures
sys.path.append(str(HERE))

from bars import main

if __name__ == "__main__":
    main()
