# SPDX-License-Identifier: Apache-2.0
"""
Every documented mix of MIG profiles of A100-80 and H100: the agent's cards, the scheduler's placements, what a
container gets and what the exporter tells, against the accounts of the simulated hardware.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from uuid import UUID

import pytest
from support.cdi_process import Boxed, namespaces
from support.simbox import boxes

pytest.importorskip("pynvml")
from exporter.sources.nvml.source import NvmlSource
from isolation.contract.codec import decode_cards
from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Mode, Node, Placement, Request, Slice
from isolation.contract.names import CARDS
from isolation.contract.quantity import GIB
from isolation.host.machine import NvmlMachine
from isolation.node.backend import LibraryBackend
from isolation.node.core.container_check import Given
from isolation.node.delivery import Delivery
from isolation.node.hardware import SimulatedHardware
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.status import wish
from isolation.placement.engine import Engine
from isolation.simgpu.mig import PROFILES, layouts
from isolation.simgpu.report import card_uuid

LIBRARIES = Path(__file__).resolve().parents[2] / "isolation" / "simgpu" / "lib"
CARDS_OF_A_NODE = 8
pytestmark = pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").is_file(), reason="the simulated driver was not built")
needs_namespaces = pytest.mark.skipif(not namespaces(), reason="this user may not make mount namespaces")


def named(model, layout):
    """A divided card, as the simulator is told."""
    return f"{model}:{','.join(f'{part.profile.name}@{part.start}' for part in layout)}"


def covering(model):
    """Few divisions that have every profile at every place of it."""
    wanted = {(profile.name, start) for profile in PROFILES[model].values() for start in profile.starts}
    places = {each: {(part.profile.name, part.start) for part in each} for each in layouts(PROFILES[model])}
    while wanted:
        best = max(places, key=lambda each: len(places[each] & wanted))
        wanted -= places[best]
        yield best


def node_of(box, folder):
    """The node as the scheduler reads it from what the agent says; the agent's inventory."""
    machine = NvmlMachine(box.path)
    inventory = NodeInventory(machine, Terms(GIB), folder / "node.json")
    try:
        inventory.refresh()
    finally:
        machine.close()
    assert "" == inventory.trouble
    said = wish(inventory.cards(), Mode.CGPU, "ready").annotations[CARDS]
    return Node("n", decode_cards(said), Mode.CGPU, cpu_milli=1 << 40, memory_bytes=1 << 50)


@pytest.mark.parametrize("model", ["a100-80g", "h100-80g"])
def test_on_every_mix_agent_scheduler_and_exporter_agree_with_the_hardware(model, tmp_path, monkeypatch):
    """
    Each instance once, with its card, profile, ids and memory; and placements fill exactly what the hardware has.
    """
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    mixes = list(layouts(PROFILES[model]))
    for at in range(0, len(mixes), CARDS_OF_A_NODE):
        some = mixes[at : at + CARDS_OF_A_NODE]
        (tmp_path / str(at)).mkdir()
        with boxes(*(named(model, each) for each in some)) as box:
            books = [book.model for book in box.cards()]
            boards = [f"GPU-{UUID(bytes=bytes(one.uuid))}" for one in books[: len(some)]]
            hardware = {
                card_uuid(book): (
                    boards[book.model.parent - 1],
                    book.model.profile.decode(),
                    book.model.gpu_instance,
                    book.model.total_bytes,
                )
                for book in box.cards()
                if book.model.parent
            }
            node = node_of(box, tmp_path / str(at))
            source = NvmlSource(box.path)
            try:
                machine = source.read(time.monotonic())
            finally:
                source.close()
        assert list(range(len(hardware))) == [card.index for card in node.cards]
        known = {c.uuid: (c.board, c.instance.profile, c.instance.gpu, c.total_bytes) for c in node.cards}
        assert hardware == known
        told = {c.uuid: (c.parent, c.profile, c.gpu_instance, c.total_bytes) for c in machine.cards}
        assert hardware == told
        assert set(boards) == {card.uuid for card in machine.divided}
        engine, placed = Engine([node]), {}
        for card in sorted(node.cards, key=lambda card: -card.allocatable_bytes):
            request = Request(cards=1, card_bytes=card.allocatable_bytes)
            found = engine.place(request)
            assert isinstance(found, Placement)
            engine.hold(card.uuid, request, found)
            placed |= {part.uuid: part.bytes for part in found.slices}
        assert placed.keys() == hardware.keys()
        assert all(0 <= hardware[uuid][3] - size < 2 * GIB for uuid, size in placed.items())


@needs_namespaces
@pytest.mark.parametrize("model", ["a100-80g", "h100-80g"])
def test_a_container_has_its_part_of_its_own_instance(model, tmp_path, monkeypatch):
    """
    Every profile at every place: a process started as the agent says sees its promise on that instance, gets no byte
    more, and is charged there alone; the exporter tells its process there.
    """
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    (tmp_path / "boxed").mkdir()
    boxed = Boxed(tmp_path / "boxed")
    some = list(covering(model))
    with boxes(*(named(model, each) for each in some), teardown_ns=0) as box:
        cards = {card.uuid: card for card in node_of(box, tmp_path).cards}
        run_dir = tmp_path / "run"
        delivery = Delivery(run_dir, SimulatedHardware(box.path, LIBRARIES, run_dir), LibraryBackend(run_dir))
        source, told = NvmlSource(box.path), set()
        try:
            for card in cards.values():
                at = card.uuid[4:]
                given = Given((Slice(card.uuid, card.index, 4 * GIB),))
                edits = delivery.deliver(Tenant("ml", f"p-{card.index}", at, "main"), given, cards).edits
                code = "begin(); say([uuid(0), info()[1], alloc(3 << 30)[0], alloc(1 << 30)[0]]); sys.stdin.readline()"
                process = boxed.start(edits, code)
                said = process.stdout.readline()
                box.settle()
                used = {card_uuid(book): book.used_bytes for book in box.cards() if book.used_bytes}
                machine = source.read(time.monotonic())
                process.communicate("\n", timeout=60)
                assert [at.replace("-", ""), 4 * GIB, 0, 2] == json.loads(said)
                assert {card.uuid} == used.keys()
                assert used[card.uuid] >= 3 * GIB
                assert [card.uuid] == [one.uuid for one in machine.cards if one.processes]
                told.add((card.instance.profile, card.instance.gpu))
        finally:
            source.close()
    wanted = {(part.profile.name, part.gpu_instance) for each in some for part in each}
    assert wanted == told
