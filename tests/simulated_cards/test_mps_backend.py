# SPDX-License-Identifier: Apache-2.0
"""
The MPS backend beside what all backends hold (test_backends.py): shares in space, totals, ways around, and its end.

Real processes as containers, the real keeper of daemons, and the simulated driver's MPS.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.backend_harness import GIB, MPS_RUNS, keeper_of, stand
from support.waiting import PATIENCE_SECONDS

from isolation.contract.model import Mode
from isolation.contract.names import MPS_ENDED
from isolation.node.allocations import Allocations
from isolation.node.backend import LibraryBackend, UndeliverableError
from isolation.node.delivery import Delivery, promise_id
from isolation.node.mps.backend import MpsClients
from isolation.node.mps.exchange import PIPE, MpsExchange, folder_of

MIB = 1 << 20
UNAVAILABLE, RPC_FAILURE = 46, 806
CONTEXT = 306 * MIB
LIVE = 1
FILL = """
rc = begin()
got = 0
while alloc(32 * MIB)[0] == 0: got += 32 * MIB
say([rc, got, info()[1]])
"""
BUSY = """
begin()
work = kernel(b"simgpu 1\\nkernel k params=8 ns=$0 width=1000\\n")
say("up")
for _ in range(4): launch(work, 2_000_000_000)
sys.stdin.readline()
say(0)
os._exit(0)
"""
FAULT = """
begin()
launch(kernel(b"simgpu 1\\nkernel k ns=1000 fault=700\\n"))
say(cu.cuCtxSynchronize())
time.sleep(600)
"""
MANY = """
from_us, to_them = os.pipe()
from_them, to_us = os.pipe()
def tell(word): os.write(to_us, b"%12d" % word)
def heard(): return [int(os.read(from_them, 12)) for _ in range(16)]
for _ in range(16):
    if not os.fork():
        os.close(to_them)
        tell(begin())
        os.read(from_us, 1)  # until all have a context
        got = 0
        while alloc(64 * MIB)[0] == 0: got += 64 * MIB
        tell(got)
        time.sleep(600)
begun = heard()
os.close(to_them)
say([begun, heard()])
sys.stdin.readline()
"""
pytestmark = MPS_RUNS


@pytest.fixture
def node(tmp_path):
    with stand("mps", tmp_path) as made:
        yield made


def release(container):
    """Let its program begin; what it says first."""
    container.process.stdin.write("go\n")
    container.process.stdin.flush()
    return container.process.stdout.readline().strip()


def clients(node):
    return [one for one in node.box.clients(0) if one.state == LIVE and not one.name.startswith(b"nvidia-cuda-mps")]


def servers(node):
    return MpsExchange(node.folder / "run").servers()


def server(node):
    return servers(node)[node.uuids[0]]


def serving(node):
    """Processes of servers."""
    node.box.settle()
    return [one.pid for one in node.box.clients(0) if one.state == LIVE and one.name.startswith(b"nvidia-cuda-mps")]


def daemon(node):
    """Its process."""
    return int((folder_of(node.folder / "run", node.uuids[0]) / PIPE / "nvidia-cuda-mps-control.pid").read_text())


def until(true):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_total_of_a_container_holds_over_sixteen_processes(node):
    """Limits of MPS are of each process: the library's ledger holds the sum."""
    container = node.start("a", 8 * GIB, MANY)
    begun, got = json.loads(release(container))
    assert begun == [0] * 16
    assert sum(got) > 0
    used = [one.total_bytes for one in clients(node)]
    assert len(used) == 16
    assert 7 * GIB < sum(used) <= 8 * GIB
    assert max(used) <= 8 * GIB


@pytest.mark.parametrize("percents", [(25, 50), (10, 30, 60)])
def test_shares_of_compute_are_within_three_points_of_the_card(node, percents):
    found = [node.start(f"a{at}", 2 * GIB, BUSY, core=one) for at, one in enumerate(percents)]
    for one in found:
        assert release(one) == '"up"'
    until(lambda: all(one.own_ns for one in clients(node)))
    node.box.stop()
    before = {one.pid: one.space_ns for one in clients(node)}
    node.box.step(1_000_000_000)
    shares = sorted((one.space_ns - before[one.pid]) / 1e7 for one in clients(node))
    assert shares == pytest.approx(sorted(percents), abs=3)
    node.box.go()


