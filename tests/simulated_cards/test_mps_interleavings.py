# SPDX-License-Identifier: Apache-2.0
"""
Random steps on one card under MPS, with real processes: programs with the real library, daemon, servers and keeper.

Pods of two groups and two users want the card; programs, servers, the daemon and the keeper are killed; a client's
fault stops the server. After each step one group and one user have the card, nobody has more than promised, and no
program waits for another user's server. At the end nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import time
import uuid
from collections import Counter
from types import SimpleNamespace

import pytest
from simulated_cards.test_mps_backend import LIVE, Agent, clients, daemon, server, serving
from support.backend_harness import GIB, MPS_RUNS, keeper_of, stand
from support.budget import examples
from support.waiting import PATIENCE_SECONDS, until

from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Compute, Mode, Slice, Trust
from isolation.node.backend import UndeliverableError
from isolation.node.core.container_check import Given, NodeFacts, check_share
from isolation.node.delivery import promise_id
from isolation.node.mps.exchange import MpsExchange
from isolation.node.nri.model import NriRefusedError

MAX_PROGRAMS = 4
"""Containers at a time."""
TRUSTS = tuple(Trust(group, user) for group in ("ml", "web") for user in (0, 1000))
STEPS = {"start": 20, "end": 13, "alloc": 40, "free": 20, "look": 6}
KILLS = dict.fromkeys(("fault", "server", "daemon", "keeper"), 0.3)
"""Their weights."""
PROGRAM = """
os.setgroups([]); os.setgid(USER); os.setuid(USER)
held = []
say(begin())
while True:
    word = sys.stdin.readline().strip()
    if word == "alloc":
        rc, at = alloc(256 * MIB)
        if not rc: held.append(at)
        say(rc)
    elif word == "free":
        say(cu.cuMemFree_v2(held.pop()) if held else 0)
    elif word == "fault":
        launch(kernel(b"simgpu 1\\nkernel k ns=1000 fault=700\\n"))
        say(cu.cuCtxSynchronize())
    else:
        break
"""
pytestmark = MPS_RUNS


class Interleaving:
    """One run."""

    def __init__(self, node, stack, seed):
        self.node, self.stack, self.chance = node, stack, random.Random(seed)  # noqa: S311 (chance, no secret)
        self.agent, self.happened = Agent(node), Counter()
        self.programs: dict[str, tuple[Tenant, Given]] = {}
        """By the runtime's id."""
        self.ever: list[object] = []
        """Processes, so that none outlives the test."""

    def step(self):
        """One of them."""
        weights = STEPS | KILLS
        [kind] = self.chance.choices(tuple(weights), tuple(weights.values()))
        getattr(self, kind, self.tell)(*((kind,) if kind in {"alloc", "free", "fault"} else ()))
        self.agent.turn()
        self.reap()
        self.check()

    def start(self):
        """A pod of one of the four; the agent refuses it beside strangers, and the kubelet tries again otherwise."""
        if len(self.programs) >= MAX_PROGRAMS:
            return
        trust, size = self.chance.choice(TRUSTS), self.chance.choice([1, 2, 3]) * GIB
        part = Slice(self.node.uuids[0], 0, size, self.chance.choice([0, 10, 25]))
        tenant, ident = Tenant(trust.group, "pod", str(uuid.uuid4()), "main"), uuid.uuid4().hex
        known = self.agent.known
        strangers = [one for one in known.in_force() if one.trust != trust]
        try:
            given = check_share(*asked(tenant, part, trust), facts(self.node), None, known.in_force())
        except NriRefusedError:
            assert strangers or known.bytes_by_card().get(part.uuid, 0) + size > 15 * GIB
            self.happened["refused"] += 1
            return
        assert not strangers
        known.creates(tenant, given, ident)
        self.agent.processes[ident] = waiting = SimpleNamespace(poll=lambda: None, pid=os.getpid())
        try:
            edits = self.deliver(tenant, given)
        finally:
            if self.agent.processes[ident] is waiting:
                del self.agent.processes[ident]
        if edits is None:
            self.forget(tenant, ident)
            return
        process = self.node.boxed.start(edits, PROGRAM.replace("USER", str(trust.uid)))
        self.agent.processes[ident] = process
        self.ever.append(process)
        self.programs[ident] = tenant, given
        said = answer(process)
        self.happened["started" if said == 0 else "failed"] += 1

    def deliver(self, tenant, given):
        """What the container gets; None: no server came in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(UndeliverableError):
                return self.node.delivery.deliver(tenant, given, self.node.cards).edits
            self.happened["retried"] += 1
            self.agent.turn()
            self.reap()
        raise AssertionError(f"blocked: {server(self.node)}")

    def end(self):
        """A program is killed."""
        if self.programs:
            process = self.agent.processes[self.chance.choice(sorted(self.programs))]
            process.kill()
            process.wait()
            self.happened["ended"] += 1

    def tell(self, word):
        """A program does something."""
        if self.programs:
            process = self.agent.processes[self.chance.choice(sorted(self.programs))]
            with contextlib.suppress(OSError):
                process.stdin.write(f"{word}\n")
                process.stdin.flush()
                answer(process)
                self.happened[word] += 1

    def look(self):
        """Only the agent does something."""

    def server(self):
        """It is killed."""
        for pid in serving(self.node)[:1]:
            os.kill(pid, signal.SIGKILL)
            self.happened["server killed"] += 1

    def daemon(self):
        """Likewise."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(daemon(self.node), signal.SIGKILL)
            self.happened["daemon killed"] += 1

    def keeper(self):
        """Likewise; another one comes."""
        self.node.keeper.kill()
        self.node.keeper.wait()
        self.happened["keeper killed"] += 1
        if self.chance.random() < 0.5:
            self.agent.turn()
        self.node.keeper = self.stack.enter_context(keeper_of(self.node.box.path, self.node.folder))

    def reap(self):
        """The runtime removes containers whose process has ended, the agent what it gave them."""
        for ident in [one for one in self.programs if self.agent.processes[one].poll() is not None]:
            tenant, _ = self.programs.pop(ident)
            process = self.agent.processes[ident]
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    pipe.close()
            self.forget(tenant, ident)
            del self.agent.processes[ident]

    def forget(self, tenant, ident):
        """The pod is gone."""
        self.agent.known.gone(SimpleNamespace(id=ident))
        self.node.delivery.retire(promise_id(tenant))
        self.agent.known.drop(promise_id(tenant))

    def check(self):
        """What must always hold."""
        given = {self.agent.processes[ident].pid: one for ident, (_, one) in self.programs.items()}
        assert len({one.trust for one in given.values()}) <= 1
        assert len(serving(self.node)) <= 1
        for client in clients(self.node):
            assert client.pid in given or not alive(client.pid), client.pid
            assert client.pid not in given or client.total_bytes <= given[client.pid].slices[0].bytes


