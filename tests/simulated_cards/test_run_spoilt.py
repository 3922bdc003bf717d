# SPDX-License-Identifier: Apache-2.0
"""
A command that spoils its own files: its keeper goes on, the host's readers refuse, the hold ends as ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS, until

from isolation.contract import abi
from isolation.lib import files
from isolation.simgpu.hardware import create

pytest.importorskip("pynvml")
ROOT = Path(__file__).resolve().parents[2]
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
HARMS = {
    "garbage": "head -c 3000000 /dev/urandom > $R",
    "truncated": ": > $R",
    "cut while read": "(while :; do truncate -s 9000 $R; truncate -s 2170880 $R; done) & sleep 1.5; kill $!",
    "numbers": "for i in 1 2 3; do for b in '\\377' '\\0'; do printf $b%.0s `seq 16384` |"
    " dd of=$R bs=4096 seek=1 conv=notrunc status=none; sleep 0.2; done; done",
    "a pipe": "rm $R; mkfifo $R",
    "a link": "rm $R; ln -s /dev/zero $R",
    "a link to itself": "rm $R; ln -s $R $R",
    "a folder": "rm $R; mkdir $R",
    "gone": "rm $R",
    "members": "rm -f ${R%region}members; mkfifo ${R%region}members",
    "the feed a folder": "rm ${R%region}feed; mkdir ${R%region}feed",
}


@pytest.fixture
def box(tmp_path):
    """Two V100 of 16 GB."""
    create(tmp_path / "box", ["v100-16g"] * 2)
    return tmp_path / "box"


def command(box, script):
    """`gpushare run` of a shell script that knows its region as $R."""
    options = ("--simgpu", str(box), "--gpu-mem", "1", "--gpu-core", "30", "--policy", "burst")
    words = ["sh", "-c", f"R=$GPUSHARE_REGION; {script}"]
    return [sys.executable, "-c", FRONT, "run", *options, "--", *words]


@pytest.mark.parametrize("harm", HARMS)
def test_a_spoilt_region_harms_nobody_but_its_own(box, harm):
    """
    The command's status comes through, its keeper lives to the end of it, and the hold is gone afterwards.
    """
    script = f"{HARMS[harm]}; sleep 1.6; K=`cut -d' ' -f4 /proc/$$/stat`; cat /proc/$K/comm; exit 3"
    done = subprocess.run(
        command(box, script), capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=ROOT, check=False
    )

    assert (3, "gpushare-keeper\n") == (done.returncode, done.stdout)
    assert [] == list(Path(f"{box}.allocations").iterdir())


def test_a_neighbours_spoilt_files_do_not_stop_the_feed(box):
    """
    Two bursts share a card; one spoils its region and its entry in the store: the other is fed all the same.
    """
    hold = "echo $GPUSHARE_FEED; read x"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen(command(box, hold), **pipes) as one, subprocess.Popen(command(box, hold), **pipes) as two:
        mine, its = (Path(runner.stdout.readline().strip()) for runner in (one, two))
        (its.parent / "region").write_bytes(b"\xff" * abi.REGION_BYTES)
        (its.parent / "promise.json").write_text('{"format": 1, "policy": "nobody\'s", "cards": [{"uuid": "x"}]}')
        spoilt = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

        def listed():
            return int.from_bytes(mine.read_bytes()[24:32], "little")

        until(lambda: listed() > spoilt + 1_000_000_000)  # neighbours are read again twice a second
        for runner in (one, two):
            runner.communicate("\n", timeout=PATIENCE_SECONDS)


def test_a_region_cut_and_grown_while_it_is_read_is_read_or_refused(tmp_path):
    """
    Somebody truncates it in a loop: each reading is whole or an AbiError; no crash, no hang, no half of it.
    """
    region = tmp_path / "region"
    files.create_region(region, "p")
    whole = region.read_bytes()
    cutter = "import os, sys\nwhile True: os.truncate(sys.argv[1], 5000); os.truncate(sys.argv[1], int(sys.argv[2]))"
    refused = read = 0
    with subprocess.Popen([sys.executable, "-c", cutter, region, str(len(whole))]) as process:
        end = time.monotonic() + PATIENCE_SECONDS
        while (refused < 20 or read + refused < 200) and time.monotonic() < end:
            try:
                read += files.read_region(region).slots == ()
                files.read_breaches(region)
            except abi.AbiError:
                refused += 1
        process.kill()

    assert (refused >= 20, refused + read >= 200) == (True, True)


def test_limits_rewritten_without_pause_are_read_whole_or_refused(tmp_path):
    """
    The host's own reader beside a writer: the promise is one of those that were made, or AbiError.
    """
    path = tmp_path / "limits"
    files.write_limits(path, abi.Limits(0, "a" * 63, ()))
    writer = """
import sys
from pathlib import Path
from isolation.contract import abi
from isolation.lib import files
at = 0
while True:
    at += 1
    files.write_limits(Path(sys.argv[1]), abi.Limits(at, "ab"[at % 2] * 63, ()))
"""
    seen, looks = set(), 0
    with subprocess.Popen([sys.executable, "-c", writer, path], env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        end = time.monotonic() + PATIENCE_SECONDS
        while (len(seen) < 2 or looks < 2000) and time.monotonic() < end:
            looks += 1
            try:
                limits = abi.unpack_limits(path.read_bytes())
                seen.add((limits.generation % 2, limits.promise))
            except abi.AbiError:
                continue
        process.kill()

    assert {(0, "a" * 63), (1, "b" * 63)} == seen
