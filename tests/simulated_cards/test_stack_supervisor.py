# SPDX-License-Identifier: Apache-2.0
"""
Processes of a stack by themselves: kept running, tied to their starter, swept up by their mark alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS, until

from autoscaler.demo.stack import cleanup, parent_death
from autoscaler.demo.stack import supervisor as crewing
from autoscaler.demo.stack.supervisor import MAX_TRIES, ManagedCommand, StackSupervisor, build_environment
from isolation.contract.stack import DOWN, STARTING, UP

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
READS = (sys.executable, "-c", "import sys; sys.stdin.read(); print('ended by itself')")


class Clock:
    """Stands still until it is moved."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        """Seconds."""
        return self.now


@pytest.fixture
def mark():
    """One that no other stack has; who bears it does not outlive the test."""
    made = secrets.token_hex(16)
    yield made
    wanted = cleanup.build_marks(made)
    for pid in cleanup.find_marked(wanted):
        cleanup.send_signal(wanted, pid, signal.SIGKILL)


def test_one_that_fails_is_tried_again_later_and_later_and_then_given_up(tmp_path, mark):
    """Pauses double; what it said last is reported; after so many tries nothing more is started."""
    clock = Clock()
    supervisor = StackSupervisor(
        [ManagedCommand("bad", ("/bin/sh", "-c", "echo no card >&2; exit 3"))], tmp_path, mark, clock=clock
    )
    begun = []
    for _ in range(3 * MAX_TRIES):
        supervisor.start_due()
        if supervisor.pid("bad") is not None:
            begun.append(clock.now)
            assert until(lambda: (supervisor.start_due(), supervisor.pid("bad") is None)[1])
        clock.now += 0.5 if "restart" in supervisor.statuses["bad"].remark and len(begun) < 3 else 31.0
        if "gave up" in supervisor.statuses["bad"].remark:
            break
    clock.now += 1000
    supervisor.start_due()
    supervisor.stop()

    assert MAX_TRIES == len(begun)
    assert (0.0, 1.0, 3.0) == tuple(begun[:3])
    assert (DOWN, "exited with status 3: no card; gave up") == (
        supervisor.statuses["bad"].state,
        supervisor.statuses["bad"].remark,
    )
    assert None is supervisor.pid("bad")
    assert "bad exited with status 3: no card; restart in 1 s" == supervisor.events[0]


def test_a_program_that_is_not_there_is_said(tmp_path, mark):
    """The reason is told like any other."""
    supervisor = StackSupervisor(
        [ManagedCommand("gone", ("/nonexistent/program",), dies_with_parent=False)], tmp_path, mark
    )
    supervisor.start_due()
    supervisor.stop()

    assert "cannot start: No such file or directory; restart in 1 s" == supervisor.statuses["gone"].remark


def test_services_are_told_to_end_and_tenants_end_with_their_input(tmp_path, mark, monkeypatch):
    """A service gets SIGTERM; a tenant no signal at all; nobody is left, and nobody is waited for in vain."""
    monkeypatch.setattr(crewing, "TERMINATION_SECONDS", 3600.0)
    supervisor = StackSupervisor(
        [ManagedCommand("service", SLEEP), ManagedCommand("tenant", READS, dies_with_parent=False)], tmp_path, mark
    )
    assert until(lambda: (supervisor.start_due(), supervisor.pid("service") and supervisor.pid("tenant"))[1])
    assert (STARTING, STARTING) == (supervisor.statuses["service"].state, supervisor.statuses["tenant"].state)
    supervisor.set_responding("service")
    assert UP == supervisor.statuses["service"].state
    time.sleep(0.3)

    supervisor.stop()

    assert "ended by itself" == supervisor.last_line("tenant")
    assert [] == cleanup.find_marked(cleanup.build_marks(mark))


def test_one_that_has_worked_and_does_not_answer_is_down(tmp_path, mark):
    """Running is not working; one that has only just been started is not called down for it."""
    supervisor = StackSupervisor([ManagedCommand("service", SLEEP)], tmp_path, mark)
    assert until(lambda: (supervisor.start_due(), supervisor.pid("service"))[1])

    states = []
    for responding in (False, True, False, False, True):
        supervisor.set_responding("service", responding=responding)
        states.append((supervisor.statuses["service"].state, supervisor.statuses["service"].remark))
    supervisor.stop()

    silent = (DOWN, "does not answer")
    assert [(STARTING, ""), (UP, ""), silent, silent, (UP, "")] == states


def test_one_that_does_not_listen_is_killed(tmp_path, mark):
    """After some seconds, so that an end always comes."""
    supervisor = StackSupervisor([ManagedCommand("deaf", (sys.executable, "-c", STUBBORN))], tmp_path, mark)
    assert until(lambda: (supervisor.start_due(), supervisor.last_line("deaf") == "1")[1])

    supervisor.stop()

    assert [] == cleanup.find_marked(cleanup.build_marks(mark))


def test_what_a_killed_runner_leaves_behind_ends_before_it_is_started_again(tmp_path, mark):
    """Two of one tenant would share one name: the old command goes first."""
    leaves = f"sleep 600 & echo $!; exec {sys.executable} -c 'import sys; sys.stdin.read()'"
    supervisor = StackSupervisor(
        [ManagedCommand("tenant", ("/bin/sh", "-c", leaves), dies_with_parent=False)], tmp_path, mark
    )
    assert until(lambda: (supervisor.start_due(), supervisor.last_line("tenant"))[1])
    left = int(supervisor.last_line("tenant"))

    os.kill(supervisor.pid("tenant"), signal.SIGKILL)

    assert until(lambda: (supervisor.start_due(), supervisor.statuses["tenant"].restarts)[1])
    assert until(lambda: not cleanup.has_marks(left, cleanup.build_marks(mark)))
    supervisor.stop()


def test_a_tied_process_ends_with_its_starter_however_that_ends():
    """SIGKILL leaves no time to tidy: the kernel does."""
    program = (
        "import os, subprocess, sys, time\n"
        f"tied = [sys.executable, '-I', '-S', {parent_death.__file__!r}, str(os.getpid())]\n"
        "child = subprocess.Popen([*tied, 'sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        child = int(starter.stdout.readline())
        comm = Path(f"/proc/{child}/comm")
        assert until(lambda: comm.read_text() == "sleep\n")

        starter.kill()

    assert until(lambda: not _lives(child))


def _lives(pid):
    """Whether it runs; one that nobody has waited for does not."""
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def test_a_tied_process_does_not_begin_without_its_starter():
    """Who was starting it has gone already: nothing is started."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", parent_death.__file__, "1", "echo", "began"],
        capture_output=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert b"" == done.stdout


