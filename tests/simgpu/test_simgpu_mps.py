# SPDX-License-Identifier: Apache-2.0
"""
MPS on simulated cards: servers, clients beside each other, limits by process, users that wait, faults that spread.

NVIDIA, "Multi-Process Service": legacy interface, environment variables, error containment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.mps_daemon import PROGRAM, mps_daemon
from support.waiting import PATIENCE_SECONDS

from isolation.simgpu.report import card_uuid

MS = 1_000_000
MIB = 1 << 20
UNAVAILABLE, CONNECTION_FAILED, RPC_FAILURE, NOT_READY, TOO_MANY = 46, 805, 806, 807, 808
BUSY = """
start(); (busy,) = functions(b"busy"); launch(busy, 1_000_000_000)
marks = [event() for _ in range(2)]
for mark in marks: do("cuEventRecord", mark, None); launch(busy, 10_000_000)
say("queued"); wait(); say(call("cuCtxSynchronize")); wait()
"""
FILL = """
start(); got = 0
while not call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(32 * MIB)): got += 32
say(got); wait()
"""
SEES = """
do("cuInit", 0); n, sms = c_int(), c_int(); do("cuDeviceGetCount", byref(n))
do("cuDeviceGetAttribute", byref(sms), 16, 0); say(n.value, sms.value)
"""
RETAIN = "say(call('cuInit', 0) or call('cuDevicePrimaryCtxRetain', byref(c_void_p()), 0)); wait()"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a daemon serves several users as root")


@pytest.fixture
def pipes():
    """A place that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="gpushare-mps-") as made:
        Path(made).chmod(0o755)
        yield Path(made) / "pipes"


@pytest.fixture
def mps(make_box, pipes):
    """A box of one V100, 80 multiprocessors, with a daemon."""
    box = make_box()
    with mps_daemon(box, pipes) as daemon:
        yield box, daemon


def shares(box, clients):
    """Percent of the card that each filled since the clock was last started to be counted from 0, over a second."""
    found = {one.pid: one.space_ns for one in box.clients(0)}
    return [found[client.process.pid] / (10 * MS) for client in clients]


