# SPDX-License-Identifier: Apache-2.0
"""
The promise of memory inside a container: every family, over processes, kills, forks and changes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import zlib
from uuid import UUID

import pytest

from isolation.contract import abi, breach_ring

GIB = 1 << 30
MIB = 1 << 20
OOM = 2
SEQUENCE_OFFSET = 16
"""Of the limits file: odd while it is being rewritten."""
SLOW = 10
"""A loaded machine runs nobody for a while; the library itself looks every 50 ms."""


def test_seed_story(job):
    """Promised 5 of 16 GiB: sees a 5 GiB card, is refused inside it, is written down; the neighbour gets its 10."""
    first, second = job(5), job(9)
    code = """
begin()
seen = info()
got = []
while True:
    rc, at = alloc(GIB)
    if rc: break
    got.append(at)
say(total=seen[2], free=seen[1], refused=rc, got=len(got))
sys.stdin.read()
"""
    greedy = first.start(code)
    one = greedy.stdout.readline()
    two = second.run(code.replace("sys.stdin.read()", ""))
    greedy.communicate("", timeout=120)

    assert f'{{"total": {5 * GIB}, "free": {5 * GIB - 320 * MIB}, "refused": 2, "got": 4}}' == one.strip()
    assert (9 * GIB, OOM, 8) == (two["total"], two["refused"], two["got"])
    (breach,) = first.breaches()
    assert (abi.Breach.DENIED, 0, GIB, 5 * GIB) == (breach.kind, breach.card, breach.requested, breach.limit)
    assert breach_ring.api_code("cuMemAlloc_v2") == breach.api
    assert 1 == first.book().cards[0].denied


def test_refusals_stay_on_stderr_once_and_never_reach_stdout(job):
    """A hundred refusals in a row: one line to stderr, nothing to stdout."""
    done = job(1).run("begin()\nfor i in range(100): rc, at = alloc(4 * GIB)\nsay(rc=rc)")

    assert OOM == done["rc"]
    assert 1 == done["stderr"].count("\n")


def test_driver_errors_stay_true(job):
    """No context: the driver's own error. Card full inside the promise: its own OOM, and no breach."""
    one = job(64)
    done = one.run("""
cu.cuInit(0)
outside = alloc(GIB)[0], info()[0], free(c_uint64(0))
begin()
say(outside=outside, full=alloc(40 * GIB)[0])
""")

    assert [201, 201, 1] == done["outside"]
    assert OOM == done["full"]
    assert [] == one.breaches()
    assert 320 * MIB == one.book().cards[0].peak_bytes - 40 * GIB


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        ("cuMemAlloc_v2", ""),
        ("cuMemAllocManaged", ", 1"),
        ("cuMemAllocAsync", ", None"),
    ],
)
def test_every_family_is_charged_and_given_back(job, family, arguments):
    """Up to the promise and not past it; after the frees and a synchronise the ledger is the context alone."""
    one = job(1)
    done = one.run(f"""
begin()
free_one = cu.cuMemFreeAsync if "Async" in "{family}" else cu.cuMemFree_v2
got = []
while True:
    rc, at = alloc(64 * MIB, "{family}"{arguments})
    if rc: break
    got.append(at)
peak = info()[1], truth()
for at in got:
    assert 0 == free_one(at, None)
cu.cuStreamSynchronize(None)
say(rc=rc, got=len(got), left=peak[0], truth=peak[1], after=info()[1], after_truth=truth())
""")

    assert (OOM, 11) == (done["rc"], done["got"])
    assert GIB - 320 * MIB - 11 * 64 * MIB == done["left"]
    assert 300 * MIB + 11 * 64 * MIB == done["truth"]
    assert GIB - 320 * MIB == done["after"]
    assert 300 * MIB == done["after_truth"]


def test_managed_memory_is_refused_where_the_policy_says_so(job):
    """The flag turns managed memory into NOT_SUPPORTED and a record; plain memory goes on."""
    one = job(2, flags=abi.Flag.REFUSE_MANAGED)
    done = one.run("begin()\nsay(managed=alloc(MIB, 'cuMemAllocManaged', 1)[0], plain=alloc(MIB)[0])")

    assert (801, 0) == (done["managed"], done["plain"])
    assert [abi.Breach.MANAGED] == [breach.kind for breach in one.breaches()]


