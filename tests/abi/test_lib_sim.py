# SPDX-License-Identifier: Apache-2.0
"""
The library on the simulated driver, whose own records are the only judge.

How the card is divided is judged in stories with a clock of their own: `virtual_clock`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from support.virtual_clock import Story, percent

from isolation.contract import abi
from isolation.lib import files

hardware = pytest.importorskip("isolation.simgpu.hardware")
GIB = 1 << 30
MIB = 1 << 20
OOM = 2
DRIVER = Path(hardware.__file__).parent / "lib" / "libcuda.so.1"

CLIENT = """
import ctypes, json, os, random, sys, time
from ctypes import *
GIB, MIB = 1 << 30, 1 << 20
cu = CDLL("libcuda.so.1")
def ok(rc):
    assert rc == 0, rc
def begin():
    ok(cu.cuInit(0))
    context = c_void_p()
    ok(cu.cuDevicePrimaryCtxRetain(byref(context), 0))
    ok(cu.cuCtxSetCurrent(context))
def alloc(size):
    at = c_uint64()
    return cu.cuMemAlloc_v2(byref(at), c_size_t(size)), at
def info():
    left, total = c_size_t(), c_size_t()
    ok(cu.cuMemGetInfo_v2(byref(left), byref(total)))
    return left.value, total.value
def kernel():
    module, function = c_void_p(), c_void_p()
    ok(cu.cuModuleLoadData(byref(module), b"simgpu 1\\nkernel k params=8 ns=$0\\n"))
    ok(cu.cuModuleGetFunction(byref(function), module, b"k"))
    return function
def stream():
    made = c_void_p()
    ok(cu.cuStreamCreate(byref(made), 1))
    return made
def launch(function, ns, on):
    value = c_uint64(int(ns))
    parameters = (c_void_p * 1)(addressof(value))
    ok(cu.cuLaunchKernel(function, 80, 1, 1, 128, 1, 1, 0, on, parameters, None))
def join():
    CDLL(None).virtual_clock_join()
def say(what):
    print(json.dumps(what), flush=True)
"""


@dataclass
class Machine:
    """A simulated box and the jobs that share its first card."""

    folder: Path
    library: Path
    box: hardware.Box

    @property
    def uuid(self) -> UUID:
        """The card that everybody shares."""
        return UUID(bytes=bytes(self.box.cards()[0].model.uuid))

    def job(
        self, name: str, gib: int, core_percent: int = 0, policy: abi.Policy = abi.Policy.FIXED, *, ceiling: int = 0
    ) -> None:
        """Promise a container its part."""
        files.create_region(self.folder / f"{name}.region", name)
        context = self.box.cards()[0].model.context_bytes
        card = abi.CardLimit(self.uuid, gib * GIB, context, core_percent * 10_000, policy, ceiling_ppm=ceiling * 10_000)
        files.write_limits(self.folder / f"{name}.limits", abi.Limits(1, name, (card,)))

    def start(self, name: str, code: str, story: Story | None = None) -> subprocess.Popen[str]:
        """Run Python inside a container; it may be a member of a story."""
        env = dict(os.environ, LD_LIBRARY_PATH=str(self.folder), LD_PRELOAD=str(self.library))
        env |= {f"GPUSHARE_{key.upper()}": str(self.folder / f"{name}.{key}") for key in ("limits", "region", "feed")}
        env["GPUSHARE_SIMGPU"] = str(self.folder / "hardware")
        env = story.environment(env) if story else env
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-S", "-c", CLIENT + code], env=env, text=True, **pipes)

    def own_ns(self) -> dict[int, int]:
        """GPU time by process, as the hardware counted it."""
        self.box.settle()
        found: dict[int, int] = {}
        for client in self.box.clients(0):
            found[client.pid] = found.get(client.pid, 0) + client.own_ns
        return found

    def book(self, name: str) -> abi.RegionReading:
        """A container's region."""
        return files.read_region(self.folder / f"{name}.region")


