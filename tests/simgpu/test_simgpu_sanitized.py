# SPDX-License-Identifier: Apache-2.0
"""
The simulated driver under AddressSanitizer and UndefinedBehaviorSanitizer, used by several threads.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.compiled import gcc

import isolation.simgpu

DRIVER = Path(isolation.simgpu.__file__).parent / "driver"
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def driver() -> Path:
    """A folder with the sanitized libcuda.so.1."""
    sources = [path for path in (DRIVER / "hw").glob("*.c") if path.name != "tool.c"]
    sources += (DRIVER / "cuda").glob("*.c")
    shared = ["-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    flags = [*SANITIZED, *shared, "-lpthread", "-ldl", "-lm"]
    return gcc("libcuda.so.1", sorted(sources), *flags, beside=[DRIVER / "hw", DRIVER / "cuda"]).parent


@pytest.mark.sanitizer
def test_it_is_clean_under_sanitizers(driver, make_box):
    """
    Every family of memory, and modules, streams, events, graphs, contexts and bad arguments: no report.
    """
    link = [f"-L{driver}", "-Wl,--no-as-needed", "-l:libcuda.so.1", "-lpthread"]
    target = gcc("exercise", [Path(__file__).with_name("exercise.c")], "-std=gnu11", *SANITIZED, *link)
    # what a driver remembers for as long as the process lives is no leak
    env = {"ASAN_OPTIONS": "detect_leaks=0", "LD_LIBRARY_PATH": str(driver), "GPUSHARE_SIMGPU": str(make_box().path)}
    done = subprocess.run(
        [target, "2", "3"], env=os.environ | env, capture_output=True, text=True, timeout=250, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert int(done.stdout.split()[0]) > 20