def test_virtual_memory_lives_until_its_last_reference(job):
    """Create, map, release is no way out: charged until the mapping goes too, and through a retained handle."""
    one = job(1)
    done = one.run("""
class Prop(ctypes.Structure):
    _fields_ = [(name, c_int) for name in ("type", "handles", "where", "id")] + [("win", c_void_p), ("flags", c_uint64)]
def create(size, where=1):
    handle, prop = c_uint64(), Prop(1, 0, where, 0)
    return cu.cuMemCreate(byref(handle), c_size_t(size), byref(prop), c_uint64(0)), handle
def left():
    return info()[1] // MIB
begin()
steps = [left()]
at = c_uint64()
cu.cuMemAddressReserve(byref(at), c_size_t(512 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
rc, handle = create(256 * MIB)
steps.append(left())
assert 0 == cu.cuMemMap(at, c_size_t(256 * MIB), c_size_t(0), handle, c_uint64(0))
assert 0 == cu.cuMemRelease(handle)
steps.append(left())
refused = create(600 * MIB)[0]
again = c_uint64()
assert 0 == cu.cuMemRetainAllocationHandle(byref(again), c_void_p(at.value + 5 * MIB))
assert 0 == cu.cuMemUnmap(at, c_size_t(256 * MIB))
steps.append(left())
assert 0 == cu.cuMemRelease(again)
steps.append(left())
say(steps=steps, refused=refused, host=create(MIB, where=1)[0])
""")

    start = 1024 - 320
    assert [start, start - 256, start - 256, start - 256, start] == done["steps"]
    assert OOM == done["refused"]


def test_a_destroyed_pool_stays_charged_while_its_memory_lives(job):
    """Destroying a pool returns at once; what was allocated from the pool counts until it is freed."""
    done = job(1).run("""
begin()
pool, props = c_void_p(), create_string_buffer(88)
ctypes.memmove(props, (c_int * 4)(1, 0, 1, 0), 16)
assert 0 == cu.cuMemPoolCreate(byref(pool), props)
rc, at = alloc(64 * MIB, "cuMemAllocFromPoolAsync", pool, None)
held = info()[1] // MIB
cu.cuMemPoolDestroy(pool)
after = info()[1] // MIB
cu.cuMemFreeAsync(at, None)
say(rc=rc, held=held, after=after, end=info()[1] // MIB)
""")

    assert (0, 640, 640, 704) == (done["rc"], done["held"], done["after"], done["end"])


def test_contexts_count_inside_the_promise(job):
    """A promise smaller than a context leaves no room for one; releasing it gives its bytes back."""
    small = job(0.25)
    roomy = job(1)

    assert OOM == small.run("say(rc=begin())")["rc"]
    done = roomy.run("""
begin()
used = info()[1]
cu.cuDevicePrimaryCtxRelease_v2(0)
begin()
say(first=used, second=info()[1])
""")
    assert GIB - 320 * MIB == done["first"] == done["second"]


def test_an_unlisted_card_has_no_memory(job):
    """A card that was not promised refuses contexts and says it was tried."""
    one = job(1)
    done = one.run("say(rc=[begin(1), begin(0)])", FAKE_CUDA_CARDS="2")

    assert [OOM, 0] == done["rc"]
    assert [abi.Breach.UNLISTED] == [breach.kind for breach in one.breaches()]


def test_each_card_has_its_own_promise(job):
    """8 GiB over 4 cards are 4 cards of 2 GiB."""
    code = "cu.cuInit(0)\nsay(cards=[(begin(i), info()[2]) for i in range(4)])"

    assert [[0, 2 * GIB]] * 4 == job(2, 2, 2, 2).run(code, FAKE_CUDA_CARDS="4")["cards"]


def test_processes_share_one_promise_and_the_dead_cost_nothing(job):
    """A second process is refused while the first holds the memory, and gets it at once after SIGKILL."""
    one = job(2)
    holder = one.start("begin()\nsay(rc=alloc(GIB)[0])\nsys.stdin.read()")
    assert '{"rc": 0}' == holder.stdout.readline().strip()
    refused = one.run("begin()\nsay(rc=alloc(GIB)[0])")["rc"]
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # a zombie: dead all the same
    allowed = one.run("begin()\nsay(rc=alloc(GIB)[0])")["rc"]
    holder.communicate(timeout=300)

    assert (OOM, 0) == (refused, allowed)
    assert abi.Breach.REAPED in [breach.kind for breach in one.breaches()]


def test_a_forked_child_owns_nothing_of_its_parents(job):
    """The child's exit, however it ends, gives nothing back that is the parent's; its own use has a slot of its own."""
    one = job(2)
    done = one.run("""
begin()
rc, at = alloc(GIB)
child = os.fork()
if child == 0:
    begin()
    mine, _ = alloc(256 * MIB)
    os._exit(mine)
status = os.waitpid(child, 0)[1]
say(rc=rc, status=status, free=free(at), left=info()[1] // MIB)
""")

    assert (0, 0, 0) == (done["rc"], done["status"], done["free"])
    assert 2 * GIB // MIB - 320 >= done["left"] >= 2 * GIB // MIB - 3 * 320 - 256
    assert 2 == len({slot.generation and slot.index for slot in one.book().slots})


