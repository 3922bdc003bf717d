# SPDX-License-Identifier: Apache-2.0
"""However `gpushare up` ends, or fails to begin, nothing is left of the stack."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import tempfile
import time
import uuid

import pytest
from support.children import at_terminal
from support.ports import free_ports
from support.stack_run import runs_in
from support.waiting import PATIENCE_SECONDS, until

from autoscaler.demo.stack import addresses, demo_stack
from autoscaler.demo.stack.autoscaler_metrics import LoopMetrics
from autoscaler.demo.stack.optional_stack import OptionalStack

pytest.importorskip("pynvml")
pytest.importorskip("bcrypt")


@pytest.fixture
def started(tmp_path):
    """Starts runs."""
    with runs_in(tmp_path) as start:
        yield start


@pytest.mark.parametrize(
    ("number", "status", "stands"),
    [
        pytest.param(signal.SIGINT, 0, True, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 0, True, id="SIGTERM"),
        pytest.param(signal.SIGTERM, 0, False, id="SIGTERM while it starts"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, True, id="SIGKILL"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, False, id="SIGKILL while it starts"),
    ],
)
def test_nothing_is_left_however_it_ends(started, number, status, stands):
    """
    Tenants, keepers, services, folders and ports are gone a few seconds after any end, also when nobody could tidy.
    """
    run = started()
    assert until(run.remember)
    run.addresses()
    assert not stands or until(run.denied)

    assert status == run.end(number)

    run.nothing_left()


def test_two_interrupts_end_at_once_and_leave_nothing(started):
    """The second Ctrl-C does not wait for an orderly end; somebody else sweeps."""
    run = started()
    run.addresses()
    assert until(run.remember)
    assert until(run.page)

    run.process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    run.end(signal.SIGINT)

    run.nothing_left()


def test_without_the_simulated_driver_it_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    """No compiler when it was installed: the reason as the simulator gives it, no folder and no process."""
    first = free_ports(addresses.OFFSETS)
    reason = "_hardware.so was not built: run `make test`"
    program = f"import sys; sys.exit('Error: {reason}')"
    monkeypatch.setattr(demo_stack, "GPUSHARE", (sys.executable, "-c", program))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines = []

    with OptionalStack(first, loop_metrics=LoopMetrics(), addresses_file=None, report=lines.append) as beside:
        assert None is beside.status
        assert None is beside.build_document()
        assert first == beside.port

    assert [f"running only the simulated cluster: cannot create simulated cards: {reason}"] == lines
    assert [] == list(tmp_path.iterdir())


def test_what_breaks_the_looking_is_not_looked_over(tmp_path, monkeypatch):
    """Old figures are not shown for new ones: the next who asks is told what broke, and nothing is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    impossible = addresses.Tools("/no\0program", None)

    with demo_stack.DemoStack(addresses.choose_ports(0), impossible) as standing:

        def broken():
            with contextlib.suppress(demo_stack.StackError):
                return not standing.status
            return True

        assert until(broken)
        with pytest.raises(demo_stack.StackError, match="cannot watch the stack any more: embedded null byte"):
            assert standing.status
    assert [] == list(tmp_path.iterdir())


def test_a_note_that_cannot_be_written_ends_it_before_anything_is_left(started, tmp_path):
    """Status 2, the file by name, and no process."""
    run = started("--addresses", str(tmp_path / "nowhere" / "a.json"))

    assert 2 == run.process.wait(PATIENCE_SECONDS)

    assert f"Error: {tmp_path}/nowhere/a.json: No such file or directory\n" == (tmp_path / "err").read_text()
    run.nothing_left()


def test_on_a_terminal_keys_reach_the_command_alone(tmp_path):
    """Ctrl-C typed at a terminal of 80 x 24: before it the screen shows the breach, after it all of it ends."""
    sign = f"STACK_TEST={uuid.uuid4().hex}"
    name, _, value = sign.partition("=")
    env = os.environ | {name: value, "TERM": "xterm-256color", "TMPDIR": str(tmp_path)}
    process, terminal = at_terminal(sys.executable, "-m", "gpushare", "up", "--port", "0", env=env)
    seen = b""

    def shows(word):
        nonlocal seen
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(terminal, 65536)
        return word in seen

    until(lambda: shows(b"stray     "), lambda: seen[-4000:])
    until(lambda: shows(b"!!"), lambda: seen[-4000:])
    os.write(terminal, b"\x03")

    until(lambda: shows(b"allocations beyond a promise refused"), lambda: seen[-4000:])
    assert 0 == process.wait(PATIENCE_SECONDS)
    os.close(terminal)
    assert b"TENANT" in seen
    assert seen.rindex(b"\x1b[?1049l") < seen.rindex(b"ended after")
    assert until(lambda: not list(tmp_path.iterdir()))
