# SPDX-License-Identifier: Apache-2.0
"""
Files that somebody spoilt, replaced or wrote in another version: memory fails closed, the program goes on.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time
import zlib
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiled import kept

from isolation.contract import abi
from isolation.lib import build, files, native

GIB = 1 << 30
MIB = 1 << 20
OOM = 2
UNITS = ("tests/hostile.c", *(f"src/{name}.c" for name in ("ledger", "slot", "ring", "limits", "bucket", "sys")))


def special(path, kind: str) -> None:
    """Put something that is no regular file in the place of one."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"loop": path, "device": "/dev/zero", "dangling": "/nonexistent/file"}[kind])


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_hostile_files_do_not_break_the_pure_units(c_program, tmp_path, sanitizer):
    """Limits, feed and region fuzzed, also while others write them: believed only where possible, no report."""
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-O1")
    program = c_program(f"hostile-{sanitizer.replace(',', '-')}", *UNITS, flags=flags)
    (tmp_path / "short").write_bytes(bytes(100))
    for name, kind in {"fifo": "fifo", "folder": "folder", "loop": "loop"}.items():
        special(tmp_path / name, kind)

    done = subprocess.run(
        [str(program), "4000", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
    words = done.stdout.split()
    refused, believed = int(words[1]), int(words[2])
    assert refused > 100
    assert believed > 100


EDGES = st.sampled_from([0, 1, 4, 5, 15, 16, 17, 2**31, 2**32 - 1])
WORDS = st.tuples(st.integers(0, 1023), EDGES | st.integers(0, 2**32 - 1))


@settings(deadline=None, max_examples=300)
@given(st.lists(WORDS | st.tuples(st.integers(0, 80), st.integers(0, 300)), max_size=8), st.booleans())
def test_sealed_nonsense_is_a_promise_or_refused(words, sealed):
    """The host's own reader: with a right checksum over wrong fields, either every field is possible or AbiError."""
    card = abi.CardLimit(UUID(int=7), 5 * GIB, 400 * MIB, 300_000, abi.Policy.BURST, 4, online=True)
    raw = bytearray(abi.pack_limits(abi.Limits(3, "ns/pod", (card, card))))
    for at, word in words:
        raw[4 * at : 4 * at + 4] = word.to_bytes(4, "little")
    if sealed:
        raw[20:24] = zlib.crc32(raw[24:]).to_bytes(4, "little")
    try:
        limits = abi.unpack_limits(bytes(raw))
    except abi.AbiError:
        return
    assert len(limits.cards) <= abi.CARDS
    assert all(one.core_ppm <= abi.PPM for one in limits.cards)
    again = abi.unpack_limits(abi.pack_limits(limits))
    assert (limits.generation, limits.flags, limits.cards) == (again.generation, again.flags, again.cards)


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "device", "dangling"])
@pytest.mark.parametrize("which", ["limits", "region"])
def test_what_is_no_regular_file_means_no_memory(job, which, kind):
    """Nothing is waited for and nothing is made up: no context, one line, and the program lives."""
    one = job(2)
    special(getattr(one, which), kind)
    done = one.run("say(rc=begin())")  # a pipe that is waited for would end this test as one that hangs

    assert (OOM, 1) == (done["rc"], done["stderr"].count("\n"))


def test_a_link_to_somebody_elses_region_is_not_followed(job):
    """Booking in another container's ledger, or having the host reap there, would be a way to harm it."""
    one, other = job(2), job(3)
    one.region.unlink()
    one.region.symlink_to(other.region)

    assert OOM == one.run("say(rc=begin())")["rc"]
    with pytest.raises(abi.AbiError):
        native.reap(one.region)


def test_a_region_is_there_in_full(tmp_path):
    """No holes: writing to one on a full file system would end the program that does."""
    files.create_region(tmp_path / "region")

    assert (tmp_path / "region").stat().st_blocks * 512 >= abi.REGION_BYTES


HOLDER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
ticks = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
space = int(os.readlink("/proc/self/ns/pid")[5:-1])
for slot in range(1024):
    os.pwrite(fd, struct.pack("<IIIIQQ", 1, 1, os.getpid(), 0, ticks, space), 8192 + 2048 * slot)
os.pwrite(fd, struct.pack("<I", 1024), 128)
fcntl.fcntl(fd, 37, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, 1 << 40, 1024, 0))
print("taken", flush=True)
sys.stdin.read()
"""


def test_when_every_slot_is_taken_the_next_process_is_refused_and_that_is_recorded(job):
    """1,024 that live leave no room for a ledger, hence no memory; once they are dead their slots are given on."""
    one = job(2)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(one.region)], **pipes) as holder:
        assert "taken\n" == holder.stdout.readline()
        refused = one.run("say(rc=begin())")["rc"]
        kinds = {breach.kind for breach in one.breaches()}
        holder.communicate("", timeout=120)
    allowed = one.run("say(rc=begin())")["rc"]

    assert (OOM, 0) == (refused, allowed)
    assert abi.Breach.NO_SLOT in kinds


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "device", "garbage", "missing"])
def test_a_feed_that_cannot_be_read_leaves_the_promise_in_force(job, kind):
    """Launches go on at the promised rate, charged by events, and the ledger say that nobody feeds."""
    one = job(1, core_ppm=500_000)
    if kind == "garbage":
        one.feed.write_bytes(os.urandom(abi.FEED_BYTES))
    elif kind != "missing":
        special(one.feed, kind)
    done = one.run("""
