# SPDX-License-Identifier: Apache-2.0
"""What is done with an MPS daemon, what agent and keeper tell each other, and which containers end with a server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Card, Compute, Mode, Slice, Trust
from isolation.contract.names import RUN_DIR
from isolation.node.allocations import Allocations
from isolation.node.cdi import Edits, Mount
from isolation.node.containers import Containers, Parts
from isolation.node.core.container_check import Given
from isolation.node.core.mps import MpsStep, Observed, Served, Wish, decide
from isolation.node.delivery import CLIENT
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.lock import _locked, _opened
from isolation.node.mps.backend import MpsClients
from isolation.node.mps.exchange import LOCK, MpsExchange, MpsServer, folder_of
from isolation.node.nri.model import Adjustment

GIB, MIB = 1 << 30, 1 << 20
SERVED = Served("g1", 1000, 2 * GIB, 50, 77)
WELL = Observed(alive=True, server=True, status="ACTIVE")
WISH = Wish(1000, 2 * GIB, 50)


@pytest.mark.parametrize(
    ("wish", "served", "now", "step", "why"),
    [
        (WISH, SERVED, WELL, MpsStep.NOTHING, ""),
        (Wish(), SERVED, WELL, MpsStep.NOTHING, ""),
        (Wish(1000, 3 * GIB, 50), SERVED, WELL, MpsStep.RAISE, ""),
        (Wish(1000, 1 * GIB, 60), SERVED, WELL, MpsStep.RAISE, ""),
        (Wish(1000, 1 * GIB, 10), SERVED, WELL, MpsStep.NOTHING, ""),
        (WISH, SERVED, Observed(alive=True, server=True), MpsStep.NOTHING, ""),
        (WISH, SERVED, Observed(alive=True, server=True, unanswered=2), MpsStep.NOTHING, ""),
        (WISH, SERVED, Observed(alive=True, server=True, unanswered=3), MpsStep.END, "does not answer"),
        (WISH, SERVED, Observed(alive=True, server=True, status="FAULT"), MpsStep.END, "a client's fault"),
        (WISH, SERVED, Observed(alive=True), MpsStep.END, "server died"),
        (WISH, SERVED, Observed(), MpsStep.END, "daemon died"),
        (Wish(0, 1 * GIB, 10), SERVED, WELL, MpsStep.END, "as user 0, the server serves user 1000"),
        (None, SERVED, WELL, MpsStep.END, "not served by MPS any more"),
        (WISH, None, Observed(), MpsStep.BEGIN, ""),
        (Wish(1000, GIB, 10, frozenset({"g0"})), None, Observed(), MpsStep.NOTHING, "waiting until containers"),
        (Wish(), None, Observed(), MpsStep.NOTHING, ""),
        (None, None, Observed(), MpsStep.NOTHING, ""),
        (WISH, None, Observed(alive=True), MpsStep.END, "another process"),
    ],
)
def test_a_daemon_is_as_it_should_be_or_ended_and_begun_anew(wish, served, now, step, why):
    found = decide(wish, served, now)
    assert found.step is step
    assert why in found.why


def test_the_keepers_word_counts_only_while_it_lives(tmp_path):
    exchange = MpsExchange(tmp_path)
    exchange.serve({"GPU-1": MpsServer("g1", 1000, GIB, 50, "")})
    assert exchange.servers() == {}
    with _opened(tmp_path / LOCK) as fd:
        assert _locked(fd)
        assert exchange.servers() == {"GPU-1": MpsServer("g1", 1000, GIB, 50, "")}


def test_wishes_are_read_as_they_were_written_and_what_cannot_be_read_is_none(tmp_path):
    exchange = MpsExchange(tmp_path)
    assert exchange.wishes() is None
    said = {"GPU-1": Wish(1000, GIB, 50, frozenset({"g1", "g2"})), "GPU-2": Wish()}
    exchange.wish(said)
    assert exchange.wishes() == said
    for text in ('{"GPU-1": 3}', '{"GPU-1": {"uid": "x"}}', "[]", "{", '{"GPU-1": {"uid": 1, "bytes": 1}}'):
        (tmp_path / "mps" / "wishes.json").write_text(text)
        assert exchange.wishes() is None


def test_a_pipe_directory_of_a_node_leaves_room_for_a_sockets_name():
    """A socket's path is at most 107 bytes."""
    assert len(str(folder_of(Path(RUN_DIR), "GPU-ce6d37ac-6d6f-5487-8b84-c11e44d02664") / "pipe")) < 60


