# SPDX-License-Identifier: Apache-2.0
"""NVML of the simulated driver, asked through the real nvidia-ml-py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from isolation.simgpu.hardware import LIBRARIES
from isolation.simgpu.models import MIB

pytest.importorskip("pynvml")
PRELUDE = """
import json, sys, time
import pynvml as n
n.nvmlInit()
def tell(**facts): print(json.dumps(facts))
def error(name, *args):
    try: getattr(n, name)(*args)
    except n.NVMLError as exc: return exc.value
    return 0
h = None if error("nvmlDeviceGetHandleByIndex", 0) else n.nvmlDeviceGetHandleByIndex(0)
"""


def ask(box, code: str) -> dict:
    """Run some lines with nvidia-ml-py on the box's libnvidia-ml; what they tell."""
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "LD_LIBRARY_PATH": str(LIBRARIES)}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def test_cards_say_who_they_are(make_box):
    """
    Two kinds of card in one box: names, memory, and handles found again by UUID and by PCI id.
    """
    box = make_box("t4", "h100-80g")
    found = ask(
        box,
        """
g = n.nvmlDeviceGetHandleByIndex(1)
v2 = n.nvmlDeviceGetMemoryInfo(g, version=n.nvmlMemory_v2)
tell(count=n.nvmlDeviceGetCount(), names=[n.nvmlDeviceGetName(x) for x in (h, g)],
     driver=n.nvmlSystemGetDriverVersion(),
     total=v2.total, sum=v2.reserved + v2.used + v2.free, capability=n.nvmlDeviceGetCudaComputeCapability(g),
     uuid=n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(g))),
     pci=n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(g).busId)),
     power=n.nvmlDeviceGetPowerUsage(g), limit=n.nvmlDeviceGetEnforcedPowerLimit(g),
     degrees=n.nvmlDeviceGetTemperature(g, 0),
     fan=error("nvmlDeviceGetFanSpeed", g), wrong=error("nvmlDeviceGetHandleByIndex", 2))
""",
    )

    assert {
        "count": 2,
        "names": ["Tesla T4", "NVIDIA H100 80GB HBM3"],
        "driver": "615.71.05",
        "total": 81559 * MIB,
        "sum": 81559 * MIB,
        "capability": [9, 0],
        "uuid": 1,
        "pci": 1,
        "power": 70_000,
        "limit": 700_000,
        "degrees": 32,
        "fan": 3,
        "wrong": 2,
    } == found


def test_processes_and_their_memory(make_box, run):
    """
    A process with a context is listed with its physical bytes, and the card's use is their sum.
    """
    box = make_box()
    clients = [run(box, "start(); alloc(1 << 30); say('up'); wait()") for _ in range(2)]
    [client.line() for client in clients]
    found = ask(
        box,
        """
tell(each={p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)},
     graphics=n.nvmlDeviceGetGraphicsRunningProcesses(h), mps=n.nvmlDeviceGetMPSComputeRunningProcesses(h),
     used=n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used)
""",
    )

    assert {str(client.process.pid): (1024 + 306) * MIB for client in clients} == found["each"]
    assert (2 * (1024 + 306) * MIB, [], []) == (found["used"], found["graphics"], found["mps"])


def test_utilisation_comes_late_rounded_and_may_be_missing(make_box, run):
    """
    No work, no sample (NOT_FOUND); then multiples of the quantum, 37 % as 35, as old as they are late; with every
    sample lost there never is one.
    """
    settings = {"sample_ns": 100_000_000, "sample_late_ns": 200_000_000, "sample_quantum": 5}
    load = """
start(); (busy,) = functions(b"busy"); say("up")
while wait(): launch(busy, 37_000_000); say("queued")
"""
    watch = """
status = error("nvmlDeviceGetProcessUtilization", h, 0)
rows = [] if status else [(s.pid, s.smUtil, s.timeStamp) for s in n.nvmlDeviceGetProcessUtilization(h, 0)]
tell(status=status, rows=rows,
     late=error("nvmlDeviceGetProcessUtilization", h, max([0, *(row[2] for row in rows)])))
"""
    box, silent = make_box(**settings, sample_missing_permille=0), make_box(**settings, sample_missing_permille=1000)
    box.settle()
    silent.settle()
    client, other = run(box, load), run(silent, load)
    client.line()
    other.line()
    box.stop()
    silent.stop()
    assert 6 == ask(box, watch)["status"]
    for _ in range(8):
        for one, loaded in ((box, client), (silent, other)):
            loaded.tell()
            assert "queued" == loaded.line()
            one.step(100_000_000)
    found = ask(box, watch)
    since_1970 = max(time.time_ns() - time.monotonic_ns() for _ in range(20))

    assert (0, 6) == (found["status"], found["late"])
    [(pid, percent, stamp)] = found["rows"]
    assert client.process.pid == pid
    assert 35 == percent
    assert 0.25 == pytest.approx((box.now + since_1970) / 1e9 - stamp / 1e6, abs=0.1)
    assert 6 == ask(silent, watch)["status"]


