# SPDX-License-Identifier: Apache-2.0
"""A driver that is absent, failing, hanging or old: what is told meanwhile, and how it recovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.nvml_harness import GIB, read
from support.simbox import HOLD
from support.waiting import PATIENCE_SECONDS, until

from exporter.runner import Runner
from exporter.sources.errors import SourceError
from exporter.sources.nvml.card import ZERO_REASONS
from exporter.sources.nvml.source import NvmlSource
from isolation.simgpu.hardware import LIBRARIES, create

pytest.importorskip("pynvml")


ROOT = Path(__file__).parents[2]


def test_no_box_is_an_error_with_advice_and_recovers(tmp_path, monkeypatch):
    """
    A hardware file that is not there yet: every reading says how to make one, until somebody has.
    """
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")
    reader = NvmlSource(tmp_path / "hardware")
    for _ in range(2):
        with pytest.raises(SourceError, match="is not a file: create it with gpushare simgpu create"):
            read(reader)

    create(tmp_path / "hardware", ["t4"])

    assert 1 == len(read(reader).cards)
    reader.close()


def test_a_driver_that_is_not_loaded_at_first(box, source):
    """
    NVML fails at its start, again and again; once the driver is there the cards are reported, without a restart.
    """
    box.set("nvml_status", 9)
    for _ in range(3):
        with pytest.raises(SourceError, match="cannot initialize NVML: Driver Not Loaded"):
            read(source)

    box.set("nvml_status", 0)

    assert [True, True] == [card.healthy for card in read(source).cards]


@pytest.mark.parametrize("status", [1, 9, 999], ids=["uninitialized", "not loaded", "unknown"])
def test_a_driver_that_fails_in_between(box, source, run, status):
    """
    A reading in which no card answers fails; when the driver is back, which has forgotten us, NVML is started
    again and everything is told again, with the XIDs of before.
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
        assert runner.run_all(reads, PATIENCE_SECONDS)["nvml"].ok
        threads = threading.active_count()

        box.set("nvml_hang", 1)
        first = runner.run_all({"nvml": reads["nvml"]}, 0.3)
        later = [runner.run_all(reads, PATIENCE_SECONDS) for _ in range(20)]

        assert "timed out after 0.3 s" == first["nvml"].error
        assert all("no answer for" in outcome["nvml"].error for outcome in later)
        assert {1} == {outcome["other"].value for outcome in later}
        assert threads >= threading.active_count()

        box.set("nvml_hang", 0)
        outcome = until(lambda: (said := runner.run("nvml", lambda: read(source), PATIENCE_SECONDS)).ok and said)
        assert 2 == len(outcome.value.cards)


def test_leaving_does_not_wait_for_a_driver_that_hangs(box, source):
    """
    It is closed while the call still hangs.
    """
    read(source)
    box.set("nvml_hang", 1)
    stuck = threading.Thread(target=lambda: read(source), daemon=True)
    stuck.start()
    time.sleep(0.1)

    source.close()

    assert stuck.is_alive()
    box.set("nvml_hang", 0)
    stuck.join(PATIENCE_SECONDS)
    assert not stuck.is_alive()


OLD = """
import json, sys, time
from exporter.sources.nvml.source import NvmlSource
source = NvmlSource(beat=0)
source.read(1000.0)
time.sleep(0.3)
card = source.read(1002.0).cards[0]
later = source.read(1004.0).cards[0]
print(json.dumps({"total": card.total_bytes, "reserved": card.reserved_bytes, "free": card.free_bytes,
    "processes": [[one.pid, one.bytes] for one in card.processes], "busy": card.busy,
    "load": card.utilisation_ratio, "throttle": sorted(later.throttled_seconds.items()),
    "energy": [card.energy_joules, later.energy_joules],
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

    done = subprocess.run(
        [sys.executable, "-c", OLD], env=env, capture_output=True, text=True, check=False, timeout=300
    )

    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    model = box.cards()[0].model
    bytes_ = GIB + model.context_bytes
    assert (model.total_bytes, None) == (found["total"], found["reserved"])
    assert model.total_bytes - model.reserved_bytes - bytes_ == found["free"]
    assert [[program.pid, bytes_]] == found["processes"]
    assert (None, 0.0, [[reason, 0.0] for reason in sorted(ZERO_REASONS)], 32) == (
        found["busy"],
        found["load"],
        found["throttle"],
        found["degrees"],
    )
    assert [20.0, 40.0] == pytest.approx(found["energy"])
    assert {} == found["xids"]


def test_no_driver_at_all_is_an_error_with_advice(tmp_path):
    """
    A machine without libnvidia-ml: the error says what to look for.
    """
    code = """
from exporter.sources.nvml.source import NvmlSource
from exporter.sources.errors import SourceError
try: NvmlSource().read(1.0)
except SourceError as exc: print(exc)
"""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=300
    )

    assert "cannot initialize NVML: NVML Shared Library Not Found" in done.stdout
    assert "the NVIDIA driver is installed" in done.stdout
