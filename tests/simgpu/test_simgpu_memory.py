# SPDX-License-Identifier: Apache-2.0
"""Memory on a simulated card: who has what, and when it comes back."""

from __future__ import annotations

import random
import time

import pytest
from support.virtual_clock import Story

from isolation.simgpu.models import MIB

GIB = 1 << 30
CONTEXT = 306 * MIB


def records(box, card=0):
    """Bytes of each live client, by pid, and the card's own sum; the dead have been found."""
    box.settle()
    box.settle()
    return {c.pid: c.total_bytes for c in box.clients(card) if c.state == 1}, box.cards()[card].used_bytes


def test_a_card_ends_where_its_memory_ends(make_box, run):
    """
    A V100-16 offers 16161 MiB; the context counts inside, and one byte too many is OUT_OF_MEMORY.
    """
    box = make_box("v100-16g")
    client = run(
        box,
        """
        start(); free, total = info(); say(total, free)
        keep = alloc(free - MIB); say(call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(2 * MIB)))
        """,
    )

    assert f"{16161 * MIB} {16161 * MIB - CONTEXT}" == client.line()
    assert "2" == client.end()
    assert 1 == box.clients(0)[0].denied


def test_small_allocations_share_a_granule(make_box, run):
    """
    A thousand allocations of 2 KB take one granule of 2 MiB; freeing the last one gives it back.
    """
    box = make_box()
    client = run(box, "start(); have = [alloc(2000) for _ in range(1000)]; say('up'); wait()\n"
                 "[do('cuMemFree_v2', p) for p in have]; say('down'); wait()")  # fmt: skip
    client.line()
    assert {client.process.pid: CONTEXT + 2 * MIB} == records(box)[0]
    client.tell()
    client.line()

    assert {client.process.pid: CONTEXT} == records(box)[0]


def test_freed_addresses_are_handed_out_again_at_once(make_box, run):
    """
    The next allocation of a size gets the address that was freed last.
    """
    client = run(make_box(), "start(); a = alloc(8 * MIB); do('cuMemFree_v2', a); say(a.value == alloc(7 * MIB).value)")

    assert "True" == client.end()


def test_a_killed_process_gives_its_memory_back_after_the_teardown(make_box, run):
    """
    SIGKILL frees nothing at once: the bytes count until the teardown is over, then nothing is left.
    """
    box = make_box(teardown_ns=300_000_000)
    client = run(box, "start(); alloc(4 << 30); say('up'); wait()")
    client.line()
    box.stop()
    client.kill()

    box.settle()
    assert 4 * GIB + CONTEXT == box.cards()[0].used_bytes
    box.step(299_999_999)
    assert 4 * GIB + CONTEXT == box.cards()[0].used_bytes
    box.step(1)
    assert 0 == box.cards()[0].used_bytes


def test_nobody_is_denied_for_the_sake_of_the_dead(make_box, run):
    """
    Where the teardown takes no time, an allocation succeeds beside a process that was just killed.
    """
    box = make_box()
    first = run(box, "start(); alloc(12 << 30); say('up'); wait()")
    second = run(box, "start(); say('up'); wait(); alloc(12 << 30); say('got it')")
    first.line()
    second.line()
    first.kill()
    second.tell()

    assert "got it" == second.line()


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_memory_of_the_dead_is_waited_for_whenever_their_death_is_noticed(make_box, run, seconds):
    """
    Nobody looks at the card between the death and the next process, which needs that memory at once and gets it.
    """
    box = make_box(teardown_ns=50_000_000)
    first = run(box, "start(); alloc(12 << 30); say('up'); wait()")
    first.line()
    first.kill()
    time.sleep(seconds)
    second = run(box, "start(); alloc(12 << 30); say('got it')")

    assert "got it" == second.line()
    assert [0, 0] == [client.denied for client in box.clients(0)]


