# SPDX-License-Identifier: Apache-2.0
"""
Modules of benchmarks/ for tests that do the same for a shorter time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = str(Path(__file__).resolve().parents[2] / "benchmarks")


def benchmark(name: str) -> ModuleType:
    """One of them. The folder does not stay on the path: a file there may be called like a package of ours."""
    before = list(sys.path)
    sys.path.append(FOLDER)
    try:
        return import_module(name)
    finally:
        sys.path[:] = before
