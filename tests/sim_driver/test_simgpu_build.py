"""The simulated driver's C under the compiler's own eyes, and killed after any instruction."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import isolation.simgpu
from isolation.simgpu.hardware import LIBRARIES

PACKAGE = Path(isolation.simgpu.__file__).parent
STRICT = ["-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wvla", "-fvisibility=hidden"]
FOLDERS = ["cuda", "nvml"]


def sources(folder: str) -> list[str]:
    """The C files of one library."""
    shared = [path for path in (PACKAGE / "driver/hw").glob("*.c") if path.name != "tool.c"]
    return sorted(map(str, [*shared, *(PACKAGE / "driver" / folder).glob("*.c")]))


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_compiles_without_a_warning(folder, tmp_path):
    """
    Every warning is an error here.
    """
    command = ["gcc", *STRICT, "-O1", "-o", str(tmp_path / "library.so"), *sources(folder), "-lpthread", "-ldl"]

    assert 0 == subprocess.run(command, check=False).returncode


@pytest.mark.parametrize("operation", ["large", "small", "pool", "vmm"])
def test_a_kill_after_any_instruction_leaves_nothing(operation, make_box, tmp_path):
    """
    Allocate and free under single-step, killed after instructions across the whole path: the card's
    books are at 0 again each time, and its lock is free.
    """
    box, program = make_box(), tmp_path / "step"
    subprocess.run(["gcc", "-std=c11", "-O1", "-o", program, Path(__file__).with_name("step.c"), "-ldl"], check=True)
    done = subprocess.run(
        [
            program,
            LIBRARIES / "libcuda.so.1",
            PACKAGE / "_hardware.so",
            box.path,
            operation,
            os.environ.get("STRIDE", "257"),
        ],
        env={**os.environ, "GPUSHARE_SIMGPU": str(box.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.endswith("wrong 0\n")