def test_memory_that_the_living_have_is_not_waited_for(make_box, run, tmp_path):
    """
    What the dead give back would not be enough: denied at once, and they are left to their teardown. Whoever would
    wait for it is told by the clock of a story, in which only sleeping takes time.
    """
    box = make_box(teardown_ns=1_000_000_000)
    dead = run(box, "start(); alloc(2 << 30); say('up'); wait()")
    alive = run(box, "start(); alloc(8 << 30); say('up'); wait()")
    dead.line()
    alive.line()
    dead.kill()
    asked = "said = call('cuMemAlloc_v2', byref(c_uint64()), c_size_t(8 << 30))"
    code = f"start(); import time; join(); t = time.monotonic(); {asked}; say(said); say(time.monotonic() - t < 0.01)"
    late = run(box, code, **Story(tmp_path / "story", 1).environment({}))

    assert ["2", "True"] == [late.line(), late.line()]


def test_liveness_survives_closed_descriptors_and_forks(make_box, run):
    """
    Closing every descriptor loses nothing; a forked child may not call the driver, and does not keep
    its dead parent's memory alive.
    """
    box = make_box()
    client = run(
        box,
        """
        import os, time
        start(); alloc(1 << 30)
        if not (pid := os.fork()):
            words = call("cuInit", 0), call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1))
            os.write(1, b"child %d %d\\n" % words)
            os.closerange(0, 256); time.sleep(30); os._exit(0)
        os.write(1, b"%d\\n" % pid); os.closerange(3, 256); wait()
        """,
    )
    words = sorted([client.line(), client.line()])
    assert "child 3 3" == words[1]
    assert CONTEXT + GIB == records(box)[1]
    client.kill()

    assert ({}, 0) == records(box)
    __import__("os").kill(int(words[0]), 9)


def test_exec_ends_a_client(make_box, run):
    """
    A process that becomes another program has no device memory any more.
    """
    box = make_box()
    client = run(
        box, "import os; start(); alloc(1 << 30); say('up'); wait(); os.execlp('sh', 'sh', '-c', 'echo alive; cat')"
    )
    client.line()
    client.tell()
    assert "alive" == client.line()

    assert ({}, 0) == records(box)


def test_vmm_memory_lives_until_the_last_mapping(make_box, run):
    """
    Create, map, release: the bytes stay until the unmap; a retained handle keeps them longer still.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); at, handle, again = c_uint64(), c_uint64(), c_uint64()
        do("cuMemAddressReserve", byref(at), c_size_t(64 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
        do("cuMemCreate", byref(handle), c_size_t(64 * MIB), vmm_prop(), c_uint64(0))
        do("cuMemMap", at, c_size_t(64 * MIB), c_size_t(0), handle, c_uint64(0))
        do("cuMemRelease", handle); say("mapped"); wait()
        do("cuMemRetainAllocationHandle", byref(again), c_void_p(at.value))
        do("cuMemUnmap", at, c_size_t(64 * MIB)); say("retained"); wait()
        do("cuMemRelease", again); say("released"); wait()
        """,
    )
    seen = []
    for _ in range(3):
        seen.append((client.line(), records(box)[1] - CONTEXT))
        client.tell()

    assert [("mapped", 64 * MIB), ("retained", 64 * MIB), ("released", 0)] == seen


def test_an_exported_descriptor_keeps_memory_alive(make_box, run):
    """
    The exporter dies; its memory stays while the descriptor is open elsewhere, is in the importer's
    records once imported, and goes with the importer's release.
    """
    box = make_box()
    client = run(
        box,
        """
        import os, socket
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close(); start(); handle, fd = c_uint64(), c_int()
            do("cuMemCreate", byref(handle), c_size_t(256 * MIB), vmm_prop(shared=True), c_uint64(0))
            do("cuMemExportToShareableHandle", byref(fd), handle, 1, c_uint64(0))
            socket.send_fds(theirs, [b"x"], [fd.value]); os.kill(os.getpid(), 9)
        theirs.close(); fd = socket.recv_fds(ours, 1, 1)[1][0]; os.wait(); say("orphan"); wait()
        start(); handle = c_uint64()
        do("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), 1); os.close(fd); say("imported"); wait()
        do("cuMemRelease", handle); say("released"); wait()
        """,
    )
    client.line()
    assert ({}, 256 * MIB) == records(box)
    client.tell()
    client.line()
    assert ({client.process.pid: CONTEXT + 256 * MIB}, CONTEXT + 256 * MIB) == records(box)
    client.tell()
    client.line()

    assert CONTEXT == records(box)[1]