def test_the_sweeper_touches_nobody_without_the_mark(tmp_path, mark):
    """Same program, same user, another mark, or part of a name in another variable: all of them live on."""
    others = [
        subprocess.Popen(SLEEP, env=build_environment(os.environ, secrets.token_hex(16), "x")),
        subprocess.Popen(SLEEP, env={**os.environ, "OTHER": f"{cleanup.VARIABLE}={mark}"}),
    ]
    mine = subprocess.Popen((sys.executable, "-c", STUBBORN), env=build_environment(os.environ, mark, "x"))
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    kept = tmp_path / "kept"
    kept.mkdir()
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", cleanup.__file__, mark, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        time.sleep(0.3)
        assert None is sweeper.poll()
        sweeper.stdin.close()

        assert -signal.SIGKILL == mine.wait(PATIENCE_SECONDS)
        assert 0 == sweeper.wait(PATIENCE_SECONDS)
        assert [None, None] == [other.poll() for other in others]
        assert [kept] == list(tmp_path.iterdir())
    finally:
        for process in (*others, mine):
            process.kill()
            process.wait(timeout=300)


def test_settings_of_other_runs_do_not_reach_the_stack():
    """A book or a policy that the user has set for gpushare would put tenants where the exporter does not look."""
    given = {"GPUSHARE_STATE_DIR": "/b", "GPUSHARE_EXPORTER_INTERVAL": "9s", "PATH": "/bin", cleanup.VARIABLE: "old"}

    assert {"PATH": "/bin", cleanup.VARIABLE: "m", cleanup.PART: "p"} == build_environment(given, "m", "p")