begin()
none = c_uint64(0)
parameters = (c_void_p * 1)(ctypes.addressof(none))
say(rc=[cu.cuLaunchKernel(c_void_p(1), 1, 1, 1, 1, 1, 1, 0, None, parameters, None) for _ in range(50)])
""")
    (card,) = one.book().cards

    assert [0] * 50 == done["rc"]
    assert (True, 500_000) == (card.uncorrected, card.rate_ppm)


@pytest.mark.parametrize("harm", ["garbage", "truncated", "foreign", "impossible", "missing"])
def test_a_promise_that_turns_bad_in_use_stays_in_force(job, harm):
    """The last good one binds on, the harm is written down once, and the next good one is obeyed."""
    one = job(1)
    worker = one.start("begin()\nfor line in sys.stdin: say(got=[alloc(512 * MIB)[0], info()[2] // MIB])")
    good = one.limits.read_bytes()
    raw = bytearray(good)
    raw[24:32] = (99).to_bytes(8, "little")
    if harm == "garbage":
        raw = bytearray(os.urandom(len(raw)))
    elif harm == "truncated":
        raw = raw[:7]
    elif harm == "foreign":
        raw[8] = 2
    elif harm == "impossible":
        raw[36:40] = b"\xff" * 4  # cards
        raw[20:24] = zlib.crc32(raw[24:]).to_bytes(4, "little")

    def ask() -> str:
        time.sleep(0.12)
        worker.stdin.write("\n")
        worker.stdin.flush()
        return worker.stdout.readline().strip()

    first = ask()
    if harm == "missing":
        one.limits.unlink()
    else:
        one.limits.write_bytes(raw)
    spoilt = [ask() for _ in range(3)]
    kinds = [breach.kind for breach in one.breaches()]
    one.limits.unlink(missing_ok=True)
    one.promise(abi.CardLimit(UUID(int=1), 3 * GIB, 320 * MIB))
    after = ask()
    worker.communicate("", timeout=120)

    assert '{"got": [0, 1024]}' == first
    assert ['{"got": [2, 1024]}'] * 3 == spoilt
    assert 1 == kinds.count(abi.Breach.CONFIG)
    assert '{"got": [0, 3072]}' == after


def namespace() -> list[str]:
    """A command that enters a mount namespace of its own; skips where that is not allowed."""
    for flags in (["-m"], ["-rm"]):
        if not subprocess.run(["unshare", *flags, "mount", "-t", "tmpfs", "none", "/run"], check=False).returncode:
            return ["unshare", *flags]
    pytest.skip("no mount namespace may be made here")


@pytest.mark.parametrize("environment", ["empty", "forged", "no preload"])
def test_a_mounted_promise_binds_whatever_the_environment_says(job, tmp_path, environment):
    """As in a container: emptied, forged, or without LD_PRELOAD but /etc/ld.so.preload, the mounted file wins."""
    one, forged = job(1), job(9)
    enter = namespace()
    mount = (
        "mount -t tmpfs none /run && mkdir -p /run/gpushare/limits /run/gpushare/region && "
        f"cp {one.limits} /run/gpushare/limits/limits && cp {one.region} /run/gpushare/region/region"
    )
    env = {"LD_LIBRARY_PATH": str(one.driver), "FAKE_CUDA_FILE": str(one.hardware), "LD_PRELOAD": str(one.library)}
    if environment == "forged":
        env |= {"GPUSHARE_LIMITS": str(forged.limits), "GPUSHARE_REGION": str(forged.region)}
    if environment == "no preload":
        del env["LD_PRELOAD"]
        mount += f" && mount -t tmpfs none /etc && echo {one.library} > /etc/ld.so.preload"
    given = " ".join(f"{name}={value}" for name, value in env.items())
    script = tmp_path / "script.py"
    script.write_text("""
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
context, at, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
rc = [cu.cuInit(0), cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cu.cuCtxSetCurrent(context)]
rc += [cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size << 20)) for size in (512, 4096)]
cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(rc, total.value >> 20)
""")
    shell = f"{mount} && exec env -i {given} {sys.executable} -S {script}"
    done = subprocess.run([*enter, "sh", "-c", shell], capture_output=True, text=True, timeout=120, check=False)

    assert "[0, 0, 0, 0, 2] 1024\n" == done.stdout, done.stderr
    assert [] == forged.breaches()


@pytest.fixture(scope="session")
def newer_library(tmp_path_factory):
    """The library as a later release builds it: the next minor, the same layout."""
    tree = tmp_path_factory.mktemp("newer") / "isolation" / "lib"
    shutil.copytree(build.HERE, tree, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(build.HERE.parents[1] / "pyproject.toml", tree.parents[1])
    header = tree / "include" / "gpushare_abi.h"
    text = header.read_text()
    assert text.count(f"#define GS_ABI_MINOR {abi.MINOR}\n") == 1
    header.write_text(text.replace(f"#define GS_ABI_MINOR {abi.MINOR}\n", f"#define GS_ABI_MINOR {abi.MINOR + 1}\n"))
    later = runpy.run_path(str(tree / "build.py"))["build"]
    inputs = [tree / "build.py", tree / "include", tree / "src"]
    return kept(build.PLAIN, ["newer"], inputs, lambda target: later(target, build.PLAIN))


def as_minor(path, minor: int, scribbles: dict[int, bytes], *, sealed: bool) -> None:
    """Make a file one of another minor, with meaning in bytes that were reserved."""
    raw = bytearray(path.read_bytes())
    raw[10:12] = minor.to_bytes(2, "little")
    for at, meaning in scribbles.items():
        assert bytes(len(meaning)) == raw[at : at + len(meaning)]
        raw[at : at + len(meaning)] = meaning
    if sealed:
        raw[20:24] = zlib.crc32(raw[24:]).to_bytes(4, "little")
    path.write_bytes(raw)


RESERVED = {
    "limits": {256 - 8: b"newer", 256 + 128 - 8: b"on card", 4096 - 16: b"tail"},
    "feed": {64 - 8: b"newer", 64 + 64 - 8: b"on card"},
    "region": {4096 - 16: b"newer", 4096 + 256 - 8: b"on card", 8192 + 256 - 8: b"in slot"},
}


@pytest.mark.parametrize("agent", ["older", "newer"])
def test_old_and_new_libraries_run_side_by_side(job, newer_library, agent):
    """
    One container, one region, two libraries of different minors, an agent of either: both see one promise and
    book in one ledger, and the host reads both.
    """
    one = job(2, core_ppm=500_000)
    files.write_feed(one.feed, [abi.CardFeed(1, 2)])
    if agent == "newer":
        for name, scribbles in RESERVED.items():
            as_minor(getattr(one, name), abi.MINOR + 1, scribbles, sealed=name != "region")
    older = one.library
    code = """