def test_ipc_memory_is_counted_once_and_adopted(make_box, run):
    """
    An importer's records stay as they are while the exporter lives; when it is killed they take over.
    """
    box = make_box()
    one = run(
        box,
        """
        start(); p = alloc(512 * MIB); handle = (c.c_char * 64)()
        do("cuIpcGetMemHandle", handle, p); say(bytes(handle).hex()); wait()
        """,
    )
    other = run(
        box,
        """
        class Handle(c.Structure):
            _fields_ = [("bytes", c.c_char * 64)]
        start(); p = c_uint64(); handle = Handle.from_buffer_copy(bytes.fromhex(wait()))
        do("cuIpcOpenMemHandle_v2", byref(p), handle, 1); say("open"); wait()
        do("cuIpcCloseMemHandle", p); say("closed"); wait()
        """,
    )
    other.tell(one.line())
    other.line()
    pids = one.process.pid, other.process.pid
    assert ({pids[0]: CONTEXT + 512 * MIB, pids[1]: CONTEXT}, 2 * CONTEXT + 512 * MIB) == records(box)
    one.kill()
    assert ({pids[1]: CONTEXT + 512 * MIB}, CONTEXT + 512 * MIB) == records(box)
    other.tell()
    other.line()

    assert ({pids[1]: CONTEXT}, CONTEXT) == records(box)


def test_pools_grow_in_granules_and_shrink_at_synchronisation(make_box, run):
    """
    A pool reserves 32 MiB for 1 MiB, keeps it after the free, and gives it back when synchronised.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); p = c_uint64(); do("cuMemAllocAsync", byref(p), c_size_t(MIB), None); say("up"); wait()
        do("cuMemFreeAsync", p, None); say("freed"); wait()
        do("cuStreamSynchronize", None); say("synchronised"); wait()
        """,
    )
    seen = []
    for _ in range(3):
        seen.append((client.line(), records(box)[1] - CONTEXT))
        client.tell()

    assert [("up", 32 * MIB), ("freed", 32 * MIB), ("synchronised", 0)] == seen


def test_limits_and_local_memory_cost_memory(make_box, run):
    """
    A device heap of 1 GiB is taken from the card on top of the context (which has 8 MiB of it).
    """
    box = make_box()
    client = run(box, "start(); do('cuCtxSetLimit', 2, c_size_t(1 << 30)); say('up'); wait()")
    client.line()

    assert CONTEXT + GIB - 8 * MIB == records(box)[1]


def test_a_context_that_ends_takes_everything_with_it(make_box, run):
    """
    Arrays, modules, pools, pitched memory (which shares a granule here) and the rest: after the primary
    context's end nothing is left.
    """
    box = make_box()
    client = run(
        box,
        """
        start(); functions(b"busy"); alloc(100); alloc(9 * MIB); p, pitch = c_uint64(), c_size_t()
        do("cuMemAllocPitch_v2", byref(p), byref(pitch), c_size_t(1000), c_size_t(1000), 4)
        do("cuMemAllocAsync", byref(p), c_size_t(MIB), None)
        array, shape = c_void_p(), (c_size_t * 3)(1024, 1024, 0x20 | 4 << 32)
        do("cuArrayCreate_v2", byref(array), shape)
        do("cuMemAllocManaged", byref(p), c_size_t(1 << 30), 1)
        say(pitch.value); wait(); do("cuDevicePrimaryCtxReset_v2", 0); say("reset"); wait()
        """,
    )
    assert "1024" == client.line()
    assert CONTEXT + (2 + 2 + 10 + 32 + 16) * MIB == records(box)[1]
    client.tell()
    client.line()

    assert ({client.process.pid: 0}, 0) == records(box)