def test_a_program_without_the_variable_gets_nothing_of_the_card(node):
    """The card is the server's alone."""
    alone = "os.environ.pop('CUDA_MPS_PIPE_DIRECTORY'); say(begin())"
    assert node.start("a", 2 * GIB, alone).release() == UNAVAILABLE


def test_a_program_that_changes_its_limits_gets_what_the_library_holds_and_at_most_the_servers(node):
    """Two ways together are needed to pass the promise, and the server's limit is never passed by a process."""
    larger = "os.environ.update(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT='0=15G')\n" + FILL
    neighbour = node.start("b", 4 * GIB, "time.sleep(600)")
    assert node.start("a", 2 * GIB, larger).release()[1] <= 2 * GIB - CONTEXT
    unloaded = node.start("c", 2 * GIB, larger, without=("/etc/ld.so.preload",)).release()[1]
    assert 2 * GIB < unloaded <= 4 * GIB - CONTEXT, (
        "declared: a program that changes its environment, without the library"
    )
    node.end(neighbour)


def test_without_a_keeper_a_container_is_refused_and_not_left_without_limits(tmp_path):
    with stand("mps", tmp_path) as node:
        assert node.start("a", 2 * GIB, FILL).release()[0] == 0
        node.keeper.kill()
        node.keeper.wait()
        until(lambda: "no MPS keeper runs" in node.backend.available())  # a command of its own may hold on for a moment
        with pytest.raises(UndeliverableError, match="no MPS keeper runs"):
            node.delivery.deliver(*node.asked("b", 2 * GIB), node.cards)


def test_a_pipe_directory_that_is_gone_is_a_refusal(node):
    node.start("a", 2 * GIB, FILL).release()
    pipes = folder_of(node.folder / "run", node.uuids[0]) / PIPE
    pipes.rename(pipes.with_name("away"))
    with pytest.raises(UndeliverableError, match="pipe"):
        node.delivery.deliver(*node.asked("b", 2 * GIB), node.cards)


class Agent:
    """Whoever ends clients and tells the keeper what is needed, as the node agent does once a second."""

    def __init__(self, node):
        self.known = Allocations(self)
        cards = tuple(node.cards.values())
        inventory = SimpleNamespace(cards=lambda: cards, mode=lambda: Mode.MPS)
        self.said = []
        self.clients = MpsClients(node.folder / "run", self.known, inventory, lambda *one: self.said.append(one))
        self.processes = {}
        node.backend.tell = self.clients.tell

    def add(self, node, container):
        """It runs."""
        self.processes[container.id] = container.process
        self.known.creates(container.tenant, node.given[promise_id(container.tenant)], container.id)

    def pids(self, _uid, container):
        """See `Processes`."""
        process = self.processes[container]
        return frozenset() if process.poll() is not None else frozenset({process.pid})

    def turn(self):
        """Once."""
        self.clients.tell()
        for one in self.known.all():
            if one.runs:
                self.clients.keep(one)
            for container in tuple(one.runs):
                if not self.pids("", container):
                    self.known.gone(SimpleNamespace(id=container))


