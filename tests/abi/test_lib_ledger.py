# SPDX-License-Identifier: Apache-2.0
"""
The ledger and the slots: exact through kills at every instruction, threads, forks and execs.
"""

from __future__ import annotations

import subprocess

import pytest

LEDGER = ("tests/kill.c", "src/ledger.c", "src/slot.c", "src/ring.c", "src/sys.c")
UNIT = ("tests/unit.c", *(f"src/{name}.c" for name in ("ledger", "ring", "limits", "bucket", "fork", "table", "sys")))


@pytest.fixture
def kill(c_program):
    """Run the killing program; its figures as a dict."""

    def run(*arguments: str) -> dict[str, int]:
        program = str(c_program("kill", *LEDGER))
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=3600, check=False)
        assert 0 == done.returncode, done.stdout
        words = done.stdout.split()
        return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}

    return run


def test_a_kill_at_any_instruction_of_a_step_leaves_the_records_right(kill):
    """Killed after each single instruction of a reserve and a refund: sums agree at once, nothing stays."""
    figures = kill("step")

    assert (0, 0) == (figures["wrong"], figures["left"])
    assert figures["boundaries"] > 100


def test_a_kill_while_a_slot_is_taken_leaves_it_free(kill):
    """Killed on the way to its slot, a process leaves a slot that the next one can have."""
    figures = kill("take", "211")

    assert (0, 0) == (figures["wrong"], figures["left"])


def test_kills_under_contention_leave_the_ledger_right(kill, budget):
    """Processes with several threads each, killed at random: no overshoot, sums agree, the rest is reaped."""
    figures = kill("storm", str(2 * budget), "6", "3")

    assert (0, 0) == (figures["wrong"], figures["overshoot"])
    assert figures["kills"] > 3


def test_the_liveness_lock_falls_with_the_process_and_not_before(kill):
    """
    It outlives a foreign close, close-all and a forked child, and falls at SIGKILL, exec and exit, zombie or not.
    A process that lost the lock but still maps the region is not reaped; its exec'd successor is.
    """
    assert {"cases": 7, "wrong": 0} == kill("fork")


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_pure_units_are_clean_under_sanitizers(c_program, sanitizer, budget):
    """Ledger, ring, limits, bucket and table through one mapping by many threads: no report, right results."""
    flags = (f"-fsanitize={sanitizer}", "-g", "-O1")
    program = c_program(f"unit-{sanitizer.replace(',', '-')}", *UNIT, flags=flags)

    done = subprocess.run([str(program), str(budget)], capture_output=True, text=True, timeout=3600, check=False)

    assert (0, "") == (done.returncode, done.stderr)