@pytest.mark.parametrize("seed", [1, 2])
def test_records_balance_through_random_work_and_kills(make_box, run, seed):
    """
    Six processes of four threads allocate and free at random while some are killed: what the card has
    handed out is always the sum of its processes, and in the end nothing.
    """
    box = make_box(slice_ns=500_000)
    code = """
        import random, threading, time
        context = start()
        def work(seed):
            do("cuCtxSetCurrent", context); draw, have = random.Random(seed), []
            while True:
                if draw.random() < 0.55 and len(have) < 40:
                    p, size = c_uint64(), draw.choice([512, 5000, MIB, 3 * MIB, 40 * MIB])
                    kind = draw.choice(["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemCreate"])
                    rest = {"cuMemAlloc_v2": (), "cuMemAllocAsync": (None,), "cuMemCreate": (vmm_prop(shared=True), c_uint64(0))}
                    size = 4 * MIB if kind == "cuMemCreate" else size
                    if call(kind, byref(p), c_size_t(size), *rest[kind]) == 0:
                        have.append((kind, p))
                elif have:
                    kind, p = have.pop(draw.randrange(len(have)))
                    if kind == "cuMemAllocAsync":
                        do("cuMemFreeAsync", p, None)
                    else:
                        do("cuMemRelease" if kind == "cuMemCreate" else "cuMemFree_v2", p)
        for n in range(4):
            threading.Thread(target=work, args=(n + %d,), daemon=True).start()
        say("up"); wait()
    """  # noqa: E501
    draw = random.Random(seed)  # noqa: S311 (a repeatable load, no secret)
    clients = [run(box, code % (100 * n + seed)) for n in range(6)]
    [client.line() for client in clients]
    for client in clients:
        time.sleep(draw.random() * 0.2)
        client.kill()
        box.settle()
        card = box.cards()[0]
        assert 0 == card.unowned_bytes
        assert card.used_bytes <= card.model.total_bytes

    assert ({}, 0) == records(box)
    assert [0] == list({c.total_bytes for c in box.clients(0)})


UNSEEN = """
class Table(c.Structure):
    _fields_ = [("bytes", c_size_t)] + [(name, c.CFUNCTYPE(c_int, *words)) for name, words in [
        ("primary_retain", (c_void_p, c_int)), ("primary_release", (c_int,)), ("module_load", (c_void_p, c_void_p)),
        ("module_unload", (c_void_p,)), ("memory_alloc", (c_void_p, c_size_t)), ("memory_free", (c_uint64,))]]
table, none = c.POINTER(Table)(), c_void_p(1)
"""


def test_a_private_table_takes_what_the_public_calls_take(make_box, run):
    """
    For runtimes whose contexts, modules and memory no interposer sees; no other table is there.
    """
    box = make_box()
    client = run(
        box,
        UNSEEN
        + """
do("cuInit", 0)
assert call("cuGetExportTable", byref(none), b"of-the-vendor-00") and not none
do("cuGetExportTable", byref(table), b"simgpu-unseen-01")
t, context, module, at = table.contents, c_void_p(), c_void_p(), c_uint64()
assert t.bytes == c.sizeof(Table)
assert not t.primary_retain(byref(context), 0)
do("cuCtxSetCurrent", context)
assert not t.module_load(byref(module), IMAGE) and not t.memory_alloc(byref(at), 50 << 20)
say("up"); wait()
assert not t.memory_free(at) and not t.module_unload(module) and not t.primary_release(0)
say("down"); wait()
""",
    )
    assert "up" == client.line()
    assert CONTEXT + 52 * MIB == records(box)[1]
    client.tell()
    assert "down" == client.line()
    assert 0 == records(box)[1]
