"""NVML failing, hanging, losing cards, being old: what the exporter tells meanwhile, and how it recovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from simbox import HOLD, Program, boxes, programs

pytest.importorskip("pynvml")
import pynvml

from exporter.runner import Runner
from exporter.sources import nvml_library
from exporter.sources.errors import SourceError
from exporter.sources.nvml import NvmlSource
from isolation.simgpu.hardware import LIBRARIES, create
from isolation.simgpu.report import card_uuid

GIB = 1 << 30
ROOT = Path(__file__).parents[2]


@pytest.fixture
def box(request, monkeypatch):
    """A box of the models that the test names."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    with boxes(*getattr(request, "param", ["t4", "t4"])) as made:
        yield made


@pytest.fixture
def source(box):
    """A source on the box, closed after the test, with the box well again so that nothing hangs."""
    reader = NvmlSource(box.path)
    yield reader
    box.set("nvml_hang", 0)
    reader.close()


@pytest.fixture
def run():
    """Starts programs that have said that they are up; none outlives the test."""
    with programs() as running:

        def start(box, code, **env):
            running.append(Program(box.path, code, **env))
            assert "up" == running[-1].line()
            return running[-1]

        yield start


def read(reader, now=None):
    """One reading."""
    return reader.read(time.monotonic() if now is None else now)


def figures(card):
    """What a lost card may not tell."""
    return {
        card.free_bytes,
        card.processes,
        card.busy,
        card.utilisation_ratio,
        card.power_watts,
        card.energy_joules,
        card.temperature_celsius,
        card.throttle,
        card.ecc_uncorrected,
    }


def test_no_box_is_an_error_with_advice_and_recovers(tmp_path, monkeypatch):
    """
    A hardware file that is not there yet: every reading says how to make one, until somebody has.
    """
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    reader = NvmlSource(tmp_path / "hardware")
    for _ in range(2):
        with pytest.raises(SourceError, match="is no file; make one: gpushare simgpu create"):
            read(reader)

    create(tmp_path / "hardware", ["t4"])

    assert 1 == len(read(reader).cards)
    reader.close()


def test_a_driver_that_is_not_loaded_at_first(box, source):
    """
    NVML fails at its start, again and again; once the driver is there the cards are told, without a restart.
    """
    box.set("nvml_status", 9)
    for _ in range(3):
        with pytest.raises(SourceError, match="NVML does not start: Driver Not Loaded"):
            read(source)

    box.set("nvml_status", 0)

    assert [True, True] == [card.healthy for card in read(source).cards]


@pytest.mark.parametrize("status", [1, 9, 999], ids=["uninitialized", "not loaded", "unknown"])
def test_a_driver_that_fails_in_between(box, source, run, status):
    """
    A reading in which no card answers fails; when the driver is back, which has forgotten us, NVML is started
    anew and everything is told again, with the XIDs of before.
    """
    program = run(box, HOLD, BYTES=GIB)
    read(source)
    box.inject(0, "xid", 31)
    read(source)

    box.set("nvml_status", status)
    with pytest.raises(SourceError):
        read(source)
    with pytest.raises(SourceError):
        read(source)
    box.set("nvml_status", 0)
    cards = read(source).cards

    assert [program.pid] == [one.pid for one in cards[0].processes]
    assert ({31: 1}, {}) == (cards[0].xids, cards[1].xids)
    box.inject(0, "xid", 31)
    assert {31: 2} == read(source).cards[0].xids


def test_a_driver_that_hangs_costs_the_cycle_its_deadline_once(box, source):
    """
    While NVML does not answer, the cycle goes on: the first reading fails at its deadline, those after at
    once, beside them another source is read. When it answers again, so do we.
    """
    with Runner() as runner:
        reads = {"nvml": lambda: read(source), "other": lambda: 1}
        assert runner.run_all(reads, 5)["nvml"].ok
        threads = threading.active_count()

        box.set("nvml_hang", 1)
        begun = time.monotonic()
        outcomes = [runner.run_all(reads, 0.3) for _ in range(20)]
        took = time.monotonic() - begun

        assert not any(outcome["nvml"].ok for outcome in outcomes)
        assert "did not answer within 0.3 s" == outcomes[0]["nvml"].error
        assert "has not answered for" in outcomes[-1]["nvml"].error
        assert {1} == {outcome["other"].value for outcome in outcomes}
        assert 0.3 <= took < 2
        assert threads >= threading.active_count()

        box.set("nvml_hang", 0)
        end = time.monotonic() + 10
        while not (outcome := runner.run("nvml", lambda: read(source), 5)).ok and time.monotonic() < end:
            time.sleep(0.01)
        assert 2 == len(outcome.value.cards)


