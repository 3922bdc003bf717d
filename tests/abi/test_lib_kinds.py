# SPDX-License-Identifier: Apache-2.0
"""
Kinds of memory that are easily missed, and what is recorded instead of run: the simulator's own records judge.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from support.lib_machine import machines
from support.simcontainers import GIB, OOM

from isolation.contract import abi
from isolation.simgpu.hardware import KINDS


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


def in_books(one, kind):
    """Bytes of that kind that the card's one process has."""
    (client,) = one.box.clients(0)
    return client.bytes[KINDS.index(kind)]


VIRTUAL = """
prop = (c_int * 8)(1, 0, 1, 0)
GRANULE = 2 * MIB
def reserve(size):
    at = c_uint64()
    ok(cu.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)))
    return at.value
def create(size):
    handle = c_uint64()
    return cu.cuMemCreate(byref(handle), c_size_t(size), prop, c_uint64(0)), handle.value
"""
RETAIN = """
ok(begin())
at = reserve(6 * GIB)
rc, handle = create(6 * GIB)
ok(cu.cuMemMap(c_uint64(at), c_size_t(6 * GIB), c_size_t(0), c_uint64(handle), c_uint64(0)))
ok(cu.cuMemRelease(c_uint64(handle)))
again = c_uint64()
ok(cu.cuMemRetainAllocationHandle(byref(again), c_uint64(at + {far})))
ok(cu.cuMemUnmap(c_uint64(at), c_size_t(6 * GIB)))
held = create(2 * GIB)[0]
ok(cu.cuMemRelease(again))
say([rc, held, create(2 * GIB)[0]])
"""


@pytest.mark.parametrize("far", [0, 3 * GIB, 5 * GIB])
def test_a_handle_retained_anywhere_in_a_mapping_keeps_its_memory_charged(machine, far):
    """Unmapped and released, the memory lives on by the retained handle, and so does its charge."""
    one = machine()
    one.promise("a", (0, 7 * 1024))

    assert [0, OOM, 0] == one.run("a", VIRTUAL + RETAIN.format(far=far))


@pytest.mark.parametrize(("limit", "value"), [(3, 10), (4, 150_000)])
def test_what_the_device_runtime_reserves_is_charged(machine, limit, value):
    """Levels of synchronisation and launches that may wait: charged, refused past the promise, given back."""
    one = machine()
    one.promise("a", (0, 2048))
    process = one.start("a", f"ok(begin())\nbefore = info()[0]\nrc = cu.cuCtxSetLimit({limit}, c_size_t({value}))\n"
                             "say([rc, before - info()[0]])\nsys.stdin.readline()\n"
                             f"ok(cu.cuCtxSetLimit({limit}, c_size_t(2)))\nsay(before == info()[0])")  # fmt: skip
    rc, charged = map(int, process.stdout.readline().strip(" []\n").split(","))
    took = in_books(one, "context") - one.context_bytes()
    back, err = process.communicate("\n", timeout=120)
    one.promise("tight", (0, 512))

    assert (0, "true") == (rc, back.strip()), err
    assert 0 < took <= charged
    assert [OOM] == one.run("tight", f"ok(begin())\nsay([cu.cuCtxSetLimit({limit}, c_size_t({value}))])")


POOLS = """
class Place(Structure):
    _fields_ = [("type", c_int), ("id", c_int)]
class Props(Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("place", Place), ("win32", c_void_p), ("most", c_size_t),
                ("rest", c_uint8 * 56)]
DEVICE, HOST, NOWHERE, PINNED, MANAGED = 1, 2, 0, 1, 2
def made(place, kind):
    pool = c_void_p()
    rc = cu.cuMemPoolCreate(byref(pool), byref(Props(kind, 0, Place(place, 0))))
    return rc, pool
def default(place, kind, name="cuMemGetDefaultMemPool"):
    pool = c_void_p()
    return cu[name](byref(pool), byref(Place(place, 0)), kind), pool
def take(pool, size):
    at = c_uint64()
    return cu.cuMemAllocFromPoolAsync(byref(at), c_size_t(size), pool, None), at
ok(begin())
left = info()[0]
"""


