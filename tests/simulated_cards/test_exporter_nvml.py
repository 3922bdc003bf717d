# SPDX-License-Identifier: Apache-2.0
"""NVML as the exporter reads it, judged by the simulator's own records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.simbox import HOLD, LOAD, Program, boxes, programs
from support.virtual_clock import Story
from support.waiting import until

pytest.importorskip("pynvml")
from exporter.sources.nvml.source import NvmlSource
from isolation.contract.reading import Hardware
from isolation.simgpu.models import MIB
from isolation.simgpu.report import card_uuid

GIB = 1 << 30
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture
def run(monkeypatch):
    """Starts programs that have said that they are up; none outlives the test."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    with programs() as running:

        def start(box, code, **env):
            running.append(Program(box.path, code, **env))
            assert "up" == running[-1].line()
            return running[-1]

        yield start


@pytest.fixture
def source(monkeypatch):
    """Opens sources on boxes; all are closed after the test."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    opened = []

    def begin(box, **options):
        opened.append(NvmlSource(box.path, **options))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


@pytest.fixture
def box(request):
    """A box of the models that the test names."""
    with boxes(*getattr(request, "param", ["t4", "t4"])) as made:
        yield made


def read(reader):
    """One reading, now."""
    return reader.read(time.monotonic())


@pytest.mark.parametrize(
    ("box", "cards"),
    [(["t4"] * 2, 2), (["a100-80g"] * 8, 8), (["h100-80g"] * 8, 8)],
    indirect=["box"],
    ids=["T4x2", "A100x8", "H100x8"],
)
def test_every_card_is_reported_with_what_the_driver_recorded(box, source, cards):
    """
    UUID, model, memory, limits, clocks and links of each card, as the simulator made it.
    """
    machine = read(source(box))
    records = box.cards()

    assert (cards, "615.71.05") == (len(machine.cards), machine.driver)
    for index, (card, book) in enumerate(zip(machine.cards, records, strict=True)):
        model = book.model
        assert (card_uuid(book), index, index) == (card.uuid, card.index, card.minor)
        assert (model.name.decode(), "", "") == (card.model, card.profile, card.parent)
        assert (model.total_bytes, model.reserved_bytes) == (card.total_bytes, card.reserved_bytes)
        assert model.total_bytes - model.reserved_bytes == card.free_bytes
        assert (model.limit_mw / 1e3, model.idle_mw / 1e3) == (card.power_limit_watts, card.power_watts)
        assert (345e6, model.memory_mhz * 1e6) == (card.sm_clock_hertz, card.memory_clock_hertz)
        assert (
            Hardware(
                recovery_action=card.hardware.recovery_action,
                remap_pending=card.hardware.remap_pending,
                remap_failed=card.hardware.remap_failed,
            ),
            0,
        ) == (card.hardware, card.pcie_replays), "nothing else unasked"
        assert (32, {0.0}, "default") == (
            card.temperature_celsius,
            set(card.throttled_seconds.values()),
            card.compute_mode,
        )
        assert (0, 0, None) == (card.ecc_corrected, card.ecc_uncorrected, card.nvlink_errors)
        assert ((), {}, 0.0) == (card.processes, card.busy, card.utilisation_ratio)
        assert (True, False) == (card.healthy, card.lost)
    assert (False, frozenset(), ()) == (machine.mps, machine.mps_servers, machine.divided)


def test_processes_have_the_bytes_that_the_driver_recorded(box, source, run):
    """
    On two cards: every process once, on its card, with its bytes, and used is their sum.
    """
    first = [run(box, HOLD, BYTES=GIB), run(box, HOLD, BYTES=3 * GIB)]
    second = run(box, HOLD, BYTES=2 * GIB, CARD=1)

    cards = read(source(box)).cards

    box.settle()
    for number, expected in enumerate(([program.pid for program in first], [second.pid])):
        booked = {client.pid: client.total_bytes for client in box.clients(number)}
        card = cards[number]
        assert sorted(expected) == [one.pid for one in card.processes]
        assert booked == {one.pid: one.bytes for one in card.processes}
        assert {"compute"} == {one.kind for one in card.processes}
        assert sum(booked.values()) == card.total_bytes - card.reserved_bytes - card.free_bytes


def gone(box, pid):
    """Whether the card has noticed, and has its memory back."""
    box.settle()
    return pid not in {client.pid for client in box.clients(0) if client.total_bytes}


def test_a_killed_process_is_gone_at_the_next_reading(box, source, run):
    """
    SIGKILL between two readings: neither a process nor its memory nor its time is left.
    """
    reader = source(box)
    stays, goes = run(box, HOLD, BYTES=GIB), run(box, LOAD, PART=0.5)
    before = read(reader).cards[0]
    goes.process.kill()
    goes.process.wait(timeout=300)
    until(lambda: gone(box, goes.pid))

    after = read(reader).cards[0]

    assert {stays.pid, goes.pid} == {one.pid for one in before.processes}
    assert (stays.pid,) == tuple(one.pid for one in after.processes)
    assert after.free_bytes > before.free_bytes
    time.sleep(1)
    assert goes.pid not in read(reader).cards[0].busy


@pytest.mark.parametrize("box", [["a100-80g-mig"]], indirect=True)
def test_instances_are_cards_and_their_card_is_reported_beside(box, source, run):
    """
    Seven instances with memory and processes of their own, whose compute time is unknown; power and
    temperature stand at the card that they are parts of, and in nobody's sum.
    """
    reader = source(box)
    program = run(box, HOLD, BYTES=2 * GIB)

    machine = read(reader)

    assert 7 == len(machine.cards)
    (card,) = machine.divided
    assert {card.uuid} == {part.parent for part in machine.cards}
    assert [card_uuid(book) for book in box.cards()] == [card.uuid, *(part.uuid for part in machine.cards)]
    assert {("1g.10gb", 0, None)} == {(part.profile, part.index, part.busy) for part in machine.cards}
    assert {9728 * MIB} == {part.total_bytes for part in machine.cards}
    assert list(range(7, 14)) == [part.gpu_instance for part in machine.cards]
    assert {card.model} == {part.model for part in machine.cards}
    assert {None} == {part.power_watts for part in machine.cards}
    assert (61.0, 32.0, None) == (card.power_watts, card.temperature_celsius, card.processes)
    users = {one.pid: part.uuid for part in machine.cards for one in part.processes}
    assert {program.pid: machine.cards[0].uuid} == users
    used = machine.cards[0].total_bytes - machine.cards[0].reserved_bytes - machine.cards[0].free_bytes
    assert (2 * 1024 + 416) * MIB == used


UNEVEN = """
import time
(busy,) = functions(b"busy")
say("up")
join()
while True:
    begun = time.monotonic()
    while time.monotonic() < begun + 0.3:
        launch(busy, 10_000_000); do("cuCtxSynchronize")
    time.sleep(0.5)
