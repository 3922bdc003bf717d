"""
What the driver counts corrects the books of a command: memory that no hook saw, guesses that proved too high.

All under `gpushare run` on simulated cards, whose own books are the judge.
"""

from __future__ import annotations

import json
import sys

import pytest
from run_command import go
from unseen_client import CLIENT

from isolation.simgpu.hardware import create

pytest.importorskip("pynvml")
CONTEXT = 306
"""MiB of a context on a V100, in the simulator and booked."""


@pytest.fixture
def box(tmp_path):
    """Make a V100 of 16 GB with such settings."""

    def make(**settings):
        create(tmp_path / "box", ["v100-16g"], settings)
        return tmp_path / "box"

    return make


def run(box, code, *more, gib="5"):
    """What the program says, line by line."""
    done = go(box, "--gpu-mem", gib, *more, "--", sys.executable, "-c", CLIENT + code)
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_memory_that_no_hook_saw_is_taken_from_what_may_be_charged(box):
    """
    5 GiB promised, 3 GiB taken unseen beside a context of 306 MiB: little more than 1.7 GiB are left, and the
    last charge past that is refused. Freed, all of it is there again.
    """
    (before, after, big, small, again), *_ = run(
        box(),
        """
begin()
before = left()
at = unseen(3 << 10)
seen = until(lambda: left() < 2 << 10) and left()
big, small = alloc(1900)[0], alloc(1600)[0]
ok(table.contents.memory_free(at))
until(lambda: left() > 3 << 10)
say([before, seen, big, small, alloc(1900)[0]])
""",
    )
    assert 5120 - 320 <= before <= 5120
    assert before - 3072 - 4 <= after <= before - 3072 + 32
    assert (2, 0, 0) == (big, small, again)


def test_once_a_sample_shows_it_over_nothing_more_is_had_on_any_hooked_path(box):
    """
    6 GiB taken unseen under 5: not a byte more by any call, a small one beside a block that is charged included.
    """
    ((first, said),) = run(
        box(),
        """
begin()
first = alloc(0)[0], [alloc_bytes(4096) for _ in range(3)]
unseen(6 << 10)
until(lambda: left() == 0)
at, pitch = c_uint64(), c_size_t()
said = [alloc(1)[0], alloc(64)[0], alloc_bytes(4096)]
said.append(cu.cuMemAllocManaged(byref(at), c_size_t(MIB), 1))
said.append(cu.cuMemAllocPitch_v2(byref(at), byref(pitch), c_size_t(4096), c_size_t(1024), 4))
said.append(cu.cuMemAllocAsync(byref(at), c_size_t(MIB), None))
said.append(load(1)[0])
say([first[1], said])
""".replace("alloc_bytes(4096)", "cu.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4096))"),
    )
    assert ([0] * 3, [2] * 7) == (first, said)