@pytest.mark.parametrize("which", ["daemon", "server", "keeper"])
def test_where_a_server_dies_its_clients_end_before_the_next_serves_and_that_takes_no_time(
    node, which, record_property
):
    """The agent ends them, whether their programs notice or not."""
    first = node.start(
        "a", 2 * GIB, "begin(); say(1); sys.stdin.readline(); alloc(1); say(alloc(1)[0]); time.sleep(600)"
    )
    assert release(first) == "1"
    agent = Agent(node)
    agent.add(node, first)
    agent.clients.tell()
    before, began = server(node), time.monotonic()
    if which == "keeper":
        node.keeper.kill()
        node.keeper.wait()
    else:
        os.kill(daemon(node) if which == "daemon" else serving(node)[0], signal.SIGKILL)
    until(lambda: node.uuids[0] not in servers(node) or not server(node).generation)
    until(lambda: not serving(node))
    assert release(first) == str(RPC_FAILURE)
    with pytest.raises(UndeliverableError, match="MPS"):  # the first one has not ended
        node.delivery.deliver(*node.asked("b", 2 * GIB), node.cards)
    with contextlib.ExitStack() as stack:
        if which == "keeper":
            stack.enter_context(keeper_of(node.box.path, node.folder))
        else:
            assert f"the MPS {which} died" in server(node).why
        while first.process.poll() is None:
            agent.turn()
            assert time.monotonic() < began + PATIENCE_SECONDS
        assert first.process.returncode == -signal.SIGKILL
        agent.turn()
        [(tenant, reason, note)] = agent.said
        assert (tenant, reason) == (first.tenant, MPS_ENDED)
        assert f"the MPS {which} {'ended' if which == 'keeper' else 'died'}" in note
        second, given = node.asked("c", 2 * GIB)
        agent.known.creates(second, given, "c")
        agent.processes["c"] = subprocess.Popen(["sleep", "600"])  # it is being created
        stack.callback(agent.processes["c"].wait)
        stack.callback(agent.processes["c"].kill)
        until(lambda: delivered(node, second, given))
        took = time.monotonic() - began
        assert server(node).generation not in {"", before.generation}
    assert took < 30
    record_property("seconds", round(took, 1))


def delivered(node, tenant, given):
    """Whether the container is given a server now; else the kubelet tries again."""
    with contextlib.suppress(UndeliverableError):
        return bool(node.delivery.deliver(tenant, given, node.cards))
    return False


def test_a_fault_of_one_client_ends_the_server_as_what_it_is(node):
    bad = node.start(
        "a",
        2 * GIB,
        FAULT,
    )
    node.tell()  # that it lives: until it has ended there is no other server, and the reason stands
    assert release(bad) == "700"
    until(lambda: "fault" in server(node).why)
    node.end(bad)
    assert node.start("b", 2 * GIB, FILL).release()[0] == 0


def test_a_larger_neighbour_raises_the_servers_limits_while_others_run(node):
    node.start("a", 2 * GIB, FILL, core=20)
    first = server(node)
    node.start("b", 4 * GIB, FILL, core=60)
    now = server(node)
    assert (first.bytes, first.percent, now.bytes, now.percent) == (2 * GIB, 20, 4 * GIB, 60)
    assert first.generation == now.generation


def test_a_container_that_is_given_no_server_any_more_is_nobodys_client(node):
    """After another mode: it would be ended as the client of a server that is gone."""
    container = node.start("a", 2 * GIB, FILL, core=30)
    folder = node.folder / "run" / "alloc" / promise_id(container.tenant)
    given = node.given[promise_id(container.tenant)]
    assert (folder / "mps").is_file()
    assert "none" in (folder / "promise.json").read_text(), "MPS limits its compute, the library does not"
    other = Delivery(node.folder / "run", node.delivery._hardware, LibraryBackend(node.folder / "run"))
    other.change(container.tenant, given, node.cards)
    assert '"policy": "none"' in (folder / "promise.json").read_text(), "as long as this one runs"
    other.deliver(container.tenant, given, node.cards)
    assert not (folder / "mps").exists()
    assert '"policy": "fixed"' in (folder / "promise.json").read_text()


def test_what_a_container_is_given_lies_in_its_folder(node):
    container = node.start("a", 2 * GIB, FILL, core=30)
    env = container.edits.env
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    held = (node.folder / "run" / "alloc" / promise_id(container.tenant) / "mps").read_text().splitlines()
    assert held == [server(node).generation, f"{2 * GIB} 30"]
    assert Path(env["CUDA_MPS_PIPE_DIRECTORY"]) in {
        Path(one.container) for one in container.edits.mounts if not one.writable
    }