def asked(tenant, part, trust):
    """What the judge is asked about: container and record."""
    sandbox = SimpleNamespace(uid=tenant.uid, namespace=tenant.namespace)
    container = SimpleNamespace(key=f"{tenant.namespace}/pod/main", sandbox=sandbox, name="main", env={})
    parts = (SimpleNamespace(container="main", slices=(part,)),)
    return container, SimpleNamespace(promise=tenant.uid, parts=parts, compute=Compute(), trust=trust)


def facts(node):
    """Of a node in mode mps."""
    return NodeFacts(Mode.MPS, whole=False, cards=node.cards, exempt=frozenset())


def answer(process):
    """The next word of a program, None where it has ended; nobody waits for another user's server."""
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
    assert ready, "blocked"
    line = process.stdout.readline()
    return json.loads(line) if line else None


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize("run_number", range(examples(1)))
def test_random_steps_never_put_two_groups_or_users_on_a_card_and_block_nobody(tmp_path, run_number, record_property):
    """250 steps; 10,000 with --budget 40. Most of the time goes into starts of servers."""
    seed, began = int.from_bytes(os.urandom(4)), time.monotonic()
    print("run", run_number, "seed", seed)  # noqa: T201 (pytest shows it with the failure)
    with stand("mps", tmp_path) as node, contextlib.ExitStack() as stack:
        run = Interleaving(node, stack, seed)
        try:
            for _ in range(250):
                run.step()
            while run.programs:
                run.end()
                run.agent.turn()
                run.reap()
        finally:
            for process in run.ever:
                process.kill()
        run.agent.turn()
        assert run.agent.known.bytes_by_card() == {}
        assert list((tmp_path / "run" / "alloc").iterdir()) == []
        wish = MpsExchange(tmp_path / "run").wishes()[node.uuids[0]]
        assert (wish.uid, wish.held) == (None, frozenset())
        node.keeper.terminate()
        node.keeper.wait()
        until(lambda: not serving(node) and not clients(node))
        assert [one for one in node.box.clients(0) if one.state == LIVE] == []
        assert node.box.cards()[0].used_bytes == 0
    assert run.happened["started"]
    record_property("happened", dict(run.happened) | {"seconds": round(time.monotonic() - began)})