begin()
say(first=alloc(512 * MIB)[0])
sys.stdin.readline()
say(rc=alloc(512 * MIB)[0], info=info()[1:])
sys.stdin.read()
"""
    running = []
    for library in (older, newer_library):
        one.library = library
        running.append(one.start(code))
        assert '{"first": 0}' == running[-1].stdout.readline().strip()
    answers = []
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
        answers.append(process.stdout.readline().strip())
    read = one.book()
    for process in running:
        process.communicate("", timeout=120)

    left = 2 * GIB - 2 * 320 * MIB - 2 * 512 * MIB
    refused = f'{{"rc": {OOM}, "info": [{left}, {2 * GIB}]}}'
    assert [refused, refused] == answers
    assert (2 * GIB - left, 2) == (read.cards[0].used_bytes, len(read.slots))
    assert {320 * MIB + 512 * MIB} == {slot.bytes_by_card[0] for slot in read.slots}


@pytest.mark.parametrize("which", ["limits", "region"])
@pytest.mark.parametrize("library", ["older", "newer"])
def test_another_major_closes_memory(job, newer_library, which, library):
    """Major 2 is another language: no guess, no memory; the host refuses it as well."""
    one = job(2)
    if library == "newer":
        one.library = newer_library
    path = getattr(one, which)
    raw = bytearray(path.read_bytes())
    raw[8:10] = (2).to_bytes(2, "little")
    path.write_bytes(raw)

    assert OOM == one.run("say(rc=begin())")["rc"]
    with pytest.raises(abi.AbiError, match=rf"version 2\.{abi.MINOR}, 1\.x"):
        abi.unpack_limits(path.read_bytes()) if which == "limits" else files.read_region(path)


def test_a_feed_of_another_major_is_nobodys_word(job):
    """It is not obeyed: the promise holds, uncorrected."""
    one = job(1, core_ppm=500_000, policy=abi.Policy.BURST)
    files.write_feed(one.feed, [abi.CardFeed(0, 0, rate_ppm=abi.PPM)])
    raw = bytearray(one.feed.read_bytes())
    raw[8] = 2
    one.feed.write_bytes(raw)
    one.run("""
begin()
none = c_uint64(0)
parameters = (c_void_p * 1)(ctypes.addressof(none))
say(rc=cu.cuLaunchKernel(c_void_p(1), 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
""")
    (card,) = one.book().cards

    assert (True, 500_000) == (card.uncorrected, card.rate_ppm)