@pytest.mark.parametrize("where", ["DEVICE", "HOST", "NOWHERE"])
@pytest.mark.parametrize("how", ["made", "default"])
def test_managed_pools_are_charged_like_managed_memory(machine, how, where):
    """All of it can come to the card, wherever it prefers to be."""
    one = machine()
    one.promise("a", (0, 2048))
    code = f"rc, pool = {how}({where}, MANAGED)\nok(rc)\n"
    code += "say([take(pool, GIB)[0], left - info()[0] >= GIB, take(pool, GIB)[0]])"

    assert [0, True, OOM] == one.run("a", POOLS + code)


@pytest.mark.parametrize(
    "how", ["made(HOST, PINNED)", "default(HOST, PINNED)", "default(HOST, PINNED, 'cuMemGetMemPool')"]
)
def test_pools_of_host_memory_are_not_charged(machine, how):
    """They take nothing of the card."""
    one = machine()
    one.promise("a", (0, 1024))
    code = f"rc, pool = {how}\nok(rc)\nsay([take(pool, 4 * GIB)[0], left - info()[0]])"

    assert [0, 0] == one.run("a", POOLS + code)


def test_managed_pools_are_refused_where_managed_memory_is(machine):
    """The flag REFUSE_MANAGED holds for pools, and is recorded."""
    one = machine()
    one.promise("a", (0, 2048), flags=abi.Flag.REFUSE_MANAGED)
    code = "say([made(DEVICE, MANAGED)[0], default(HOST, MANAGED)[0], default(HOST, PINNED)[0]])"

    assert [801, 801, 0] == one.run("a", POOLS + code)
    assert [abi.Breach.MANAGED] * 2 == [breach.kind for breach in one.breaches("a")]


SHAPES = [(64, 1 << 20, 0, 1, 0x20), (100, 9, 500, 4, 0x20), (4096, 1080, 0, 4, 0x08), (1 << 16, 0, 0, 1, 0x20),
          (7, 3, 2000, 2, 0x10)]  # fmt: skip
ARRAYS = """
class Shape(Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", c_uint), ("flags", c_uint)]
ok(begin())
charged = []
for width, height, depth, channels, kind in {shapes}:
    for levels in (0, 4):
        left, array = info()[0], c_void_p()
        shape = Shape(width, height, depth, kind, channels, 0)
        ok(cu.cuMipmappedArrayCreate(byref(array), byref(shape), levels) if levels else
           cu.cuArray3DCreate_v2(byref(array), byref(shape)))
        charged.append(left - info()[0])
        say(charged[-1])
        sys.stdin.readline()
        ok(cu.cuMipmappedArrayDestroy(array) if levels else cu.cuArrayDestroy(array))
"""


@pytest.mark.parametrize("version", [13030, 11050])
def test_arrays_are_charged_as_the_driver_lays_them_out(machine, version):
    """To the byte where the driver tells (CUDA 11.6); never too little where it does not."""
    one = machine(cuda_version=version)
    one.promise("a", (0, 8192))
    process = one.start("a", ARRAYS.format(shapes=SHAPES))
    charged, took = [], []
    for _ in range(2 * len(SHAPES)):
        charged.append(int(process.stdout.readline()))
        took.append(in_books(one, "array"))
        process.stdin.write("\n")
        process.stdin.flush()
    _, err = process.communicate("", timeout=120)

    assert not err
    assert all(truth > 0 for truth in took)
    if version >= 11060:
        assert took == charged
    else:
        assert all(truth <= claim for truth, claim in zip(took, charged, strict=True))


CAPTURE = """
ok(begin())
stream, graph, executable = c_void_p(), c_void_p(), c_void_p()
ok(cu.cuStreamCreate(byref(stream), 1))
function = kernel()
other = c_void_p()
ok(cu.cuStreamCreate(byref(other), 1))
def capture(begin, end):
    ok(begin())
    for each in range(40):
        ok(launch(function, 1000, stream))
        ok(launch(function, 1000, other))  # runs: what it costs is looked up meanwhile
        ok(cu.cuStreamSynchronize(other))
    return end()
def nodes():
    count = c_size_t()
    ok(cu.cuGraphGetNodes(graph, None, byref(count)))
    return count.value
rcs = [capture(lambda: cu.cuStreamBeginCapture_v2(stream, 2), lambda: cu.cuStreamEndCapture(stream, byref(graph)))]
rcs.append(nodes())
"""