def clients(tmp_path, *given, mode=Mode.MPS):
    """Containers of this node, all of which run, by name."""
    known = Allocations(SimpleNamespace(pids=lambda *_: frozenset({1}), strays=lambda *_: frozenset()))
    for name, one in given:
        known.creates(Tenant("ml", name, name, "main"), one, f"c-{name}")
        (tmp_path / "alloc" / f"{name}.main").mkdir(parents=True)
    cards = (Card("GPU-1", 0, 16 * GIB), Card("GPU-2", 1, 16 * GIB))
    inventory = SimpleNamespace(cards=lambda: cards, mode=lambda: mode)
    return known, MpsClients(tmp_path, known, inventory)


def part(uuid, size, core=0, uid=1000, *, enforced=True):
    return Given((Slice(uuid, 0, size, core),), enforced, Compute(), Trust("ml", uid))


def test_a_server_carries_the_largest_limit_of_any_of_its_containers(tmp_path):
    _, made = clients(
        tmp_path,
        ("a", part("GPU-1", 2 * GIB, 20)),
        ("b", part("GPU-1", 5 * GIB, 10)),
        ("c", part("GPU-1", 9 * GIB, enforced=False)),
    )
    (tmp_path / "alloc" / "a.main" / CLIENT).write_text("g1\n")
    assert made.wishes() == {"GPU-1": Wish(1000, 5 * GIB, 20, frozenset({"g1"})), "GPU-2": Wish()}


def test_a_container_without_a_share_of_compute_may_use_all_multiprocessors(tmp_path):
    _, made = clients(tmp_path, ("a", part("GPU-1", 2 * GIB)))
    assert made.wishes()["GPU-1"].percent == 100


def test_in_other_modes_only_containers_that_were_clients_are_served(tmp_path):
    _, made = clients(tmp_path, ("a", part("GPU-1", 2 * GIB)), ("b", part("GPU-2", 3 * GIB)), mode=Mode.CGPU)
    assert made.wishes() == {}
    (tmp_path / "alloc" / "a.main" / CLIENT).write_text("g1\n")
    assert set(made.wishes()) == {"GPU-1"}


@pytest.mark.parametrize(("model", "kept"), [("Tesla V100-SXM2-16GB", 306 * MIB), ("NVIDIA X1", 640 * MIB)])
def test_the_servers_own_memory_is_nobodys(tmp_path, model, kept):
    """A card that is full of promises has room for its server."""
    card = Card("GPU-1", 0, 16 * GIB, reserved_bytes=GIB, model=model)
    inventory = NodeInventory(SimpleNamespace(cards=lambda: (card,)), Terms(GIB), tmp_path / "node.json")
    inventory.refresh()
    inventory.serves(Mode.MPS, whole=False)
    assert [GIB + kept] == [one.reserved_bytes for one in inventory.cards()]
    inventory.serves(Mode.CGPU, whole=False)
    assert (card,) == tuple(inventory.cards())


def test_an_agent_that_serves_no_mps_writes_nothing(tmp_path):
    _, made = clients(tmp_path, mode=Mode.CGPU)
    made.tell()
    assert not (tmp_path / "mps").exists()


def test_a_container_ends_with_the_server_that_it_was_given_and_no_other_does(tmp_path, monkeypatch):
    known, made = clients(tmp_path, ("a", part("GPU-1", GIB)), ("b", part("GPU-1", GIB)), ("c", part("GPU-1", GIB)))
    (tmp_path / "alloc" / "a.main" / CLIENT).write_text("g1\n")
    (tmp_path / "alloc" / "b.main" / CLIENT).write_text("g2\n")
    ended = []
    monkeypatch.setattr("isolation.node.mps.backend.end", ended.append)

    def keep():
        ended.clear()
        for one in known.all():
            before = len(ended)
            made.keep(one)
            ended[before:] = [one.id] * (len(ended) - before)
        return ended

    with _opened(tmp_path / LOCK) as fd:
        assert _locked(fd)
        MpsExchange(tmp_path).serve({"GPU-1": MpsServer("g2", 1000, GIB, 100)})
        assert keep() == ["a.main"]
    assert keep() == ["a.main", "b.main"], "the keeper is gone, and its daemons with it"


def test_the_shared_memory_takes_the_place_of_the_containers_own():
    """Every container has a mount of /dev/shm: of two in one place nobody knows which is on top."""
    ours = Mount("/var/lib/gpushare/mps/x/shm", "/dev/shm", writable=True, replaces=True)  # noqa: S108 (a container's)
    made = Adjustment(mounts=(Mount("/a", "/b"), ours)).message().mounts
    assert ["-/dev/shm", "/b", "/dev/shm"] == [one.destination for one in made]  # noqa: S108


