# SPDX-License-Identifier: Apache-2.0
"""
What a person is told of a command that the preload library does not reach.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.run import preload_check

EVERYWHERE = {"PATH": os.environ["PATH"]}
OURS = preload_check._own_architecture()


def compiled(target: Path, *flags: str, compiler: str = "gcc") -> str:
    """A program that does nothing."""
    source = target.with_suffix(".c")
    source.write_text("int main(void) { return 0; }")
    subprocess.run([compiler, "-o", target, source, *flags], check=True)
    return str(target)


def test_dynamic_programs_are_reached(tmp_path):
    """
    No word about Python, a shell, or a program that was just compiled; nor about what is not there.
    """
    names = (sys.executable, "sh", compiled(tmp_path / "plain"), "no-such-program", "/dev/null", str(tmp_path))

    assert [""] * len(names) == [preload_check.find_warning((name,), EVERYWHERE) for name in names]


@pytest.mark.parametrize("flags", [("-static",), ("-static-pie",)])
def test_a_static_program_is_reported(tmp_path, flags):
    """
    It never asks a loader for anything.
    """
    assert "is statically linked" in preload_check.find_warning((compiled(tmp_path / "static", *flags),), EVERYWHERE)


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="musl-gcc is not installed (apt-get install musl-tools)")
def test_a_program_of_another_c_library_is_reported(tmp_path):
    """
    NVIDIA's driver needs glibc; what a musl program does with a card goes another way.
    """
    assert "uses musl libc" in preload_check.find_warning(
        (compiled(tmp_path / "musl", compiler="musl-gcc"),), EVERYWHERE
    )


def test_scripts_are_followed_to_the_program_that_runs_them(tmp_path):
    """
    Through `#!`, also with `env`, and no further than the kernel would.
    """
    static = compiled(tmp_path / "static", "-static")
    for name, line in {"one": static, "two": "/usr/bin/env -S static", "loop": str(tmp_path / "loop")}.items():
        (tmp_path / name).write_text(f"#!{line}\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    warnings = [preload_check.find_warning((name,), path) for name in ("one", "two", "loop")]

    assert [True, True, False] == ["is statically linked" in text for text in warnings]


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_looked_at_without_harm(raw, elf):
    """
    A header that lies is nobody's program: a sentence or none, never an exception.
    """
    head = Path(sys.executable).read_bytes()[:20] + raw if elf else raw

    assert isinstance(preload_check.explain_unloadable(head, OURS), str)
    assert isinstance(preload_check._interpreter(head), str)