"""
WATCH = """
import ctypes, json, os, sys, time
from pathlib import Path
from exporter.sources.nvml.source import NvmlSource
from isolation.simgpu.hardware import Box
path = Path(sys.argv[1])
box, reader = Box(path), NvmlSource(path, beat=float(sys.argv[2]))
def read():
    return reader.read(time.monotonic()).cards
def records():
    box.settle()
    card = box.cards()[0]
    return {client.pid: client.own_ns for client in box.clients(0)}, card.busy_ns, card.clock_ns
ctypes.CDLL(None).virtual_clock_join()
read(); time.sleep(2); read()
before, windows = records(), []
for _ in range(3):
    time.sleep(2)
    windows.append(read()[0])
after = records()
wall = after[2] - before[2]
print(json.dumps({
    "spent": {pid: (ns - before[0].get(pid, 0)) / wall for pid, ns in after[0].items()},
    "told": {pid: sum(window.busy.get(pid, 0.0) for window in windows) / 3 for pid in after[0]},
    "busy": [(after[1] - before[1]) / wall, sum(window.utilisation_ratio for window in windows) / 3],
    "other": len(read()[1].busy)}), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("beat", "allowed"), [(0.15, 0.03), (0.0, 0.15)], ids=["sampled", "once a cycle"])
def test_compute_time_is_what_the_driver_recorded(box, run, beat, allowed):
    """
    A steady, a light and an uneven process on one card: over six seconds each is within three points of
    its own time in the simulator's records, and so is the card. Without samples between the cycles, the
    driver shows each process' last sample only, and it is a guess. The seconds are those of a story.
    """
    story = Story(box.path.with_name("story"), 4)
    member = story.environment({})
    load = [run(box, LOAD, PART=part, **member) for part in (0.25, 0.1)]
    load.append(run(box, UNEVEN, **member))
    command = [sys.executable, "-c", WATCH, str(box.path), str(beat)]
    env = story.environment() | {"PYTHONPATH": ROOT}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)

    assert 0 == done.returncode, done.stderr
    seen = json.loads(done.stdout)
    for program in load:
        assert 0.05 < seen["spent"][str(program.pid)]
        assert seen["spent"][str(program.pid)] == pytest.approx(seen["told"][str(program.pid)], abs=allowed)
    busy, reported = seen["busy"]
    assert busy == pytest.approx(reported, abs=0.03)
    assert 0 == seen["other"]