def test_an_xid_is_told_to_those_who_registered(make_box):
    """
    An event set waits for the XID; what happened before it registered is not reported.
    """
    box = make_box()
    box.inject(0, "xid", 13)
    code = """
events = n.nvmlEventSetCreate(); n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, events)
before = error("nvmlEventSetWait_v2", events, 20)
print("ready", flush=True); sys.stdin.readline(); got = n.nvmlEventSetWait_v2(events, 120000)
tell(before=before, type=got.eventType, xid=got.eventData)
"""
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "LD_LIBRARY_PATH": str(LIBRARIES)}
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watcher:
        assert "ready\n" == watcher.stdout.readline()
        watcher.stdin.write("\n")
        watcher.stdin.flush()
        box.inject(0, "xid", 48)
        printed = json.loads(watcher.stdout.readline())

    assert {"before": 10, "type": 8, "xid": 48} == printed


def test_a_lost_card_says_so_and_comes_back(make_box):
    """
    NVML answers GPU_IS_LOST for a card off the bus, reports XID 79, and the others stay well.
    """
    box = make_box("t4", "t4")
    box.inject(0, "lost", 1)
    code = 'tell(first=error("nvmlDeviceGetHandleByIndex", 0), second=error("nvmlDeviceGetHandleByIndex", 1))'

    assert {"first": 15, "second": 0} == ask(box, code)
    assert 79 == box.cards()[0].last_xid
    box.inject(0, "lost", 0)
    assert {"first": 0, "second": 0} == ask(box, code)


def test_a_divided_card_has_instances(make_box):
    """
    An A100 in MIG mode: seven instances with UUIDs, 14 SMs and 9728 MiB each, and no utilisation.
    """
    found = ask(
        make_box("a100-80g-mig"),
        """
parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(n.nvmlDeviceGetMaxMigDeviceCount(h))]
tell(count=n.nvmlDeviceGetCount(), mode=n.nvmlDeviceGetMigMode(h), parts=len({n.nvmlDeviceGetUUID(p) for p in parts}),
     prefix=n.nvmlDeviceGetUUID(parts[0])[:4], memory=n.nvmlDeviceGetMemoryInfo(parts[0]).total,
     sms=n.nvmlDeviceGetAttributes_v2(parts[0]).multiprocessorCount, id=n.nvmlDeviceGetGpuInstanceId(parts[6]),
     parent=n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[3])),
     load=error("nvmlDeviceGetUtilizationRates", h))
""",
    )

    expected = {"count": 1, "mode": [1, 1], "parts": 7, "prefix": "MIG-", "memory": 9728 * MIB, "sms": 14, "id": 13}
    assert {**expected, "parent": 0, "load": 3} == found


def test_an_old_driver_knows_no_memory_limits(make_box):
    """
    With CUDA 12.2 the limits of driver 615 are not supported.
    """
    found = ask(
        make_box(cuda_version=12020),
        """
g = n.c_nvmlGetMemoryLimits_v1_t(b"/x", 0, 0, 0)
tell(version=n.nvmlSystemGetCudaDriverVersion(), status=error("nvmlDeviceGetMemoryLimits_v1", h, g))
""",
    )

    assert {"version": 12020, "status": 3} == found


def test_a_driver_that_went_away_must_be_restarted(make_box):
    """
    While the parameter says so every call answers its error, the start as well; afterwards those who were
    there are strangers until they start again.
    """
    box = make_box()
    code = """
print("ready", flush=True); sys.stdin.readline()
gone = [error("nvmlDeviceGetPowerUsage", h), error("nvmlDeviceGetCount")]
print("gone", flush=True); sys.stdin.readline()
orphaned = error("nvmlDeviceGetPowerUsage", h)
n.nvmlShutdown(); n.nvmlInit()
tell(gone=gone, orphaned=orphaned, again=error("nvmlDeviceGetPowerUsage", n.nvmlDeviceGetHandleByIndex(0)))
"""
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "LD_LIBRARY_PATH": str(LIBRARIES)}
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert "ready\n" == client.stdout.readline()
        box.set("nvml_status", 9)
        client.stdin.write("\n")
        client.stdin.flush()
        assert "gone\n" == client.stdout.readline()
        box.set("nvml_status", 0)
        client.stdin.write("\n")
        client.stdin.flush()
        printed = json.loads(client.stdout.readline())

    assert {"gone": [9, 9], "orphaned": 1, "again": 0} == printed


