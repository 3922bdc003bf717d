# SPDX-License-Identifier: Apache-2.0
"""A container that ends with its MPS server: said once, as what it is, and of nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Card, Compute, Mode, Slice, Trust
from isolation.contract.names import MPS_ENDED
from isolation.kube.core.errors import UnreachableError
from isolation.kube.writes import Outcome, WriteResult
from isolation.node.allocations import Allocations
from isolation.node.core.container_check import Given
from isolation.node.delivery import CLIENT
from isolation.node.events import MAX_WAITING, PodEvents
from isolation.node.lock import _locked, _opened
from isolation.node.mps.backend import LATELY_SECONDS, MpsClients
from isolation.node.mps.exchange import LOCK, MpsExchange, MpsServer

GIB = 1 << 30
DIED = MpsServer(why="the MPS daemon died", failed=True)
SERVES = MpsServer("g1", 1000, GIB, 100)


class World:
    """One client, `a`, of server g1."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now, self.said = folder, 0.0, []
        self.known = Allocations(SimpleNamespace(pids=lambda *_: frozenset(), strays=lambda *_: frozenset()))
        given = Given((Slice("GPU-1", 0, GIB, 0),), compute=Compute(), trust=Trust("ml", 1000))
        self.known.creates(Tenant("ml", "a", "uid", "main"), given, "c1")
        self.client_of("g1")
        inventory = SimpleNamespace(cards=lambda: (Card("GPU-1", 0, 16 * GIB),), mode=lambda: Mode.MPS)
        self.clients = MpsClients(folder, self.known, inventory, lambda *one: self.said.append(one), lambda: self.now)
        monkeypatch.setattr("isolation.node.mps.backend.end", lambda _pids: None)

    def client_of(self, generation):
        """Of this server from now on."""
        (self.folder / "alloc" / "uid.main").mkdir(parents=True, exist_ok=True)
        (self.folder / "alloc" / "uid.main" / CLIENT).write_text(f"{generation}\n")

    @contextlib.contextmanager
    def keeper(self, server):
        """One that lives and says this."""
        with _opened(self.folder / LOCK) as fd:
            assert _locked(fd)
            MpsExchange(self.folder).serve({"GPU-1": server})
            yield

    def keep(self):
        """As the agent does once a second."""
        self.clients.keep(self.known.get("uid.main"))

    def ends(self):
        """By itself."""
        self.known.gone(SimpleNamespace(id="c1"))
        self.clients.gone("c1")


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def test_a_container_that_is_ended_for_its_server_is_reported_once_with_the_reason(world):
    with world.keeper(DIED):
        world.keep()
        world.keep()  # it takes more than a second to end
    [(tenant, reason, note)] = world.said
    assert (tenant.namespace, tenant.pod, tenant.uid, reason) == ("ml", "a", "uid", MPS_ENDED)
    assert "Container main" in note
    assert "GPU-1" in note
    assert "the MPS daemon died" in note
    assert world.clients.failed == 1
    world.client_of("g2")
    with world.keeper(MpsServer(why="the MPS server died", failed=True)):
        world.keep()
    assert [note for _, _, note in world.said[1:] if "server died" in note] == [world.said[-1][2]]
    assert world.clients.failed == 2


def test_the_end_of_the_keeper_is_a_reason_too(world):
    world.keep()
    assert "the MPS keeper ended" in world.said[0][2]


@pytest.mark.parametrize("noticed", [0.2, LATELY_SECONDS - 0.1])
def test_a_program_that_ended_of_it_before_anybody_noticed_is_reported_too(world, noticed):
    with world.keeper(SERVES):
        world.ends()
        world.clients.tell()
        assert not world.said
    world.now += noticed
    with world.keeper(DIED):
        world.clients.tell()
        world.clients.tell()
    assert [reason for _, reason, _ in world.said] == [MPS_ENDED]
    assert world.clients.failed == 1


@pytest.mark.parametrize(
    ("server", "later"),
    [
        (SERVES, 1.0),
        (DIED, LATELY_SECONDS + 0.1),
        (MpsServer(why="its containers run as user 7, the server serves user 1000"), 1.0),
        (MpsServer("g2", 7, GIB, 100), 1.0),
    ],
    ids=["serves", "long before", "of another user now", "replaced"],
)
def test_a_program_that_ended_for_itself_is_not_put_down_to_the_server(world, server, later):
    with world.keeper(SERVES):
        world.ends()
        world.clients.tell()
    world.now += later
    with world.keeper(server):
        world.clients.tell()
    assert not world.said
    assert world.clients.failed == 0


def test_whoever_was_no_client_is_none(world):
    (world.folder / "alloc" / "uid.main" / CLIENT).unlink()
    with world.keeper(DIED):
        world.keep()
        world.ends()
        world.clients.tell()
    assert not world.said


class ApiServer:
    """Takes Events, or not."""

    def __init__(self):
        self.away, self.answer, self.said = False, WriteResult(Outcome.DONE), []

    async def event(self, about, reason, note, *, warning):
        """See `Writer`."""
        if self.away:
            raise UnreachableError("away")
        self.said.append((about.path, about.uid, reason, note, warning))
        return self.answer


def test_events_wait_for_the_api_server_and_a_refusal_holds_nothing_up():
    server = ApiServer()
    events = PodEvents(server)
    server.away = True
    for number in range(MAX_WAITING + 3):
        events.warn(Tenant("ml", f"p{number}", f"u{number}", "main"), MPS_ENDED, "why")
    assert asyncio.run(events.cycle()) > 0
    server.away, server.answer = False, WriteResult(Outcome.REFUSED, "no")
    asyncio.run(events.cycle())
    asyncio.run(events.cycle())
    assert [f"u{number}" for number in range(3, MAX_WAITING + 3)] == [uid for _, uid, *_ in server.said]
    assert server.said[0] == ("/api/v1/namespaces/ml/pods/p3", "u3", MPS_ENDED, "why", True)
