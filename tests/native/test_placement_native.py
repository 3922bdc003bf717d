# SPDX-License-Identifier: Apache-2.0
"""The native placement code under the compiler's own eyes: warnings as errors, ASan and UBSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "isolation" / "placement" / "native"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wvla", "-I", str(NATIVE)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["address,undefined", "undefined"])
def test_random_fleets_stay_consistent_under_the_sanitizers(sanitizer, tmp_path):
    """
    Every entry point with random fleets, mixes and pods: no finding, and what is taken comes back.
    """
    program = tmp_path / "fuzz"
    sources = [*sorted(NATIVE.glob("*.c")), Path(__file__).with_name("placement_fuzz.c")]
    flags = ["-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *STRICT, *flags, "-o", str(program), *map(str, sources), "-lm"], check=True)

    for seed in (1, 2, 3):
        done = subprocess.run([program, str(seed), "200"], capture_output=True, text=True, check=False, timeout=300)
        assert ("ok\n", "") == (done.stdout, done.stderr)