def test_energy_is_the_cards_own_counter_and_never_goes_back(box, source, run):
    """
    Joules as the records have them, growing while something runs.
    """
    reader = source(box)
    run(box, LOAD, PART=0.8)
    first = read(reader).cards[0].energy_joules
    time.sleep(1)

    second = read(reader).cards[0].energy_joules

    assert second > first
    assert box.cards()[0].energy_uj / 1e6 == pytest.approx(second, abs=20)


def test_errors_heat_and_throttling_are_reported(box, source):
    """
    What is injected is read: temperature and reasons at once, ECC counts with the next slow questions.
    """
    box.inject(1, "temperature", 91)
    box.inject(1, "throttle", 0x4 | 0x40 | 0x8000)
    box.inject(1, "ecc-corrected", 5)
    box.inject(1, "ecc-uncorrected", 2)

    cards = source(box)
    first = cards.read(1000.0).cards[1]
    card = cards.read(1002.0).cards[1]

    assert 91 == first.temperature_celsius
    assert {0.0} == set(first.throttled_seconds.values()), "nothing before the first reading"
    reported = {reason: seconds for reason, seconds in card.throttled_seconds.items() if seconds}
    assert {"power_cap": 2.0, "hardware_thermal": 2.0, "other": 2.0} == reported
    assert (5, 2) == (card.ecc_corrected, card.ecc_uncorrected)


def test_xids_are_counted_by_number_since_we_began(box, source):
    """
    Of what happened before nothing is reported; afterwards each is counted at its card. A fatal one makes the
    card ill, a program's own does not.
    """
    box.inject(0, "xid", 13)
    reader = source(box)
    assert {} == read(reader).cards[0].xids
    for xid in (31, 31, 13):
        box.inject(0, "xid", xid)
    box.inject(1, "xid", 48)

    first, second = read(reader).cards

    assert ({31: 2, 13: 1}, True) == (first.xids, first.healthy)
    assert ({48: 1}, False) == (second.xids, second.healthy)
    assert {31: 2, 13: 1} == read(reader).cards[0].xids


def test_accounts_tell_the_peak_of_who_has_ended(box, source, run):
    """
    With accounting on, a process that had 3 GiB for a moment and died between two readings leaves its
    peak for some seconds.
    """
    box.set("accounting", 1)
    reader, now = source(box), time.monotonic()
    spike = run(box, "a = alloc(3 << 30); do('cuMemFree_v2', a); say('up'); wait()")
    seen = reader.read(now).cards[0]
    spike.process.kill()
    spike.process.wait(timeout=300)
    time.sleep(0.2)

    after = reader.read(now + 2).cards[0]

    assert [spike.pid] == [one.pid for one in seen.processes]
    assert {spike.pid: 3 * GIB + 104 * MIB} == seen.peaks
    assert () == after.processes
    assert {spike.pid: 3 * GIB + 104 * MIB} == after.peaks
    assert after.peaks == reader.read(now + 2.01).cards[0].peaks
    assert {} == reader.read(now + 8).cards[0].peaks
    assert {} == reader.read(now + 8).cards[1].peaks


def test_bytes_that_the_driver_does_not_tell_are_unknown(box, source, run):
    """
    NVML's "not available" is no number of bytes, and the process is there all the same.
    """
    program = run(box, HOLD, BYTES=GIB)
    box.set("nvml_no_bytes", 1)

    card = read(source(box)).cards[0]

    assert [(program.pid, None)] == [(one.pid, one.bytes) for one in card.processes]


def test_clients_of_mps_are_reported_as_such(box, source, run):
    """
    NVML lists them twice, as computing and as clients: each is told once, with its bytes.
    """
    box.set("mps", 1)
    program = run(box, HOLD, BYTES=GIB)

    machine = read(source(box))

    assert machine.mps
    assert [(program.pid, GIB + 104 * MIB, "mps")] == [
        (one.pid, one.bytes, one.kind) for one in machine.cards[0].processes
    ]


def test_a_name_that_is_no_text_harms_nobody(box, source, run):
    """
    A program may call itself anything; the others are told all the same.
    """
    hostile = run(box, HOLD, name=b"\xff\xfe nvidia-cuda-mps-server", BYTES=GIB)

    machine = read(source(box))

    assert not machine.mps
    assert [hostile.pid] == [one.pid for one in machine.cards[0].processes]


def test_an_mps_server_is_noticed_by_its_name(box, source, run):
    """
    A process called nvidia-cuda-mps-server among those of a card.
    """
    reader = source(box)
    other = run(box, HOLD, BYTES=GIB)
    assert (False, frozenset()) == ((first := read(reader)).mps, first.mps_servers)
    server = run(box, HOLD, name="nvidia-cuda-mps-server", BYTES=GIB)

    machine = read(reader)

    assert (True, frozenset({server.pid})) == (machine.mps, machine.mps_servers)
    assert {other.pid, server.pid} == {one.pid for one in machine.cards[0].processes}
