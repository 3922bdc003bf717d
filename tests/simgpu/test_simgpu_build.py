# SPDX-License-Identifier: Apache-2.0
"""The simulated driver's C under the compiler's own eyes, and killed after any instruction."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.compiled import gcc

import isolation.simgpu
from isolation.simgpu.hardware import LIBRARIES

PACKAGE = Path(isolation.simgpu.__file__).parent
STRICT = ["-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wvla", "-fvisibility=hidden"]
FOLDERS = ["cuda", "nvml"]
STRIDE = 997
"""Instructions from one kill to the next; `--budget` divides it."""


def sources(folder: str) -> list[Path]:
    """The C files of one library."""
    shared = [path for path in (PACKAGE / "driver/hw").glob("*.c") if path.name != "tool.c"]
    return sorted([*shared, *(PACKAGE / "driver" / folder).glob("*.c")])


@pytest.mark.sanitizer
@pytest.mark.parametrize("folder", FOLDERS)
def test_it_compiles_without_a_warning(folder):
    """
    Every warning is an error here.
    """
    beside = [PACKAGE / "driver" / name for name in ("hw", folder)]

    assert gcc("library.so", sources(folder), *STRICT, "-O1", "-lpthread", "-ldl", beside=beside).is_file()


@pytest.mark.parametrize("operation", ["large", "small", "pool", "vmm"])
def test_a_kill_after_any_instruction_leaves_nothing(operation, make_box, budget):
    """
    Allocate and free under single-step, killed after instructions across the whole path: the card's
    records are at 0 again each time, and its lock is free.
    """
    box = make_box()
    program = gcc("step", [Path(__file__).with_name("step.c")], "-std=c11", "-O1", "-ldl")
    done = subprocess.run(
        [
            program,
            LIBRARIES / "libcuda.so.1",
            PACKAGE / "_hardware.so",
            box.path,
            operation,
            os.environ.get("STRIDE", str(max(1, STRIDE // budget))),
        ],
        env={**os.environ, "GPUSHARE_SIMGPU": str(box.path)},
        capture_output=True,
        text=True,
        timeout=250 * budget,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.endswith("wrong 0\n")