def test_leaving_does_not_wait_for_a_driver_that_hangs(box, source):
    """
    Closing takes a second at most.
    """
    read(source)
    box.set("nvml_hang", 1)
    stuck = threading.Thread(target=lambda: read(source), daemon=True)
    stuck.start()
    time.sleep(0.1)
    begun = time.monotonic()

    source.close()

    assert time.monotonic() - begun < 1.5
    box.set("nvml_hang", 0)
    stuck.join(5)
    assert not stuck.is_alive()


def test_a_lost_card_takes_nobody_with_it(box, source, run):
    """
    Off the bus: lost, ill, every figure unknown, XID 79 counted; the other card's are all there. Found
    again, it is told as before.
    """
    run(box, HOLD, BYTES=GIB)
    other = run(box, HOLD, BYTES=GIB, CARD=1)
    before = read(source).cards

    box.inject(0, "lost", 1)
    lost, fine = read(source).cards

    assert (True, False, {79: 1}) == (lost.lost, lost.healthy, lost.xids)
    assert {None} == figures(lost)
    assert (before[0].uuid, before[0].total_bytes) == (lost.uuid, lost.total_bytes)
    assert (False, True, before[1].free_bytes) == (fine.lost, fine.healthy, fine.free_bytes)
    assert [other.pid] == [one.pid for one in fine.processes]
    assert fine.power_watts is not None

    box.inject(0, "lost", 0)
    assert before[0].free_bytes == (found := read(source).cards[0]).free_bytes
    assert (False, True) == (found.lost, found.healthy)


def test_a_card_that_is_lost_from_the_start(box, source):
    """
    Nobody knows its UUID: it is told as lost all the same, and by its own name once it is found.
    """
    box.inject(1, "lost", 1)

    fine, lost = read(source).cards

    assert ("lost-1", 1, True, False) == (lost.uuid, lost.index, lost.lost, lost.healthy)
    assert {None} == figures(lost)
    assert (False, True) == (fine.lost, fine.healthy)
    box.inject(1, "lost", 0)
    assert card_uuid(box.cards()[1]) == read(source).cards[1].uuid


def test_while_a_card_is_lost_nvml_is_started_anew_every_minute(box, source):
    """
    A real driver shows a card that was reset only to those who start afterwards. The lost one keeps its
    name over a new start.
    """
    uuid = read(source, 100.0).cards[0].uuid
    box.inject(0, "lost", 1)
    read(source, 102.0)
    first = source._session
    read(source, 130.0)
    same = source._session
    lost = read(source, 170.0).cards[0]

    assert first is same
    assert first is not source._session
    assert (uuid, True, {79: 1}) == (lost.uuid, lost.lost, lost.xids)


def test_a_card_is_ill_until_it_was_reset(box, source):
    """
    After a fatal XID a card stays ill, also when NVML is started anew because of another card; once the
    driver was loaded again, or the card was gone and came back, it is well.
    """
    read(source, 100.0)
    box.inject(1, "xid", 48)
    box.inject(0, "xid", 48)
    box.inject(0, "lost", 1)
    assert [False, False] == [card.healthy for card in read(source, 102.0).cards]
    lost, ill = read(source, 170.0).cards
    assert (True, False, False) == (lost.lost, ill.lost, ill.healthy)

    box.inject(0, "lost", 0)
    assert [True, False] == [card.healthy for card in read(source, 172.0).cards]

    box.set("nvml_status", 1)
    with pytest.raises(SourceError):
        read(source, 174.0)
    box.set("nvml_status", 0)
    assert [True, True] == [card.healthy for card in read(source, 176.0).cards]


@pytest.mark.parametrize("box", [["a100-80g-mig", "t4"]], indirect=True)
def test_a_lost_card_loses_its_instances(box, source):
    """
    A divided card off the bus: it and all its instances are lost, the card beside is not.
    """
    assert 8 == len(read(source).cards)
    box.inject(0, "lost", 1)

    machine = read(source)

    assert [True] * 7 + [False] == [card.lost for card in machine.cards]
    assert {None} == set().union(*(figures(card) for card in machine.cards[:7]))
    assert [True] == [card.lost for card in machine.divided]