def test_the_guard_does_not_check_what_takes_the_place_of_a_containers_own():
    """It binds on the container's root, and /dev is a file system of its own: it would refuse every client."""
    shm = Mount("/var/lib/gpushare/mps/x/shm", "/dev/shm", writable=True, replaces=True)  # noqa: S108 (a container's)
    pipe = Mount("/var/lib/gpushare/mps/x/pipe", "/run/gpushare/mps/pipe")
    assert Edits(mounts=(pipe, shm)).guarded == (pipe,)


@pytest.mark.parametrize("running", [True, False])
def test_the_agent_looks_after_clients_that_run(running):
    looked = []
    tenant = Tenant("ml", "a", "a", "main")
    known = Allocations(SimpleNamespace(pids=lambda *_: frozenset({1}), strays=lambda *_: frozenset()))
    made = known.creates(tenant, part("GPU-1", GIB), "c1")
    if not running:
        known.gone(SimpleNamespace(id="c1"))
    pod = SimpleNamespace(container=lambda _name: None, part=lambda _name: None, allocation=None)
    pods = SimpleNamespace(synced=lambda: True, get=lambda _uid: pod)
    delivery = SimpleNamespace(standing=tuple, stands=lambda _ident: True)
    parts = Parts(pods, SimpleNamespace(), known, delivery, SimpleNamespace(sweep=lambda _known: None))
    agent = Containers(parts, mps=SimpleNamespace(keep=looked.append))
    agent._older = frozenset()
    agent.tidy()
    assert looked == ([made] if running else [])


@pytest.mark.parametrize(
    ("file", "size", "core", "waits"),
    [
        (f"g1\n{2 * GIB} 30\n", 2 * GIB, 30, False),
        (f"g1\n{2 * GIB} 30\n", 1 * GIB, 30, False),
        (f"g1\n{2 * GIB} 30\n", 3 * GIB, 30, True),
        (f"g1\n{2 * GIB} 30\n", 2 * GIB, 20, True),
        (f"g1\n{2 * GIB} 30\n", 2 * GIB, 40, True),
        (f"g1\n{2 * GIB} 100\n", 2 * GIB, 0, False),
        ("g1\n", 1 * GIB, 30, True),
        ("g1\nspoilt\n", 1 * GIB, 30, True),
        (None, 9 * GIB, 90, False),
    ],
)
def test_limits_beyond_those_of_a_clients_start_wait_for_its_restart(tmp_path, file, size, core, waits):
    """MPS reads both once, so less compute is not in force either; the library holds less memory."""
    known, made = clients(tmp_path, ("a", part("GPU-1", 2 * GIB, 30)))
    if file is not None:
        (tmp_path / "alloc" / "a.main" / CLIENT).write_text(file)
    found = made.needs_restart(known.get("a.main"), (Slice("GPU-1", 0, size, core),))
    assert bool(found) == waits
    assert not waits or "restart it" in found


def test_a_client_keeps_its_limits_and_the_reason_is_shown_until_its_restart():
    had, wanted = part("GPU-1", 2 * GIB), part("GPU-1", 4 * GIB).slices
    known = Allocations(SimpleNamespace(pids=lambda *_: frozenset({1}), strays=lambda *_: frozenset()))
    made = known.creates(Tenant("ml", "a", "a", "main"), had, "c1")
    record = SimpleNamespace(compute=had.compute)
    pod = SimpleNamespace(container=lambda _: None, part=lambda _: wanted, allocation=record)
    pods = SimpleNamespace(synced=lambda: True, get=lambda _uid: pod)
    changed, reasons = [], []
    delivery = SimpleNamespace(standing=tuple, stands=lambda _: True, change=lambda *_: changed.append(1))
    resizing = SimpleNamespace(
        second_look=lambda *_: None, may_grow=lambda _: True, hinders=lambda _one, why: reasons.append(why)
    )
    inventory = SimpleNamespace(cards=lambda: (Card("GPU-1", 0, 16 * GIB),))
    parts = Parts(pods, inventory, known, delivery, SimpleNamespace(sweep=lambda _known: None), resizing)
    why = ["restart it"]
    agent = Containers(parts, mps=SimpleNamespace(keep=lambda _: None, needs_restart=lambda *_: why[0]))
    agent._older = frozenset()
    agent.tidy()
    assert (changed, reasons, made.given) == ([], ["restart it"], had)
    why[0] = ""
    agent.tidy()
    assert (changed, made.given.slices) == ([1], wanted)