def test_a_recapture_is_a_capture(machine):
    """Nothing is timed in it, and nothing of it is asked: it holds the program's launches, and stays valid."""
    one = machine()
    one.promise("a", (0, 2048), core_ppm=300_000)
    code = """
rcs.append(capture(lambda: cu.cuStreamBeginRecaptureToGraph(stream, 0, graph, None, None),
                   lambda: cu.cuStreamEndCapture(stream, byref(graph))))
say([*rcs, nodes()])
"""

    assert [0, 40, 0, 40] == one.run("a", CAPTURE + code)


def test_a_capture_into_a_graphics_command_list_is_a_capture(machine):
    """Its launches do not run: they cost nothing and wait for nobody. Afterwards all is as before."""
    one = machine()
    one.promise("a", (0, 2048), core_ppm=300_000)
    code = """
rcs.append(capture(lambda: cu.cuStreamBeginCaptureToCig(stream, byref(c_uint64())),
                   lambda: cu.cuStreamEndCaptureToCig(stream)))
rcs.append(launch(function, 1000, stream))
ok(cu.cuStreamSynchronize(stream))
say(rcs)
"""

    assert [0, 40, 0, 0] == one.run("a", CAPTURE + code)
    assert 81 == one.book("a").cards[0].launches


LISTS = """
from ctypes import *
nv = CDLL("libnvidia-ml.so.1")
ok(nv.nvmlInit_v2())
card = c_void_p()
ok(nv.nvmlDeviceGetHandleByIndex_v2(0, byref(card)))
class Sample(Structure):
    _fields_ = [("pid", c_uint), ("time", c_uint64), ("rest", c_uint * 4)]
class Info(Structure):
    _fields_ = [("time", c_uint64), ("pid", c_uint), ("rest", c_uint * 6)]
class Infos(Structure):
    _fields_ = [("version", c_uint), ("count", c_uint), ("since", c_uint64), ("list", POINTER(Info))]
class Detail(Structure):
    _fields_ = [("pid", c_uint), ("used", c_uint64), ("instance", c_uint * 2), ("protected", c_uint64)]
class Details(Structure):
    _fields_ = [("version", c_uint), ("mode", c_uint), ("count", c_uint), ("list", POINTER(Detail))]
class Old(Structure):
    _fields_ = [("pid", c_uint), ("used", c_uint64)]
class New(Structure):
    _fields_ = [("pid", c_uint), ("used", c_uint64), ("instance", c_uint * 2)]
def asked(kind, call):
    # as nvidia-ml-py does: once without room, for the number, and once with it
    first, need = call(0, None)
    entries = (kind * max(need, 1))()
    rc, count = call(need, entries)
    return [first, rc, sorted({each.pid for each in entries[:count]})]
def utilization(room, entries):
    count = c_uint(room)
    return nv.nvmlDeviceGetProcessUtilization(card, entries, byref(count), c_uint64(0)), count.value
def information(room, entries):
    infos = Infos(1 << 24 | sizeof(Infos), room, 0, cast(entries, POINTER(Info)))
    return nv.nvmlDeviceGetProcessesUtilizationInfo(card, byref(infos)), infos.count
def details(room, entries):
    wanted = Details(1 << 24 | sizeof(Details), 0, room, cast(entries, POINTER(Detail)))
    return nv.nvmlDeviceGetRunningProcessDetailList(card, byref(wanted)), wanted.count
def running(name):
    def call(room, entries):
        count = c_uint(room)
        return nv[name](card, byref(count), entries), count.value
    return call
def accounts():
    count, pids = c_uint(256), (c_uint * 256)()
    ok(nv.nvmlDeviceGetAccountingPids(card, byref(count), pids))
    return sorted(pids[:count.value])
seen = {"utilization": asked(Sample, utilization), "information": asked(Info, information),
        "details": asked(Detail, details), "accounts": accounts()}
for who in ("Compute", "MPSCompute"):
    for version, kind in (("", Old), ("_v2", New), ("_v3", New)):
        if (who, version) != ("MPSCompute", ""):
            seen[who + version] = asked(kind, running(f"nvmlDeviceGet{who}RunningProcesses{version}"))
stats = create_string_buffer(256)
seen["stats"] = [nv.nvmlDeviceGetAccountingStats(card, pid, stats) for pid in (os.getpid(), NEIGHBOUR)]
seen["hidden"] = sum(stats.raw[128:])
say(seen)
sys.stdin.readline()
"""
BUSY = """
ok(begin())
function = kernel()
ok(launch(function, 300e6))
ok(cu.cuCtxSynchronize())
"""