def until_connected(client):
    """It has asked the daemon."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    folder = Path(f"/proc/{client.process.pid}/fd")
    while not any(one.is_socket() for one in folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def mode(box, value):
    code = (
        "import pynvml as n, ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL); n.nvmlInit();"
        "h = n.nvmlDeviceGetHandleByIndex(0); n.nvmlDeviceSetComputeMode(h, int(sys.argv[2]));"
        "print(n.nvmlDeviceGetComputeMode(h), len(n.nvmlDeviceGetMPSComputeRunningProcesses(h)))"
    )
    library = Path(__file__).parents[2] / "isolation/simgpu/lib/libnvidia-ml.so.1"
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "LD_LIBRARY_PATH": str(library.parent)}
    command = [sys.executable, "-c", code, str(library), str(value)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("percents", [(25, 50), (10, 20, 30, 40), (5,) * 16])
def test_shares_in_space_are_within_three_points_and_side_by_side(mps, run, percents):
    """Kernels that would fill the card, of clients with so many percent each: all run at once, none in turns."""
    box, daemon = mps
    box.stop()
    clients = [run(box, BUSY, **daemon.env, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(one)) for one in percents]
    assert {"queued"} == {client.line() for client in clients}
    box.step(1000 * MS)
    assert shares(box, clients) == pytest.approx(percents, abs=3)
    assert 0 == sum(one.slices for one in box.clients(0) if one.name != b"nvidia-cuda-mps")


def test_without_a_percentage_clients_divide_the_card_by_what_they_would_fill(mps, run):
    box, daemon = mps
    box.stop()
    clients = [run(box, BUSY, **daemon.env), run(box, BUSY.replace('b"busy"', 'b"half"'), **daemon.env)]
    assert {"queued"} == {client.line() for client in clients}
    box.step(1000 * MS)
    assert shares(box, clients) == pytest.approx([100 * 2 / 3, 100 / 3], abs=0.1)


def test_a_ceiling_is_never_passed_on_an_idle_card_and_is_what_the_program_sees(mps, run):
    box, daemon = mps
    box.stop()
    sees = "\nv = c_int(); do('cuDeviceGetAttribute', byref(v), 16, 0); say(v.value)\n"
    code = BUSY.replace("launch", sees + "launch", 1)
    client = run(box, code, **daemon.env, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="33")
    assert "26" == client.line()
    assert "queued" == client.line()
    box.step(1000 * MS)
    assert 30 < shares(box, [client])[0] <= 33


def test_the_servers_limits_are_for_each_process_and_the_environment_only_lowers_them(mps, run):
    """One that names a device as the server does not counts as none, and so does a UUID."""
    box, daemon = mps
    daemon.command("set_default_device_pinned_mem_limit 0 4G", "set_default_active_thread_percentage 50")
    variable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    told = [{}, {}, {variable: "0=2G"}, {variable: "0=8G"}, {variable: "0=1G,1=1G"}, {variable: "GPU-1=1G"}]
    found = [run(box, FILL, **daemon.env, **env) for env in told[:2]]
    assert ["3776", "3776"] == [client.line() for client in found]  # 4 GiB without the 306 MiB of a context
    for client in found:
        client.tell()
    for env, most in zip(told[2:], ("1728", "3776", "3776", "3776"), strict=True):
        client = run(box, FILL, **daemon.env, **env)
        assert most == client.line()
        client.tell()
        client.end()


def test_another_user_waits_until_the_last_client_has_ended_and_meanwhile_no_one_joins(mps, run):
    box, daemon = mps
    first = run(box, RETAIN, **daemon.env)
    assert "0" == first.line()
    (server,) = daemon.command("get_server_list").split()
    box.path.chmod(0o666)
    other = run(box, "import os; os.setgid(1000); os.setuid(1000)\n" + RETAIN, **daemon.env)
    until_connected(other)
    late = run(box, RETAIN, **daemon.env)
    until_connected(late)
    assert [str(first.process.pid)] == daemon.command(f"get_client_list {server}").split()
    first.tell()
    first.end()
    assert "0" == other.line()
    (second,) = daemon.command("get_server_list").split()
    assert second != server
    other.tell()
    other.end()
    assert "0" == late.line()


def test_a_fault_of_one_client_reaches_all_and_no_client_is_taken_until_they_have_ended(mps, run):
    box, daemon = mps
    steady = run(box, "start(); say(1); wait(); say(call('cuCtxSynchronize')); wait()", **daemon.env)
    assert "1" == steady.line()
    bad = run(
        box, "start(); (f,) = functions(b'bad'); launch(f, 0); say(call('cuCtxSynchronize')); wait()", **daemon.env
    )
    assert "700" == bad.line()
    (server,) = daemon.command("get_server_list").split()
    assert "FAULT" == daemon.command(f"get_server_status {server}")
    steady.tell()
    assert "700" == steady.line()
    assert str(NOT_READY) == run(box, RETAIN, **daemon.env).line()
    for client in (steady, bad):
        client.kill()
    box.settle()
    assert "0" == run(box, RETAIN, **daemon.env).line()
    assert "ACTIVE" == daemon.command(f"get_server_status {server}")


def test_where_the_daemon_dies_its_clients_fail_and_a_next_one_serves_others(mps, run, pipes):
    box, daemon = mps
    client = run(box, BUSY, **daemon.env)
    assert "queued" == client.line()
    daemon.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(one.state == 1 and one.name == b"nvidia-cuda-mps" for one in box.clients(0)):
        assert time.monotonic() < deadline
        box.settle()
    client.tell()
    assert str(RPC_FAILURE) == client.line()
    with mps_daemon(box, pipes) as again:
        assert "0" == run(box, RETAIN, **again.env).line()
        client.tell()
        client.end()


def test_in_exclusive_mode_only_the_servers_clients_compute(mps, run):
    """Without the variable a program runs as without MPS: it gets the card only where nobody has it."""
    box, daemon = mps
    assert ["3", "0"] == mode(box, 3)
    alone = run(box, RETAIN)
    assert "0" == alone.line()
    assert str(CONNECTION_FAILED) == run(box, RETAIN, **daemon.env).line()  # the server does not get the card
    alone.kill()
    box.settle()
    assert "" == daemon.command("start_server -uid 0")
    assert str(UNAVAILABLE) == run(box, RETAIN).line()
    assert str(UNAVAILABLE) == run(box, RETAIN, CUDA_MPS_PIPE_DIRECTORY="/nowhere").line()
    client = run(box, RETAIN, **daemon.env)
    assert "0" == client.line()
    assert ["3", "1"] == mode(box, 3)


def test_a_server_has_no_more_clients_than_it_can(make_box, run, pipes):
    box = make_box(mps_clients=2)
    with mps_daemon(box, pipes) as daemon:
        found = [run(box, RETAIN, **daemon.env).line() for _ in range(3)]
    assert ["0", "0", str(TOO_MANY)] == found


def test_a_daemon_sees_one_card_and_so_do_its_clients(make_box, run, pipes):
    box = make_box("v100-16g", "t4")
    t4 = card_uuid(box.cards()[1])
    with mps_daemon(box, pipes, t4) as daemon:
        assert "1 40" == run(box, SEES, **daemon.env).end()
        assert "1 40" == run(box, SEES, **daemon.env, CUDA_VISIBLE_DEVICES=t4).end()


def test_there_is_one_daemon_for_a_directory_and_it_quits(mps):
    _, daemon = mps
    again = subprocess.run(
        [*PROGRAM, "-f"], env={**os.environ, **daemon.env}, capture_output=True, text=True, check=False
    )
    assert (1, "An instance of this daemon is already running") == (again.returncode, again.stdout.strip())
    assert "invalid command" in daemon.command("open the door")
    assert "" == daemon.command("quit")
    assert 0 == daemon.process.wait(PATIENCE_SECONDS)
    assert "Cannot find MPS control daemon process" == daemon.command("get_server_list")
