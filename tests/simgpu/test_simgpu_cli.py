# SPDX-License-Identifier: Apache-2.0
"""`gpushare simgpu`: boxes are made, shown, changed and broken from the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.waiting import until

from isolation.simgpu.cli import simgpu
from isolation.simgpu.hardware import LIBRARIES


def invoke(*words: object) -> str:
    """What the command prints; it must succeed."""
    done = CliRunner().invoke(simgpu, [str(word) for word in words])
    assert 0 == done.exit_code, done.output
    return done.output


def test_a_mixed_box_is_created_and_shown(tmp_path):
    """
    Two T4 and one A10, with a parameter; the JSON has every card, its real size and no process.
    """
    path = tmp_path / "hardware"
    invoke("create", path, "--model", "t4", "--model", "a10", "--cards", 2, "--cards", 1, "slice_ns=500000")
    records = json.loads(invoke("show", path, "--json"))

    assert ["Tesla T4", "Tesla T4", "NVIDIA A10"] == [card["name"] for card in records["cards"]]
    assert [15360, 15360, 23028] == [card["total_bytes"] >> 20 for card in records["cards"]]
    assert 500000 == records["parameters"]["slice_ns"]
    assert [[], [], []] == [card["processes"] for card in records["cards"]]


def test_the_records_show_who_has_what(make_box, run):
    """
    A process with memory and work stands under its card with bytes by kind and its own time.
    """
    box = make_box()
    client = run(box, "start(); (busy,) = functions(b'busy'); alloc(1 << 30); launch(busy, 5_000_000)\n"
                 "do('cuCtxSynchronize'); say('up'); wait()")  # fmt: skip
    client.line()
    [process] = json.loads(invoke("show", box.path, "--json"))["cards"][0]["processes"]
    text = invoke("show", box.path)

    assert (client.process.pid, "live", 1, 1 << 30) == (
        process["pid"],
        process["state"],
        process["launches"],
        process["bytes"]["data"],
    )
    assert 0.005 == pytest.approx(process["gpu_seconds"], abs=0.0001)
    assert "1332 MiB (context 306, module 2, data 1024)  0.005 s GPU time, 1 launches" in text


def test_a_directory_becomes_a_driver(tmp_path):
    """
    `--driver` puts the libraries beside the file: LD_LIBRARY_PATH is all a program needs.
    """
    driver = tmp_path / "not" / "yet"
    words = invoke("create", driver / "hardware", "--model", "t4", "--driver")

    assert f"LD_LIBRARY_PATH={driver}" in words
    libraries = {"libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"}
    libraries |= {"libcudart.so.12", "libcudart.so.13"}
    assert {"hardware"} | libraries == {path.name for path in driver.iterdir()}
    assert libraries <= {path.name for path in LIBRARIES.iterdir()}


def test_parameters_change_and_things_break(tmp_path):
    """
    A live parameter and an XID show in the records at once.
    """
    path = tmp_path / "hardware"
    invoke("create", path, "--model", "v100-16g")
    invoke("set", path, "switch_ns=7")
    invoke("inject", path, "xid", 48)
    records = json.loads(invoke("show", path, "--json"))

    assert (7, 48) == (records["parameters"]["switch_ns"], records["cards"][0]["last_xid"])
    assert "slice_ns=2000000" in invoke("parameters")
    assert "a100-80g-mig" in invoke("models")


@pytest.mark.parametrize("words", [["--model", "gtx"], ["--model", "t4", "fast=1"], ["--model", "t4", "slice_ns=x"]])
def test_a_model_or_parameter_that_does_not_exist_is_bad_input(words, tmp_path):
    """
    As in every command, with status 2; and no cards are made.
    """
    assert 2 == CliRunner().invoke(simgpu, ["create", str(tmp_path / "x"), *words]).exit_code
    assert not (tmp_path / "x").exists()


def test_cards_that_a_run_is_promised_are_replaced_only_by_force(tmp_path):
    """
    While the command of `gpushare run` lives, also where it does not use them; afterwards freely.
    """
    path, said = tmp_path / "box", tmp_path / "said"
    words = [sys.executable, "-m", "gpushare", "run", "--simgpu", str(path), "--gpu-mem", "1", "--", "sh", "-c"]
    again = ["create", str(path), "--model", "t4"]
    invoke(*again)
    with subprocess.Popen([*words, f"echo > {said}; exec cat"], stdin=subprocess.PIPE) as running:
        until(said.exists)
        refused = CliRunner().invoke(simgpu, again)
        forced = CliRunner().invoke(simgpu, [*again, "--force"])
        running.communicate()
    until(lambda: CliRunner().invoke(simgpu, again).exit_code == 0)

    assert (1, 0) == (refused.exit_code, forced.exit_code)
    assert "`gpushare run` has promised cards of" in refused.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["create", "{}/x", "--model", "gtx"], "unknown model gtx; choose from t4, v100-16g"),
        (["create", "{}/x", "--model", "t4", "fast=1"], "unknown parameter fast"),
        (["create", "{}/x", "--model", "t4", "slice_ns=fast"], "is not NAME=NUMBER"),
        (["create", "{}/x", "--model", "t4", "slice_ns=\u00b2"], "is not NAME=NUMBER"),
        (["create", "{}/x", "--model", "t4", "granule_bytes=0"], "granule_bytes=0 is not in the range 512"),
        (["create", "{}/x", "--model", "t4", f"slice_ns={2**64}"], "is not in the range 0"),
        (["create", "/dev/null/x", "--model", "t4"], "File exists"),
        (["show", "{}/x"], "No such file or directory"),
        (["show", __file__], "not a hardware file of this version; gpushare simgpu create makes one"),
        (["create", __file__, "--model", "t4"], "choose another path"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(words, why, tmp_path):
    """
    Unknown models and parameters, and files that are no hardware, end with a reason.
    """
    done = CliRunner().invoke(simgpu, [word.format(tmp_path) for word in words])

    assert 0 != done.exit_code
    assert why in done.output


def test_the_clock_is_stopped_stepped_and_let_go(tmp_path):
    """
    Each word says where the clock is; a step needs its length, and a clock that stands.
    """
    path = tmp_path / "hardware"
    invoke("create", path, "--model", "t4")
    running = invoke("clock", path)
    stopped = invoke("clock", path, "stop")
    stepped = invoke("clock", path, "step", 1000)
    shown = invoke("clock", path)
    gone = invoke("clock", path, "resume")
    words = [["step"], ["stop", 5], ["step", -1], ["step", 5]]
    wrong = [CliRunner().invoke(simgpu, ["clock", str(path), *map(str, word)]) for word in words]
    at, _ = stopped.split()

    assert (int(at) >= int(running.split()[0]), "running") == (True, running.split()[1])
    assert f"{int(at) + 1000} stopped\n" == stepped == shown
    assert ("running", True) == (gone.split()[1], int(gone.split()[0]) >= int(at) + 1000)
    assert [2, 2, 2, 1] == [done.exit_code for done in wrong]
    assert "is running; stop it first" in wrong[-1].output
