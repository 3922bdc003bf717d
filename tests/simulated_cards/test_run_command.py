# SPDX-License-Identifier: Apache-2.0
"""`gpushare run` as a person uses it, on simulated cards: what the command gets, and what is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.run_command import CLIENT, begin, go, holds, words
from support.waiting import until

from isolation.simgpu.hardware import LIBRARIES, create, open_box

pytest.importorskip("pynvml")
RESIZED = """
import ctypes as c, sys
cuda, free, total, at = c.CDLL("libcuda.so.1"), c.c_size_t(), c.c_size_t(), c.c_uint64()
ctx = c.c_void_p()
cuda.cuInit(0); cuda.cuCtxCreate_v2(c.byref(ctx), 0, 0)
assert cuda.cuMemAlloc_v2(c.byref(at), c.c_size_t(4 << 30)) == 0
for line in sys.stdin:
    if line.strip() == "free":
        cuda.cuMemFree_v2(at)
    cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total))
    print(total.value >> 20, flush=True)
"""


@pytest.fixture
def box(tmp_path):
    """Four V100 of 16 GB."""
    create(tmp_path / "box", ["v100-16g"] * 4)
    return tmp_path / "box"


def lines(text):
    """Words by line."""
    return [line.split() for line in text.splitlines()]


def test_the_promise_is_what_the_command_sees(box):
    """
    The first story: job 1 is promised 5 GiB of a V100-16, job 2 gets the other 10 of the same card.
    Job 1 takes what it can and stays within its 5; job 2 gets its own.
    """
    one = begin(box, "--gpu-mem", "5", "--name", "one", "--", sys.executable, "-c", CLIENT)
    seen = [one.stdout.readline().split(), one.stdout.readline().split()]
    two = go(box, "--gpu-mem", "10", "--name", "two", "--", sys.executable, "-c", CLIENT, input="")
    among = holds(box)
    one.communicate("", timeout=300)

    assert [["1"], ["5120"]] == [seen[0], seen[1][:1]]
    assert 4 * 1024 <= int(seen[1][1]) <= 5 * 1024
    assert [["1"], ["10240"]] == [lines(two.stdout)[0], lines(two.stdout)[1][:1]]
    assert 9 * 1024 <= int(lines(two.stdout)[1][1]) <= 10 * 1024
    assert ({"one": [(0, 5)]}, {}) == (among, holds(box))


def test_8_gib_over_4_cards_are_4_cards_of_2(box):
    """
    CUDA and NVML both show the promise: four cards of 2 GiB.
    """
    printed = (
        "import pynvml as n; n.nvmlInit(); print(*[n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).total "
    )
    printed += ">> 20 for i in range(n.nvmlDeviceGetCount())])"
    script = f"{sys.executable} -c '{CLIENT}' < /dev/null; {sys.executable} -c '{printed}'"
    done = lines(go(box, "--gpu-mem", "8", "--gpu-count", "4", "--", "sh", "-c", script).stdout)
    assert [["4"], *[["2048"]] * 4] == [done[0], *[line[:1] for line in done[1:5]]]
    assert ["2048"] * 4 == done[5]


def test_share_without_isolation_is_the_same_placement_without_a_limit(box):
    """
    `--policy none` stores and names the card; the command sees all of it, and is told its share.
    """
    script = f"echo $ALIYUN_COM_GPU_MEM_CONTAINER $ALIYUN_COM_GPU_MEM_DEV; {sys.executable} -c '{CLIENT}'"
    done = lines(go(box, "--policy", "none", "--gpu-mem", "5", "--", "sh", "-c", script, input="").stdout)
    assert [["5", "15"], ["1"]] == done[:2]
    assert int(done[2][0]) > 15 * 1024


def test_compute_promises_are_written_for_the_library(box):
    """
    `--gpu-core 30` stands in the limits file as 300,000 millionths, with its policy.
    """
    read = (
        "import os, pathlib; from isolation.contract.abi import unpack_limits; "
        "print(*[(c.core_ppm, c.policy.name) for c in "
        "unpack_limits(pathlib.Path(os.environ['GPUSHARE_LIMITS']).read_bytes()).cards])"
    )
    done = go(box, "--gpu-mem", "5", "--gpu-core", "30", "--policy", "burst", "--", sys.executable, "-c", read)
    assert "(300000, 'BURST')\n" == done.stdout


def test_memory_taken_outside_any_hold_is_reported(box):
    """
    A program beside `gpushare run` has most of card 0: the promise is made, and the person is warned.
    """
    outside = {"GPUSHARE_SIMGPU": str(box), "LD_LIBRARY_PATH": str(LIBRARIES)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLIENT], env=os.environ | outside, **pipes) as stranger:
        for _ in range(5):
            stranger.stdout.readline()
        done = go(box, "--gpu-mem", "1", "--", "true")
        stranger.communicate("", timeout=300)
    assert (0, True) == (done.returncode, f"in use outside gpushare (pid {stranger.pid})" in done.stderr)
    assert "" == go(box, "--gpu-mem", "1", "--", "true").stderr


def test_a_lost_card_is_not_sold(box):
    """
    A card that fell off the bus offers nothing; the others go on.
    """
    with open_box(box) as machine:
        machine.inject(0, "lost", 1)
    done = go(box, "--gpu-mem", "5", "--", *words(box, "--list", "--json"))
    listed = json.loads(done.stdout)["allocations"]
    assert [1] == [card["index"] for card in listed[0]["cards"]]
    assert (75, True) == (
        (never := go(box, "--gpu-mem", "4", "--gpu-count", "4", "--", "true")).returncode,
        "excluding 1 unhealthy card" in never.stderr,
    )


def test_a_share_is_not_divided_further(box):
    """
    `gpushare run` inside `gpushare run` is refused before it looks at a card.
    """
    done = go(box, "--gpu-mem", "5", "--", *words(box, "--gpu-mem", "1", "--", "true"))
    assert (2, True) == (done.returncode, "already running inside allocation run-" in done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words_"),
    [
        (["--", "true"], "--gpu-mem GIB"),
        (["--gpu-mem", "1"], "COMMAND is missing"),
        (["--gpu-mem", "1", ""], "COMMAND is missing"),
        (["--gpu-mem", "6", "--gpu-count", "4", "--", "true"], "request 4 or 8"),
        (["--gpu-mem", "1", "--policy", "weight", "--", "true"], "--gpu-core PERCENT"),
        (["--gpu-mem", "1", "--online", "--", "true"], "--policy priority"),
        (["--gpu-mem", "1", "--json", "--", "true"], "--list"),
        (["--gpu-mem", "0", "--", "true"], "0 is not in the range"),
    ],
)
def test_bad_input_is_reported_with_the_fix(box, arguments, words_):
    """
    Exit status 2, and the option that is missing or wrong.
    """
    done = go(box, *arguments)
    assert (2, True) == (done.returncode, words_ in done.stderr)


def test_a_command_that_the_library_does_not_reach_is_reported(box, tmp_path):
    """
    A static program runs, with a note that nothing limits it; without isolation there is nothing to tell.
    """
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text("int main(void) { return 4; }")
    subprocess.run(["gcc", "-static", "-o", program, source], check=True)
    limited = go(box, "--gpu-mem", "1", "--", str(program))
    free = go(box, "--gpu-mem", "1", "--policy", "none", "--", str(program))

    assert (4, True) == (limited.returncode, limited.stderr.startswith(f"note: {program} is statically linked: "))
    assert (4, "") == (free.returncode, free.stderr)


def test_mig_instances_are_refused_by_twos(tmp_path):
    """
    One instance per process is CUDA's rule: waiting cures nothing, the message says what to ask for.
    """
    create(tmp_path / "box", ["a100-80g-mig"])
    done = go(tmp_path / "box", "--gpu-mem", "8", "--gpu-count", "2", "--wait", "--", "true")

    assert (75, True) == (done.returncode, "use --gpu-count 1" in done.stderr)


def test_a_run_is_resized_while_it_goes_on(box):
    """
    Down to 2 GiB another run gets the difference, up again there is no room until that one has ended; the command sees
    each amount as its card, and what it uses is never taken away.
    """
    one = begin(box, "--gpu-mem", "12", "--name", "one", "--", sys.executable, "-c", RESIZED)

    def seen():
        one.stdin.write("\n")
        one.stdin.flush()
        return int(one.stdout.readline())

    assert 12 * 1024 == seen()
    used = go(box, "--resize", "one", "--gpu-mem", "2")
    assert (75, True) == (used.returncode, "cannot be taken away" in used.stderr)
    one.stdin.write("free\n")
    one.stdin.flush()
    one.stdout.readline()
    assert 0 == go(box, "--resize", "one", "--gpu-mem", "2").returncode
    until(lambda: seen() == 2 * 1024)
    assert {"one": [(0, 2)]} == holds(box)
    other = begin(box, "--gpu-mem", "12", "--name", "two", "--", "sh", "-c", "echo up; read x")
    assert "up\n" == other.stdout.readline()
    assert {"one": [(0, 2)], "two": [(0, 12)]} == holds(box)
    full = go(box, "--resize", "one", "--gpu-mem", "8")
    assert (75, True) == (full.returncode, "has 3 GiB for this run" in full.stderr)
    other.communicate("\n")
    assert 0 == go(box, "--resize", "one", "--gpu-mem", "8").returncode
    until(lambda: seen() == 8 * 1024)
    one.communicate("")


@pytest.mark.parametrize(
    ("words_", "status", "text"),
    [
        (["--resize", "nobody", "--gpu-mem", "2"], 125, "no run is named 'nobody'"),
        (["--resize", "nobody"], 2, "--gpu-mem GIB is missing"),
        (["--resize", "nobody", "--gpu-mem", "2", "--wait"], 2, "--resize takes no --wait"),
    ],
)
def test_a_resize_that_makes_no_sense_is_refused(box, words_, status, text):
    """With what to do."""
    done = go(box, *words_)
    assert (status, True) == (done.returncode, text in done.stderr), done.stderr