def test_exec_gives_back_what_the_old_image_held(job):
    """The same pid, a new program: the old image's bytes are free again."""
    one = job(2)
    done = one.run("""
begin()
alloc(GIB)
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, "-S", "-c", open("/proc/self/cmdline").read().split("\\0")[3]])
say(left=info()[1] // MIB)
""")

    assert 2048 - 320 - 1024 == done["left"]


def test_a_changed_promise_is_obeyed_in_place(job):
    """Grown: more is given at once. Shrunk below use: nothing is killed, nothing more is given."""
    one = job(1)
    worker = one.start("""
begin()
for line in sys.stdin:
    say(rc=alloc(512 * MIB)[0], total=info()[2] // MIB)
""")

    def step() -> str:
        worker.stdin.write("go\n")
        worker.stdin.flush()
        return worker.stdout.readline().strip()

    answers = [step(), step()]
    for gib in (3, 1):
        one.promise(abi.CardLimit(UUID(int=1), gib * GIB, 320 * MIB))
        time.sleep(0.12)
        answers += [step(), step()]
    worker.communicate("", timeout=120)

    expected = [(0, 1024), (2, 1024), (0, 3072), (0, 3072), (2, 1024), (2, 1024)]
    assert [f'{{"rc": {rc}, "total": {total}}}' for rc, total in expected] == answers