def test_a_driver_that_hangs_answers_when_it_does_not_any_more(make_box):
    """
    A call stands for as long as the parameter says, and answers then.
    """
    box = make_box()
    code = 'print("ready", flush=True); sys.stdin.readline(); tell(status=error("nvmlDeviceGetPowerUsage", h))'
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "LD_LIBRARY_PATH": str(LIBRARIES)}
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert "ready\n" == client.stdout.readline()
        box.set("nvml_hang", 1)
        client.stdin.write("\n")
        client.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(0.3)
        box.set("nvml_hang", 0)
        assert {"status": 0} == json.loads(client.stdout.readline())


def test_accounts_outlive_their_processes(make_box, run):
    """
    With accounting on: the most bytes of a process, while it lives and afterwards; off, there are none.
    """
    box = make_box()
    client = run(box, "start(); a = alloc(1 << 30); do('cuMemFree_v2', a); say('up'); wait()")
    client.line()
    look = """
pids = n.nvmlDeviceGetAccountingPids(h)
stats = [n.nvmlDeviceGetAccountingStats(h, pid) for pid in pids]
tell(mode=n.nvmlDeviceGetAccountingMode(h), found=[[p, s.maxMemoryUsage, s.isRunning] for p, s in zip(pids, stats)])
"""

    off = ask(box, 'tell(mode=n.nvmlDeviceGetAccountingMode(h), status=error("nvmlDeviceGetAccountingPids", h))')
    box.set("accounting", 1)
    alive = ask(box, look)
    client.kill()
    gone = ask(box, look)

    assert {"mode": 0, "status": 3} == off
    most = (1024 + 306) * MIB
    assert {"mode": 1, "found": [[client.process.pid, most, 1]]} == alive
    assert {"mode": 1, "found": [[client.process.pid, most, 0]]} == gone


def test_lists_without_bytes_and_with_clients_of_mps(make_box, run):
    """
    What NVML cannot tell is None in nvidia-ml-py; clients of MPS stand in both lists.
    """
    box = make_box(nvml_no_bytes=1, mps=1)
    client = run(box, "start(); say('up'); wait()")
    client.line()

    found = ask(
        box,
        """
lists = n.nvmlDeviceGetComputeRunningProcesses(h), n.nvmlDeviceGetMPSComputeRunningProcesses(h)
tell(lists=[[[p.pid, p.usedGpuMemory] for p in one] for one in lists])
""",
    )

    assert {"lists": [[[client.process.pid, None]]] * 2} == found


def test_a_card_says_that_it_is_part_of_no_fabric(make_box):
    """
    Where a card could be, the answer is a state; an older one does not know the question.
    """
    code = """
infos = n.c_nvmlGpuFabricInfo_v2_t(), n.c_nvmlGpuFabricInfo_v3_t()
for info in infos:
    info.state = 9
codes = [n._nvmlGetFunctionPointer("nvmlDeviceGetGpuFabricInfoV")(h, n.byref(info)) for info in infos]
infos[0].version = 1
codes.append(n._nvmlGetFunctionPointer("nvmlDeviceGetGpuFabricInfoV")(h, n.byref(infos[0])))
tell(codes=codes, states=[info.state & 0xFF for info in infos])
"""

    assert {"codes": [0, 0, 25], "states": [0, 0]} == ask(make_box("h100-80g"), code)
    assert {"codes": [3, 3, 25], "states": [9, 9]} == ask(make_box("t4"), code)


def test_the_table_of_private_functions_is_there_and_empty(make_box):
    """
    As nvidia-smi asks for it: its first word is its size, and nothing else is in it. Other tables there are none.
    """
    found = ask(
        make_box(),
        """
import ctypes
known = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
library, table = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.POINTER(ctypes.c_size_t)()
statuses = [library.nvmlInternalGetExportTable(ctypes.byref(table), one) for one in (known, bytes(16), None)]
tell(statuses=statuses, size=table[0])
""",
    )

    assert {"statuses": [0, 6, 2], "size": 8} == found
