# SPDX-License-Identifier: Apache-2.0
"""
Measurements of speed, packing and fairness: `python -m benchmarks.NAME` from the root of the tree.

Some of them need what the tests have (a real control plane, a stand-in kubelet, the simulator of interleavings), whose
modules are found from the folder `tests` and nowhere else.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