def test_a_promise_that_shrinks_below_use_never_makes_the_ledger_negative(job):
    """
    Random sizes, shrunk and grown in place amid allocations and frees: what is held stays booked to the byte, what is
    freed is given back however small the promise is, and only what is beyond it is refused. Grown: within 200 ms.
    """
    one = job(4)
    chance = random.Random(4)  # noqa: S311 (chance, no secret)
    worker = one.start("""
begin()
got = []
for line in sys.stdin:
    word = line.strip()
    rc = 0
    if word == "free" and got:
        rc = cu.cuMemFree_v2(got.pop())
    elif word == "alloc":
        rc, at = alloc(256 * MIB)
        if not rc: got.append(at)
    total, free = info()[2], info()[1]
    say(rc=rc, held=len(got), total=total // MIB, free=free // MIB)
""")

    def step(word: str) -> dict:
        worker.stdin.write(f"{word}\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    def promise() -> int:
        amount = 512 * chance.randint(1, 10)
        one.promise(abi.CardLimit(UUID(int=1), amount * MIB, 320 * MIB))
        begun = time.monotonic()
        asked = begun
        while step("look")["total"] != amount:
            assert asked < begun + 0.2 * SLOW, "in force within 200 ms"
            asked = time.monotonic()
        return amount

    held = promised = 0
    for turn in range(60):
        promised = promised if turn % 3 else promise()
        word = chance.choice(("alloc", "alloc", "free"))
        fits = word == "alloc" and 320 + 256 * (held + 1) <= promised
        now = step(word)
        assert (OOM if word == "alloc" and not fits else 0) == now["rc"]
        held = held + fits if word == "alloc" else max(0, held - 1)
        used = 320 + 256 * held
        assert (held, max(0, promised - used)) == (now["held"], now["free"])
        (card,) = one.book().cards
        assert used * MIB == card.used_bytes
    worker.communicate("", timeout=120)


def test_a_compute_limit_promised_later_binds_a_program_that_only_launches(job):
    """From no limit to 10 percent, in place: the next launches are counted and limited."""
    one = job(1)
    worker = one.start("""
begin()
none = c_uint64(0)
parameters = (c_void_p * 1)(ctypes.addressof(none))
for line in sys.stdin:
    say(rc=cu.cuLaunchKernel(c_void_p(1), 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
""")
    seen = []
    for ppm in (0, 100_000):
        one.promise(abi.CardLimit(UUID(int=1), GIB, 320 * MIB, ppm))
        time.sleep(0.12)
        for _ in range(3):
            worker.stdin.write("go\n")
            worker.stdin.flush()
            assert '{"rc": 0}' == worker.stdout.readline().strip()
        (card,) = one.book().cards
        seen.append((card.launches > 0, card.rate_ppm))
    worker.communicate("", timeout=120)

    assert [(False, 0), (True, 100_000)] == seen


def test_a_promise_being_rewritten_is_read_whole(job):
    """A host that rewrites without pause: only promises that were made are ever seen."""
    one = job(1)
    worker = one.start("""
begin()
now = time.monotonic()
end, late, seen = now + 1.5, now + 60, set()
while time.monotonic() < (end if len(seen) > 1 else late):
    seen.add(info()[2] // MIB)
say(seen=sorted(seen))
""")
    while worker.poll() is None:
        for gib in (1, 3):
            one.promise(abi.CardLimit(UUID(int=1), gib * GIB, 320 * MIB))
    out, err = worker.communicate(timeout=300)

    assert ("", '{"seen": [1024, 3072]}') == (err, out.strip())


def test_a_start_amid_a_rewrite_waits_until_the_promise_is_whole(job):
    """Whoever rewrites it may be stopped in between: without it, this process would never have memory."""
    one = job(2)
    whole = one.limits.read_bytes()
    with one.limits.open("r+b") as limits:
        limits.seek(SEQUENCE_OFFSET)
        limits.write((whole[SEQUENCE_OFFSET] | 1).to_bytes(1, "little"))
    done = one.run(f"""
import threading
whole = bytes.fromhex("{whole.hex()}")
def complete():
    with open(os.environ["GPUSHARE_LIMITS"], "r+b") as limits:
        limits.write(whole)
threading.Timer(0.3, complete).start()
say(rc=begin(), total=info()[2])
""")

    assert {"rc": 0, "total": 2 * GIB, "stderr": ""} == done


def test_a_newer_minor_is_understood(job):
    """An agent of a later release writes meaning into reserved bytes; this library goes on."""
    one = job(1)
    raw = bytearray(one.limits.read_bytes())
    raw[10:12] = b"\x07\x00"
    raw[3000:3008] = b"someword"
    raw[20:24] = zlib.crc32(raw[24:]).to_bytes(4, "little")
    one.limits.write_bytes(raw)

    assert [0, GIB] == one.run("say(rc=[begin(), info()[2]])")["rc"]


def test_a_scribbled_region_never_crashes_the_program(job):
    """The tenant writes noise over its own ledger while it allocates: refusals perhaps, no crash, no hang."""
    one = job(1)
    worker = one.start("""
begin()
end = time.monotonic() + 2
while time.monotonic() < end:
    rc, at = alloc(MIB)
    if rc == 0: free(at)
    info()
say(done=True)
""")
    chance = random.Random(7)  # noqa: S311 (noise, the same each time)
    with one.region.open("r+b", buffering=0) as region:
        while worker.poll() is None:
            region.seek(abi.CARD_OFFSET + chance.randrange(abi.CARDS * abi.CARD_BYTES + 8 * abi.SLOT_BYTES - 64))
            region.write(chance.randbytes(chance.choice((1, 8, 64))))
    out, _ = worker.communicate(timeout=300)

    assert (0, '{"done": true}') == (worker.returncode, out.strip())


@pytest.mark.parametrize("harm", ["garbage", "truncated", "foreign", "missing", "torn"])
def test_a_promise_that_cannot_be_believed_means_no_memory(job, harm):
    """Fail closed: no context, no memory, one line that says why; the program itself lives."""
    one = job(2)
    raw = bytearray(one.limits.read_bytes())
    if harm == "garbage":
        raw = bytearray(b"\xa5" * len(raw))
    elif harm == "truncated":
        raw = raw[:100]
    elif harm == "foreign":
        raw[8] = 9
    elif harm == "torn":
        raw[300] ^= 1
    one.limits.write_bytes(raw)
    if harm == "missing":
        one.limits.unlink()
    done = one.run("say(rc=begin())")

    assert OOM == done["rc"]
    assert "limits file" in done["stderr"]


@pytest.mark.parametrize("harm", ["missing", "short", "foreign"])
def test_a_region_that_cannot_be_used_means_no_memory(job, harm):
    """Without a ledger nothing can be promised: fail closed."""
    one = job(2)
    raw = bytearray(one.region.read_bytes())
    if harm == "missing":
        one.region.unlink()
    else:
        raw[8:10] = b"\x09\x00"
        one.region.write_bytes(raw[:5000] if harm == "short" else raw)

    assert OOM == one.run("say(rc=begin())")["rc"]


def test_without_a_promise_everything_passes(job):
    """Preloaded where nothing was promised, the library changes nothing."""
    one = job(1)
    environment = {name: value for name, value in one.environment().items() if not name.startswith("GPUSHARE_")}
    one.environment = lambda: environment

    done = one.run("begin()\nsay(rc=alloc(12 * GIB)[0], total=info()[2])")

    assert (0, 16 * GIB) == (done["rc"], done["total"])