def test_what_a_model_does_not_have_is_asked_for_once(source, monkeypatch):
    """
    A T4 has no row remapping: it is asked about it once in ten minutes, and once for both of them.
    """
    asked = []
    real = pynvml.nvmlDeviceGetRemappedRows

    def counted(handle):
        asked.append(1)
        return real(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", counted)
    for second in range(0, 590, 10):
        read(source, 1000.0 + second)
    assert 1 == len(asked)
    for second in range(590, 640, 10):
        read(source, 1000.0 + second)

    assert 2 == len(asked)


def test_slow_questions_are_spread_over_the_cycles(source, monkeypatch):
    """
    At first all cards are asked about what changes rarely, later one in each cycle, all within a minute.
    """
    asked = []
    real = pynvml.nvmlDeviceGetEnforcedPowerLimit

    def counted(handle):
        asked.append(1)
        return real(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetEnforcedPowerLimit", counted)
    counts = []
    for second in range(0, 60, 2):
        read(source, 1000.0 + second)
        counts.append(len(asked))

    assert 2 == counts[0]
    assert max(b - a for a, b in pairwise(counts)) == 1
    assert 2 * 3 <= counts[-1] <= 2 * 5


def test_expensive_lists_are_asked_for_when_memory_is_unexplained(box, source, run, monkeypatch):
    """
    Graphics and MPS processes: at first, then not while compute processes explain the card, and again
    when memory appears that nobody has.
    """
    asked = []
    real = nvml_library.Library.processes

    def counted(self, model, kind, handle):
        asked.append(kind)
        return real(self, model, kind, handle)

    monkeypatch.setattr(nvml_library.Library, "processes", counted)
    for second in range(10):
        read(source, 1000.0 + second)
    quiet = asked.count("Graphics")
    run(box, HOLD, BYTES=GIB)
    read(source, 1010.0)
    explained = asked.count("Graphics")
    box.set("nvml_no_bytes", 1)
    read(source, 1011.0)

    assert (2, 2, 3) == (quiet, explained, asked.count("Graphics"))
    assert 24 == asked.count("Compute")


def test_more_processes_than_there_was_room_for(box, source, run, monkeypatch):
    """
    A list that does not fit is asked for again with more room, and is whole.
    """
    monkeypatch.setattr(nvml_library, "_ROOM", 1)
    pids = [run(box, HOLD, BYTES=GIB).pid for _ in range(4)]

    card = read(source).cards[0]

    assert sorted(pids) == [one.pid for one in card.processes]


def test_sampling_takes_a_small_part_of_the_time_however_slow_the_driver(source, monkeypatch):
    """
    Where sampling takes 50 ms it is done every 2.5 s at most, not seven times a second.
    """
    read(source)
    taken = []

    def slow(micros):
        taken.append(micros)
        time.sleep(0.05)

    monkeypatch.setattr(source._session, "sample", slow)
    end = time.monotonic() + 20
    while not taken and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(1.5)

    assert 1 == len(taken)


OLD = """
import json, sys, time
from exporter.sources.nvml import NvmlSource
source = NvmlSource(beat=0)
source.read(1000.0)
time.sleep(0.3)
card = source.read(1002.0).cards[0]
later = source.read(1004.0).cards[0]
print(json.dumps({"total": card.total_bytes, "reserved": card.reserved_bytes, "free": card.free_bytes,
    "processes": [[one.pid, one.bytes] for one in card.processes], "busy": card.busy,
    "load": card.utilisation_ratio, "throttle": card.throttle, "energy": [card.energy_joules, later.energy_joules],
    "degrees": card.temperature_celsius, "xids": dict(card.xids)}))
source.close()
"""
YOUNG = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetFieldValues",
    "nvmlEventSetWait_v2",
)


def test_a_driver_older_than_the_client(box, run, tmp_path):
    """
    With functions missing the older forms tell what they can: memory without what is reserved, processes,
    load, reasons, and energy from power by time. What nobody can tell is unknown.
    """
    library = (LIBRARIES / "libnvidia-ml.so.1").read_bytes()
    for name in YOUNG:
        assert name.encode() + b"\0" in library
        library = library.replace(b"\0" + name.encode() + b"\0", b"\0" + name[:-2].encode() + b"__\0")
    (tmp_path / "libnvidia-ml.so.1").write_bytes(library)
    program = run(box, HOLD, BYTES=GIB)
    env = {
        **os.environ,
        "GPUSHARE_SIMGPU": str(box.path),
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run([sys.executable, "-c", OLD], env=env, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    model = box.cards()[0].model
    bytes_ = GIB + model.context_bytes
    assert (model.total_bytes, None) == (found["total"], found["reserved"])
    assert model.total_bytes - model.reserved_bytes - bytes_ == found["free"]
    assert [[program.pid, bytes_]] == found["processes"]
    assert (None, 0.0, [], 32) == (found["busy"], found["load"], found["throttle"], found["degrees"])
    assert [20.0, 40.0] == pytest.approx(found["energy"])
    assert {} == found["xids"]


def test_no_driver_at_all_is_an_error_with_advice(tmp_path):
    """
    A machine without libnvidia-ml: the error says what to look for.
    """
    code = """
from exporter.sources.nvml import NvmlSource
from exporter.sources.errors import SourceError
try: NvmlSource().read(1.0)
except SourceError as exc: print(exc)
"""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}

    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    assert "NVML does not start: NVML Shared Library Not Found" in done.stdout
    assert "is the NVIDIA driver installed" in done.stdout
