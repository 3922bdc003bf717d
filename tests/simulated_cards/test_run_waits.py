# SPDX-License-Identifier: Apache-2.0
"""Who waits for cards under `gpushare run`: reasons, turns, and stores that nobody can believe."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from support.run_command import begin, go, holds
from support.waiting import PATIENCE_SECONDS, until

from isolation.simgpu.hardware import create

pytest.importorskip("pynvml")


@pytest.fixture
def box(tmp_path):
    """Four V100 of 16 GB."""
    create(tmp_path / "box", ["v100-16g"] * 4)
    return tmp_path / "box"


def test_a_refusal_says_who_holds_what(box):
    """
    One line with the reason, each card with its takers, each hold with its command: plain in a pipe.
    """
    one = begin(box, "--gpu-mem", "40", "--gpu-count", "4", "--name", "big", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    done = go(box, "--gpu-mem", "6", "--", "true")
    one.communicate("\n", timeout=300)

    message = done.stderr.splitlines()
    assert 75 == done.returncode
    assert "Error: not enough free capacity for 6 GiB on one card: none of 4 cards has enough" == message[0]
    assert "card 3: 10 of 15 GiB allocated: big 10" == message[4]
    assert ["big", "0,1,2,3", "10 each"] == [message[6].split("\t")[at] for at in (0, 2, 3)]
    assert "sh -c echo on; read x" == message[6].split("\t")[-1]


def test_waiting_tells_who_is_in_the_way_and_starts_when_there_is_room(box):
    """
    One line of progress; what can never fit is not waited for.
    """
    one = begin(box, "--gpu-mem", "60", "--gpu-count", "4", "--name", "big", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    two = begin(box, "--gpu-mem", "6", "--wait", "--", "echo", "mine", stderr=subprocess.PIPE)
    line = two.stderr.readline()
    never = go(box, "--gpu-mem", "16", "--wait", "--", "true")
    one.communicate("\n", timeout=300)
    short = "not enough free capacity for 6 GiB on one card: none of 4 cards has enough"
    assert re.fullmatch(rf"waiting \d+s: {re.escape(short)}; in use by big 60 GiB\n", line)
    assert ("mine\n", 0) == (two.communicate(timeout=PATIENCE_SECONDS)[0], two.returncode)
    assert (75, True) == (never.returncode, "the largest card offers 15 GiB" in never.stderr)


def test_a_store_that_cannot_be_believed_stops_everybody(box):
    """
    Neither a foreign format nor garbage is reset or skipped: the message names the file and what to do.
    """
    stray = Path(f"{box}.allocations") / "run-x"
    stray.mkdir(parents=True)
    for text, reason in (
        ('{"format": 9}', "format 9 is not supported, only format 1 is"),
        ("{", "truncated"),
        (None, "No such"),
    ):
        (stray / "promise.json").unlink(missing_ok=True)
        if text is not None:
            (stray / "promise.json").write_text(text)
        done = go(box, "--gpu-mem", "1", "--", "true")
        assert (125, True, True) == (done.returncode, reason in done.stderr, f"remove {stray}" in done.stderr)
    assert stray.is_dir()


def test_who_is_first_in_line_stays_first_while_there_is_no_room(box):
    """
    Its ticket is renewed, and does not grow old as that of a run that was stopped.
    """
    one = begin(box, "--gpu-mem", "52", "--gpu-count", "4", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    two = begin(box, "--gpu-mem", "7", "--wait", "--", "echo", "mine", stderr=subprocess.PIPE)
    two.stderr.readline()
    (ticket,) = box.parent.rglob(".wait-*")
    os.utime(ticket, (0, 0))

    until(lambda: ticket.stat().st_mtime > 0)
    one.communicate("\n", timeout=300)
    assert "mine\n" == two.communicate(timeout=PATIENCE_SECONDS)[0]


def test_who_waits_longest_goes_first(box):
    """
    Three wait for a card: a small one behind two large ones does not overtake, and a killed one in front
    of them holds up nobody.
    """
    one = begin(box, "--gpu-mem", "52", "--gpu-count", "4", "--name", "big", "--", "sh", "-c", "echo on; read x")
    one.stdout.readline()
    waiting = []
    for size in ("7", "7", "1"):
        command = ("--gpu-mem", size, "--wait", "--", "sh", "-c", "echo mine; read x")
        waiting.append(begin(box, *command, stderr=subprocess.PIPE))
        waiting[-1].message = waiting[-1].stderr.readline()
    killed, second, third = waiting
    killed.kill()
    killed.wait()
    time.sleep(0.3)
    before = set(holds(box))
    one.communicate("\n", timeout=300)
    first_words = second.stdout.readline(), third.stdout.readline()
    for runner in (second, third):
        runner.communicate("\n", timeout=PATIENCE_SECONDS)

    assert "not enough free capacity for 7 GiB" in second.message
    assert "2 runs are ahead in the queue" in third.message
    assert ({"big"}, ("mine\n", "mine\n")) == (before, first_words)
