# SPDX-License-Identifier: Apache-2.0
"""The runner of `make test`: every stage runs to its end, and the end says what failed and how to repeat it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import stages
from support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
FAILING = """
print('= FAILURES =')
print('boom')
print('FAILED tests/a.py::test_b[x y] - assert')
print('== 1 failed in 0.1s ==')
raise SystemExit(1)
"""
PASSING = "print('.. [ 50%]\\n== 2 passed in 0.1s ==')"


def stage(name, *codes, **more):
    """A stage of Python programs."""
    commands = tuple((sys.executable, "-c", code) for code in codes)
    return stages.Stage(name, f"about {name}", commands, f"make stage S={name}", **more)


@pytest.fixture
def played(monkeypatch, tmp_path, capsys):
    """Run stages in lanes, `beside` in none of them: exit status and what was said."""
    monkeypatch.setattr(stages, "LOGS", tmp_path)
    monkeypatch.setattr(stages, "ROOT", tmp_path)

    def run(*lanes, words=("all",), beside=()):
        known = {one.name: one for lane in (*lanes, beside) for one in lane}
        monkeypatch.setattr(stages, "stages", lambda _budget: known)
        names = tuple(tuple(one.name for one in lane) for lane in lanes)
        monkeypatch.setattr(stages, "GROUPS", {"test": names[:1], "all": names})
        monkeypatch.setattr(sys, "argv", ["stages.py", *words])
        return stages.main(), capsys.readouterr().out

    return run


def test_a_failing_stage_hides_no_other_and_is_named_with_its_repetition(played):
    """
    The one behind it in its lane and the one beside it run; what failed is shown whole, with a command for its test.
    """
    status, said = played((stage("bad", FAILING), stage("after", PASSING)), (stage("beside", PASSING),))

    assert 1 == status
    assert "boom" in said
    assert f"make one T={shlex.quote('tests/a.py::test_b[x y]')}" in said
    results = re.findall(r"^(\w+) +(passed|failed) +\d+:\d\d +(make .*?) *$", said, re.MULTILINE)
    assert {
        ("bad", "failed", "make stage S=bad"),
        ("after", "passed", "make stage S=after"),
        ("beside", "passed", "make stage S=beside"),
    } == set(results)
    assert 2 == said.count("===== 2 passed in 0.1s =====")


def test_each_command_of_a_stage_runs_though_the_one_before_has_failed(played):
    """
    As with linters: all complaints in one run.
    """
    status, said = played((stage("lint", "raise SystemExit(3)", "print('second complaint'); raise SystemExit(4)"),))

    assert 1 == status
    assert "second complaint" in said


@pytest.mark.parametrize("status", [5, -9])
def test_no_test_at_all_and_a_killed_runner_are_failures(played, status):
    """
    Pytest's status for "nothing collected", and death by a signal.
    """
    end = f"raise SystemExit({status})" if status > 0 else f"import os; os.kill(os.getpid(), {-status})"
    assert 1 == played((stage("empty", end),))[0]


def test_what_make_test_has_run_is_left_out(played):
    """
    `--without test` runs the other lane alone; a word that is no stage is refused with those that are.
    """
    lanes = (stage("first", PASSING),), (stage("second", PASSING),)

    status, said = played(*lanes, words=("all", "--without", "test"))
    assert (0, False, True) == (status, "about first" in said, "about second" in said)
    with pytest.raises(SystemExit) as wrong:
        played(*lanes, words=("third",))
    assert 2 == wrong.value.code


def test_a_stage_of_no_group_runs_when_it_is_named(played):
    """
    `make cuda-programs`: not part of `all`, and yet a stage.
    """
    alone = stage("alone", PASSING)

    status, said = played((stage("first", PASSING),), words=("alone",), beside=(alone,))
    assert (0, True, False) == (status, "about alone" in said, "about first" in said)
    status, said = played((stage("first", PASSING),), words=("all",), beside=(alone,))
    assert (0, False, True) == (status, "about alone" in said, "about first" in said)


def test_a_stage_that_hangs_is_ended_with_all_that_it_started(played, monkeypatch, tmp_path):
    """
    And has failed.
    """
    monkeypatch.setattr(stages, "LIMIT_SECONDS", 0.0)
    hangs = f"""
import pathlib, subprocess
child = subprocess.Popen(["sleep", "600"])
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
child.wait()
"""
    monkeypatch.setattr(stages.Run, "poll", _after(tmp_path / "pid", stages.Run.poll))

    status, _ = played((stage("hangs", hangs),))

    assert 1 == status
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


def _after(file, poll):
    """Look only once the file has something in it."""
    return lambda run: poll(run) if file.is_file() and file.read_text() else False


@pytest.mark.parametrize("heeds", ["--default-signal=INT", "--ignore-signal=INT"], ids=["terminal", "background"])
def test_an_interrupt_ends_every_stage(tmp_path, heeds):
    """
    Ctrl-C: nothing that was started runs on; nor where a shell in the background had SIGINT ignored.
    """
    code = f"""
import sys; sys.path.insert(0, {str(ROOT / "tests")!r})
import pathlib, stages
stages.LOGS = stages.ROOT = pathlib.Path({str(tmp_path)!r})
sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
one = stages.Stage("long", "", ((sys.executable, "-c", sleeps),), "")
stages.stages = lambda _: {{"long": one}}
stages.GROUPS = {{"all": (("long",),)}}
sys.argv = ["stages.py", "all"]
sys.exit(stages.main())
"""
    command = ["env", heeds, sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        assert "long" in runner.stdout.readline()  # said once it knows the stage's process
        log = tmp_path / "long.log"
        pid = int(until(lambda: log.is_file() and log.read_text().strip()))
        os.kill(runner.pid, signal.SIGINT)
        assert 130 == runner.wait(120)
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_every_test_belongs_to_a_stage_and_to_one_only():
    """
    `slow` and `e2e` divide them into four; a real GPU's run nowhere without one.
    """
    said = " ".join(" ".join(command) for one in stages.stages(1).values() for command in one.commands)
    for expression in (
        "not slow and not e2e",
        "e2e and not slow",
        "slow and not e2e",
        "e2e and slow",
        "real_kubelet",
        "test_keda",
        "test_operators",
        "-m cuda_programs tests/cuda_programs",
    ):
        assert expression in said
    assert {name for lane in stages.GROUPS["all"] for name in lane} == set(stages.stages(1)) - {"cuda-programs"}
