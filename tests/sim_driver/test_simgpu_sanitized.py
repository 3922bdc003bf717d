"""
The simulated driver under AddressSanitizer and UndefinedBehaviorSanitizer, used by several threads.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import isolation.simgpu

DRIVER = Path(isolation.simgpu.__file__).parent / "driver"
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """A folder with the sanitized libcuda.so.1."""
    folder = tmp_path_factory.mktemp("sanitized")
    sources = [path for path in (DRIVER / "hw").glob("*.c") if path.name != "tool.c"]
    sources += (DRIVER / "cuda").glob("*.c")
    shared = ["-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    command = ["gcc", *SANITIZED, *shared, "-o", folder / "libcuda.so.1", *sources, "-lpthread", "-ldl", "-lm"]
    subprocess.run(command, check=True)
    return folder


def test_it_is_clean_under_sanitizers(driver, make_box, tmp_path):
    """
    Every family of memory, and modules, streams, events, graphs, contexts and bad arguments: no report.
    """
    source, target = Path(__file__).with_name("exercise.c"), tmp_path / "exercise"
    link = [f"-L{driver}", "-Wl,--no-as-needed", "-l:libcuda.so.1", "-lpthread"]
    subprocess.run(["gcc", "-std=gnu11", *SANITIZED, "-o", target, source, *link], check=True)
    # what a driver remembers for as long as the process lives is no leak
    env = {"ASAN_OPTIONS": "detect_leaks=0", "LD_LIBRARY_PATH": str(driver), "GPUSHARE_SIMGPU": str(make_box().path)}
    done = subprocess.run(
        [target, "2", "3"], env=os.environ | env, capture_output=True, text=True, timeout=120, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert int(done.stdout.split()[0]) > 20