def test_neighbours_are_out_of_sight(machine):
    """Every list of processes, their use of the card and their accounts: this container's only. Outside: all."""
    one = machine(accounting=1, mps=1, sample_late_ns=0)
    for name in ("a", "b"):
        one.promise(name, (0, 2048))
    neighbour = one.start("b", f"{BUSY}say(0)\nsys.stdin.readline()")
    assert "0" == neighbour.stdout.readline().strip()
    look = f"NEIGHBOUR = {neighbour.pid}\n{BUSY}{LISTS}"
    inside, outside = one.start("a", look), one.start("a", look, LD_PRELOAD="")
    seen, whole = (json.loads(process.stdout.readline()) for process in (inside, outside))
    for process in (inside, outside, neighbour):
        process.communicate("\n", timeout=120)

    assert whole.keys() == seen.keys()
    for what in seen.keys() - {"stats", "hidden", "accounts"}:
        assert [7, 0, [inside.pid]] == seen[what], what
        assert neighbour.pid in whole[what][2], what
    assert [inside.pid] == seen["accounts"]
    assert neighbour.pid in whole["accounts"]
    assert ([0, 6], [0, 0]) == (seen["stats"], whole["stats"])


CROWDED = r"""
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetUUID(void *card, char *uuid, unsigned room)
{
    strncpy(uuid, "GPU-00000000-0000-0000-0000-000000000001", room);
    return !card;
}
int nvmlDeviceGetAccountingPids(void *card, unsigned *count, unsigned *pids)
{
    unsigned room = *count;
    *count = 3000;
    for (unsigned i = 0; room >= 3000 && i < 3000; i++)
        pids[i] = i == 2900 ? PID : 4000000 + i;
    return !card ? 2 : room < 3000 ? 7 : 0;
}
"""


def test_a_process_is_found_among_thousands_of_accounts(job, tmp_path):
    """Accounts are kept of processes that are gone, so of any number."""
    one = job(1)
    (tmp_path / "nvml.c").write_text(CROWDED)
    library = tmp_path / "libnvidia-ml.so.1"
    done = one.run(f"""
import subprocess
command = ["gcc", "-shared", "-fPIC", f"-DPID={{os.getpid()}}", "-o", {str(library)!r}, {str(tmp_path / "nvml.c")!r}]
subprocess.run(command, check=True, env={{"PATH": os.environ["PATH"]}})
begin()
nv = ctypes.CDLL({str(library)!r})
count, pids = ctypes.c_uint(0), (ctypes.c_uint * 4)()
need = nv.nvmlDeviceGetAccountingPids(c_void_p(1), byref(count), None)
room = count.value
rc = nv.nvmlDeviceGetAccountingPids(c_void_p(1), byref(count), pids)
say(need=[need, room], found=[rc, count.value, pids[0] == os.getpid()])
""")

    assert ([7, 1], [0, 1, True]) == (done["need"], done["found"])


TABLES = r"""
#include <stddef.h>
int nvmlInit_v2(void) { return 0; }
static const size_t machine[512] = {sizeof machine};
int nvmlInternalGetExportTable(const void **table, const unsigned char *id)
{
    *table = machine;
    return id[15] == 0xff ? 6 : 0;
}
"""
LOOK = """
import ctypes, json
nv = ctypes.CDLL({library!r})
def size(text):
    table = ctypes.POINTER(ctypes.c_size_t)()
    return [nv.nvmlInternalGetExportTable(ctypes.byref(table), bytes.fromhex(text)), table[0]]
print(json.dumps([size("c4fe3e6cc98f6c4ea327ee696e12f7c4"), size("c4" * 16), size("ff" * 16)]))
"""


def test_the_private_table_of_nvidia_smi_is_empty_under_a_promise(machine, tmp_path):
    """
    By it nvidia-smi would find cards and processes of the whole machine. Any other table, and any error, is NVML's own.
    """
    (tmp_path / "nvml.c").write_text(TABLES)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True, timeout=60)
    one = machine()
    one.promise("a", (0, 2048))
    look = LOOK.format(library=str(library))
    inside, outside = (
        json.loads(one.start("a", look, **env).communicate(timeout=300)[0]) for env in ({}, {"LD_PRELOAD": ""})
    )

    assert [[0, 8], [0, 4096], [6, 4096]] == inside
    assert [[0, 4096], [0, 4096], [6, 4096]] == outside
