# SPDX-License-Identifier: Apache-2.0
"""How a command under `gpushare run` ends, and how it is reached: status, signals, streams, descendants."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.children import at_terminal
from support.run_command import ROOT, begin, go, holds, words
from support.waiting import PATIENCE_SECONDS, until

from isolation.simgpu.hardware import create

pytest.importorskip("pynvml")


@pytest.fixture
def box(tmp_path):
    """Four V100 of 16 GB."""
    create(tmp_path / "box", ["v100-16g"] * 4)
    return tmp_path / "box"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["./no-such-program"], 127),
        (["/dev/null"], 126),
    ],
)
def test_the_exit_status_is_the_commands_as_a_shell_tells_it(box, command, code):
    """
    128 + n for a signal, 127 for what is not there, 126 for what cannot be run; the hold is gone at once.
    """
    done = go(box, "--gpu-mem", "15", "--gpu-count", "1", "--", *command)
    assert (code, []) == (done.returncode, list(Path(f"{box}.allocations").iterdir()))


LATE = """
import os, sys, time
from gpushare import main
from isolation.run import foreground

fork, ours = os.fork, os.getpid()

def late():
    pid = fork()
    time.sleep(1 if os.getpid() == ours else 0)
    return pid

foreground.os.fork = late
main(["run", "--simgpu", sys.argv[1], "--gpu-mem", "15", "--gpu-count", "1", "--", *sys.argv[2:]])
"""


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("./no-such-program", 127)])
def test_a_command_that_ends_before_we_go_on_leaves_nothing(box, command, code):
    """
    On a busy machine it may have ended before `gpushare run` has closed its own descriptor of the allocation's lock.
    """
    words_ = [sys.executable, "-c", LATE, str(box), command]
    done = subprocess.run(words_, check=False, capture_output=True, cwd=ROOT, timeout=PATIENCE_SECONDS)
    assert (code, []) == (done.returncode, list(Path(f"{box}.allocations").iterdir())), done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_reach_the_command(box, name):
    """
    What is sent to `gpushare run` the command gets, once, and may answer as it likes.
    """
    script = f"trap 'echo got; n=1' {name[3:]}; echo ready; while [ -z $n ]; do sleep 0.05; done; exit 9"
    runner = begin(box, "--gpu-mem", "1", "--", "sh", "-c", script)
    assert "ready\n" == runner.stdout.readline()
    runner.send_signal(getattr(signal, name))
    assert ("got\n", 9) == (runner.communicate(timeout=PATIENCE_SECONDS)[0], runner.returncode)


def test_what_was_ignored_stays_ignored(box):
    """
    Under nohup the command outlives the hang-up, as it would without us.
    """
    script = "echo ready; sleep 0.3; echo lived"
    runner = begin(box, "--gpu-mem", "1", "--", "sh", "-c", script, before=("env", "--ignore-signal=HUP"))
    runner.stdout.readline()
    runner.send_signal(signal.SIGHUP)
    assert ("lived\n", 0) == (runner.communicate(timeout=PATIENCE_SECONDS)[0], runner.returncode)


@pytest.mark.parametrize("streams", ["<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_hindrance(box, streams):
    """
    Started with standard streams closed, as by some daemons, the command runs with them closed.
    """
    command = shlex.join(words(box, "--gpu-mem", "1", "--", "sh", "-c", "exit 3"))
    assert (
        3
        == subprocess.run(
            ["sh", "-c", f"{command} {streams}"], check=False, cwd=ROOT, timeout=PATIENCE_SECONDS
        ).returncode
    )


def test_few_descriptors_are_enough(box):
    """
    The lock's descriptor stands high where it can, and elsewhere where it cannot.
    """
    command = shlex.join(words(box, "--gpu-mem", "1", "--", "sh", "-c", "exit 3"))
    assert (
        3
        == subprocess.run(
            ["sh", "-c", f"ulimit -n 24; {command}"], check=False, cwd=ROOT, timeout=PATIENCE_SECONDS
        ).returncode
    )


def test_a_key_on_the_terminal_reaches_the_command_once(box):
    """
    Ctrl-C goes to the whole foreground group: forwarding it as well would deliver it twice.
    """
    wait = "while [ $n = 0 ]; do sleep 0.05; done; for i in 1 2 3 4 5 6; do sleep 0.1; done"
    script = f"n=0; trap 'n=$((n+1))' INT; echo ready; {wait}; echo times $n"
    process, terminal = at_terminal(*words(box, "--gpu-mem", "1", "--", "sh", "-c", script), cwd=ROOT)
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    try:
        while b"times" not in text or not text.endswith(b"\n"):
            text += os.read(terminal, 1024)
    except OSError:
        pass
    os.close(terminal)
    assert (b"times 1", 0) == (text.split(b"\r\n")[-2][-7:], process.wait(PATIENCE_SECONDS))


def test_a_hold_lives_until_the_last_descendant_does(box):
    """
    A daemon that left its session, closed every descriptor and cleaned its environment still counts; the
    runner has told the command's status long before.
    """
    daemon = "import os, time; os.closerange(0, 1024); time.sleep(3600)"
    script = f"env -i setsid {sys.executable} -c '{daemon}' & echo $! ; exit 5"
    done = go(box, "--gpu-mem", "5", "--name", "d", "--", "sh", "-c", script)
    assert (5, {"d": [(0, 5)]}) == (done.returncode, holds(box))
    os.kill(int(done.stdout), signal.SIGKILL)
    assert until(lambda: holds(box) == {})