@pytest.fixture
def machine(tmp_path, plain_library):
    """A box with one V100, its driver folder, and our library."""
    if not DRIVER.is_file():
        pytest.skip("the simulated driver is not built")
    folder = Path("/dev/shm") / f"gpushare-test-{os.getpid()}-{tmp_path.name}"  # noqa: S108 (a tmpfs, removed below)
    folder.mkdir()
    hardware.create(folder / "hardware", ["v100-16g"], {"teardown_ns": 0})
    hardware.install(folder)
    with hardware.open_box(folder / "hardware") as box:
        yield Machine(folder, plain_library, box)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def last(process: subprocess.Popen[str]) -> object:
    """What a client said last; it must have ended well."""
    out, _ = process.communicate("", timeout=120)
    assert 0 == process.returncode
    return json.loads(out.splitlines()[-1])


def test_seed_story_on_a_simulated_v100(machine):
    """15 GiB sold: 5 and 10. The greedy one is stopped inside its 5; the other takes its 10 and never notices."""
    machine.job("one", 5)
    machine.job("two", 10)
    code = """
begin()
left, total = info()
got = 0
while alloc(512 * MIB)[0] == 0:
    got += 1
say([total // GIB, got * 512 + (total - left) // MIB, alloc(512 * MIB)[0]])
sys.stdin.read()
"""
    first = machine.start("one", code)
    one = json.loads(first.stdout.readline())
    second = machine.start("two", code)
    two = json.loads(second.stdout.readline())
    peaks = [book.total_bytes // MIB for book in machine.box.clients(0)]
    first.communicate("", timeout=120)
    second.communicate("", timeout=120)

    assert [5, OOM] == [one[0], one[2]]
    assert [10, OOM] == [two[0], two[2]]
    assert 5 * 1024 - 512 < one[1] <= 5 * 1024
    assert 10 * 1024 - 512 < two[1] <= 10 * 1024
    assert all(peak <= limit * 1024 for peak, limit in zip(sorted(peaks), (5, 10), strict=True))
    assert {abi.Breach.DENIED} == {record.kind for record in files.read_breaches(machine.folder / "one.region")[2]}


def test_a_killed_exporters_memory_is_charged_while_an_importer_lives(machine):
    """IPC: counted once, at the exporter; after SIGKILL it stays charged until the importer goes too."""
    machine.job("one", 4)
    exporter = machine.start(
        "one",
        """
class Handle(Structure):
    _fields_ = [("bytes", c_uint8 * 64)]
begin()
rc, at = alloc(GIB)
handle = Handle()
ok(cu.cuIpcGetMemHandle(byref(handle), at))
say(list(handle.bytes))
sys.stdin.read()
""",
    )
    handle = exporter.stdout.readline().strip()
    importer = machine.start(
        "one",
        f"""
class Handle(Structure):
    _fields_ = [("bytes", c_uint8 * 64)]
begin()
at = c_uint64()
cu.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, Handle, c_uint]
ok(cu.cuIpcOpenMemHandle_v2(byref(at), Handle((c_uint8 * 64)(*{handle})), 1))
say(1)
for line in sys.stdin:
    say([alloc(int(line) * MIB)[0], info()[0] // MIB])
""",
    )

    def ask(mib: int) -> list[int]:
        importer.stdin.write(f"{mib}\n")
        importer.stdin.flush()
        return json.loads(importer.stdout.readline())

    importer.stdout.readline()
    context = machine.box.cards()[0].model.context_bytes // MIB
    together = ask(0)[1]
    exporter.kill()
    exporter.wait()
    refused = ask(3200)
    machine_sees = machine.box.cards()[0].used_bytes // MIB
    ghosts = [slot.bytes_by_card[0] for slot in machine.book("one").slots if slot.ghost]
    importer.communicate("", timeout=120)
    machine.job("other", 1)
    after = machine.start("one", "begin()\nsay([alloc(3400 * MIB)[0]])")

    assert 4096 - 1024 - 2 * context == together
    assert [OOM, 4096 - 1024 - context] == refused
    assert machine_sees >= 1024
    assert [GIB] == ghosts
    assert [0] == last(after)


BACKLOG = """
begin()
function, on, chance = kernel(), stream(), random.Random(1)
join()
end = time.monotonic() + 3.2
while time.monotonic() < end:
    {work}
"""
WORK = {
    "short": "launch(function, 50e3 * chance.uniform(.9, 1.1), on)",
    "2 ms": "launch(function, 2e6 * chance.uniform(.9, 1.1), on)",
    "bimodal": "launch(function, 10e6 if chance.random() < .02 else 30e3, on)",
}


def shares(machine: Machine, code: dict[str, str], rate_ppm: int = 0) -> dict[str, float]:
    """Percent of the card that each job got over two seconds, the first one left out; the host feeds."""
    story = Story(machine.folder / "story", len(code) + 1)
    running = {name: machine.start(name, text, story) for name, text in code.items()}
    feeds = {str(machine.folder / f"{name}.feed"): process.pid for name, process in running.items()}
    with story.judge(machine.folder / "hardware", [1.0, 3.0], feeds, rate_ppm=rate_ppm) as judge:
        for process in running.values():
            process.communicate("", timeout=300)
            assert 0 == process.returncode
        before, after = judge.looks()
    return {name: percent(before, after, process.pid) for name, process in running.items()}


def backlogged(**work: str) -> dict[str, str]:
    """Jobs that always have work for the card."""
    return {name: BACKLOG.format(work=WORK[kind]) for name, kind in work.items()}


@pytest.mark.parametrize("work", WORK)
def test_backlogged_work_gets_the_promised_part(machine, work):
    """30 % of the card and not more, whatever the kernels cost."""
    machine.job("one", 4, 30)

    got = shares(machine, backlogged(one=work))

    assert 28 < got["one"] < 31


def test_neighbours_get_their_parts_beside_each_other(machine):
    """30 and 60 with time slices inside the event times: own time fed by the host keeps both at their promise."""
    machine.job("one", 4, 30)
    machine.job("two", 4, 60)

    got = shares(machine, backlogged(one="2 ms", two="2 ms"))

    assert 28 < got["one"] < 31
    assert 57 < got["two"] < 61


def test_bursting_uses_what_a_neighbour_leaves_idle(machine):
    """Promised 30, granted all: the whole card."""
    machine.job("one", 4, 30, abi.Policy.BURST)

    got = shares(machine, backlogged(one="2 ms"), abi.PPM)

    assert 99 < got["one"] <= 100


def test_what_was_granted_ends_with_the_host_that_granted_it(machine):
    """Promised 30, granted all; the host falls silent, and soon 30 is what there is."""
    machine.job("one", 4, 30, abi.Policy.BURST)
    story = Story(machine.folder / "story", 2)
    process = machine.start("one", BACKLOG.format(work=WORK["2 ms"]), story)
    feeds = {str(machine.folder / "one.feed"): process.pid}
    looks = [0.5, 1.0, 2.0, 3.0]
    with story.judge(machine.folder / "hardware", looks, feeds, rate_ppm=abi.PPM, feed_seconds=1.0) as judge:
        process.communicate("", timeout=300)
        looks = judge.looks()

    granted, alone = (percent(looks[at], looks[at + 1], process.pid) for at in (0, 2))
    assert 0 == process.returncode
    assert 99 < granted <= 100
    assert alone < 33


@pytest.mark.parametrize(("core", "policy", "rate"), [(30, abi.Policy.BURST, abi.PPM), (0, abi.Policy.FIXED, 0)])
def test_nobody_gets_more_than_its_ceiling(machine, core, policy, rate):
    """Granted the whole card, or not limited otherwise: 60 % is what there is."""
    machine.job("one", 4, core, policy, ceiling=60)

    got = shares(machine, backlogged(one="2 ms"), rate)

    assert 57 < got["one"] < 61


def test_what_is_owed_at_a_small_part_of_the_card_is_paid_at_a_larger_one(machine):
    """
    A kernel of 20 ms at 1 % is 2 s of debt; as soon as 60 % are there again it is paid within 33 ms.
    """
    machine.job("one", 4, 60, abi.Policy.BURST)
    story = Story(machine.folder / "story", 2)
    process = machine.start("one", BACKLOG.format(work="launch(function, 20e6, on)"), story)
    feeds = {str(machine.folder / "one.feed"): process.pid}
    looks = [0.4, 0.9, 1.4, 2.4]
    with story.judge(machine.folder / "hardware", looks, feeds, rate_ppm=10_000, feed_seconds=1.0) as judge:
        process.communicate("", timeout=300)
        looks = judge.looks()

    little, much = (percent(looks[at], looks[at + 1], process.pid) for at in (0, 2))
    assert 0 == process.returncode
    assert little < 5
    assert 50 < much < 66


LONG = """
begin()
function, on = kernel(), stream()
join()
launch(function, 20e9, on)
ok(cu.cuStreamSynchronize(on))
end = time.monotonic()
while time.monotonic() < end + 50:
    launch(function, 2e6, on)
"""
STEADY = """
begin()
function, on = kernel(), stream()
join()
end = time.monotonic() + 78
while time.monotonic() < end:
    launch(function, 2e6, on)
"""


def test_a_long_kernel_is_paid_for_afterwards(machine):
    """
    30 % promised to each of two; a kernel of 20 s of GPU time cannot be stopped and gets what the neighbour leaves.

    It had two thirds of the card for 30 s. Then it waits until it had 30 % of all this time, and not longer: 20 s are
    30 % of 67. The neighbour has its part throughout, and what was too much is counted once the kernel has ended.
    """
    machine.job("one", 4, 30)
    machine.job("two", 4, 30)
    story = Story(machine.folder / "story", 3)
    running = {name: machine.start(name, code, story) for name, code in (("one", LONG), ("two", STEADY))}
    feeds = {str(machine.folder / f"{name}.feed"): process.pid for name, process in running.items()}
    looks = [0.0, 25.0, 32.0, 62.0, 70.0, 76.0]
    with story.judge(machine.folder / "hardware", looks, feeds) as judge:
        for process in running.values():
            process.communicate("", timeout=300)
        looks = judge.looks()
    one, two = running["one"].pid, running["two"].pid
    (book,) = machine.book("one").cards

    assert 60 < percent(looks[0], looks[1], one) < 72
    assert 1 > percent(looks[2], looks[3], one)
    assert 27 < percent(looks[4], looks[5], one) < 32
    assert all(27 < percent(looks[at], looks[at + 1], two) < 33 for at in (0, 2, 4))
    assert 20e9 - 0.3 * 30e9 - 1e9 < book.overrun_ns < 20e9 - 0.3 * 30e9 + 1.5e9
    assert 30e9 < book.throttled_ns
    assert 0 == machine.book("two").cards[0].overrun_ns


def test_what_a_long_kernel_took_is_known_before_the_next_launch(machine):
    """A program that waits for its kernel and ends: counted all the same, and its successor pays."""
    machine.job("one", 4, 30)
    story = Story(machine.folder / "story", 2)
    process = machine.start("one", LONG.split("end =", maxsplit=1)[0] + "os._exit(0)", story)
    with story.judge(machine.folder / "hardware", [21.0]) as judge:
        process.communicate("", timeout=300)
        judge.looks()

    assert 13.5e9 < machine.book("one").cards[0].overrun_ns < 14.5e9


GRAPH = """
begin()
function, on, graph, runnable = kernel(), stream(), c_void_p(), c_void_p()
ok(cu.cuStreamBeginCapture_v2(on, 1))
for _ in range(10):
    launch(function, 500e3, on)
ok(cu.cuStreamEndCapture(on, byref(graph)))
ok(cu.cuGraphInstantiateWithFlags(byref(runnable), graph, c_uint64(0)))
join()
end = time.monotonic() + 3.2
while time.monotonic() < end:
    ok(cu.cuGraphLaunch(runnable, on))
"""


def test_graphs_are_captured_undisturbed_and_limited_when_launched(machine):
    """Ten kernels recorded without a timing event among them; their graph gets 30 % of the card and not more."""
    machine.job("one", 4, 30)

    got = shares(machine, {"one": GRAPH})
    (card,) = machine.book("one").cards

    assert 28 < got["one"] < 31
    assert 180 < card.launches < 205  # 5 ms each, for 3.2 s


CAPTURED = """
begin()
function, on, other, graph = kernel(), stream(), stream(), c_void_p()
ok(cu.cuStreamBeginCapture_v2(on, MODE))
join()
end, sent = time.monotonic() + 2.5, 0
while time.monotonic() < end:
    launch(function, 20e6, other)
    sent += 1
say([sent, cu.cuStreamEndCapture(on, byref(graph))])
"""


@pytest.mark.parametrize("mode", ["0", "1"], ids=["global", "thread-local"])
def test_a_capture_left_open_neither_ends_the_limit_nor_is_spoilt_by_it(machine, mode):
    """While one stream is recorded, another one's kernels of 20 ms are held to 20 % as ever."""
    machine.job("one", 4, 20)
    story = Story(machine.folder / "story", 2)

    process = machine.start("one", CAPTURED.replace("MODE", mode), story)
    with story.judge(machine.folder / "hardware", [2.5]) as judge:
        sent, ended = last(process)
        (seen,) = judge.looks()

    assert ended == 0
    assert 24 <= sent <= 28  # of 20 ms each: 25 fill the promise
    assert 0.18 < seen.own_ns[process.pid] / 2.5e9 < 0.22


def test_nvml_shows_the_promised_cards_and_nothing_else(tmp_path, plain_library):
    """8 GiB over 4 of 8 cards: four cards of 2 GiB numbered from 0; the others are not found by any name."""
    if not DRIVER.is_file():
        pytest.skip("the simulated driver is not built")
    hardware.create(tmp_path / "hardware", ["v100-16g"] * 8)
    hardware.install(tmp_path)
    with hardware.open_box(tmp_path / "hardware") as box:
        uuids = [UUID(bytes=bytes(card.model.uuid)) for card in box.cards()]
    promised = [uuids[index] for index in (1, 3, 4, 6)]
    files.create_region(tmp_path / "one.region", "one")
    limits = abi.Limits(1, "one", tuple(abi.CardLimit(uuid, 2 * GIB) for uuid in promised))
    files.write_limits(tmp_path / "one.limits", limits)
    code = f"""
nv = CDLL("libnvidia-ml.so.1")
ok(nv.nvmlInit_v2())
count, seen = c_uint(), []
ok(nv.nvmlDeviceGetCount_v2(byref(count)))
for index in range(count.value):
    card, uuid, memory, back = c_void_p(), create_string_buffer(96), (c_uint64 * 3)(), c_uint()
    ok(nv.nvmlDeviceGetHandleByIndex_v2(index, byref(card)))
    ok(nv.nvmlDeviceGetUUID(card, uuid, 96))
    ok(nv.nvmlDeviceGetMemoryInfo(card, memory))
    ok(nv.nvmlDeviceGetIndex(card, byref(back)))
    seen.append([uuid.value.decode(), memory[0] // MIB, memory[2], back.value])
other = c_void_p()
say([seen, nv.nvmlDeviceGetHandleByIndex_v2(4, byref(other)),
     nv.nvmlDeviceGetHandleByUUID(b"GPU-{uuids[0]}", byref(other))])
"""
    with hardware.open_box(tmp_path / "hardware") as box:
        seen, by_index, by_uuid = last(Machine(tmp_path, plain_library, box).start("one", code))

    assert [[f"GPU-{uuid}", 2048, 0, index] for index, uuid in enumerate(promised)] == seen
    assert (2, 6) == (by_index, by_uuid)
