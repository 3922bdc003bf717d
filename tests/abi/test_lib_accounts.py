# SPDX-License-Identifier: Apache-2.0
"""What the library counts and shows: never less than the card holds, never more than it has."""

from __future__ import annotations

import pytest
from support.lib_machine import machines
from support.simcontainers import GIB, MIB, OOM

from isolation.lib import files


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


def test_free_memory_never_grows_while_a_program_starts(machine):
    """Context and modules are charged at once and in full: a profiler that compares two readings sees no gain."""
    one = machine()
    one.promise("a", (0, 4096))
    seen = one.run(
        "a",
        """
seen = []
def look():
    seen.append(info()[0])
begin(); look()
function = kernel(b"simgpu 1\\nkernel k params=8 ns=$0\\ncode 5242880\\n"); look()
for _ in range(3):
    ok(launch(function)); look()
ok(cu.cuCtxSynchronize()); look()
ok(cu.cuCtxSetLimit(2, c_size_t(64 * MIB))); look()
for size in (4096, MIB, 16 * MIB):
    alloc(size); look()
for _ in range(20):
    time.sleep(0.01); look()
say(seen)
""",
    )

    assert sorted(seen, reverse=True) == seen
    assert seen[0] <= 4 * GIB - one.context_bytes()


def test_free_memory_is_what_the_card_really_has_where_that_is_less(machine):
    """Somebody outside every promise has most of the card: free is the card's, total stays the promise, no breach."""
    one = machine()
    one.promise("a", (0, 5120))
    stranger = one.start("a", "begin()\nsay(alloc(13 * GIB)[0])\nsys.stdin.read()", LD_PRELOAD="")
    assert "0" == stranger.stdout.readline().strip()
    shown, full = one.run("a", "begin()\nsay([info(), alloc(3 * GIB)[0]])")
    card = one.box.cards()[0]
    stranger.communicate("", timeout=120)

    assert card.model.total_bytes - card.model.reserved_bytes - 13 * GIB - 2 * one.context_bytes() == shown[0]
    assert (5 * GIB, OOM) == (shown[1], full)
    assert () == files.read_breaches(one.folder / "a.region")[2]


MISSED = {
    "the device heap": "ok(cu.cuCtxSetLimit(2, c_size_t(256 * MIB)))",
    "a module's globals": 'load(b"simgpu 1\\nglobal table 1048576\\nkernel k us=1\\n")',
    "a module's code": 'load(b"simgpu 1\\nkernel k us=1\\ncode 1048576\\n")',
    "a library's code": """
library = c_void_p()
ok(cu.cuLibraryLoadData(byref(library), b"simgpu 1\\nkernel k us=1\\n", None, None, 0, None, None, 0))""",
    "a second context": "ok(cu.cuCtxCreate_v2(byref(c_void_p()), 0, 0))",
    "an array": "ok(cu.cuArrayCreate_v2(byref(c_void_p()), (c_uint64 * 3)(4096, 4096, 0x20 | 1 << 32)))",
    "a mipmapped array": """
ok(cu.cuMipmappedArrayCreate(byref(c_void_p()), (c_uint64 * 5)(4096, 2048, 0, 0x20 | 1 << 32, 0), 3))""",
    "the default pool": "ok(cu.cuMemAllocAsync(byref(c_uint64()), c_size_t(100 * MIB), None))",
    "another default pool": """
pool, other, properties = c_void_p(), c_void_p(), create_string_buffer(88)
memmove(properties, (c_int * 4)(1, 0, 1, 0), 16)
ok(cu.cuMemPoolCreate(byref(pool), properties))
ok(cu.cuDeviceSetMemPool(0, pool))
ok(cu.cuMemAllocAsync(byref(c_uint64()), c_size_t(100 * MIB), None))""",
    "pitched memory": """
ok(cu.cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), c_size_t(5000), c_size_t(9000), 4))""",
}


@pytest.mark.parametrize("family", MISSED)
def test_the_ledger_covers_what_the_card_holds(machine, family):
    """Families that are easily missed: never less in the ledger than on the card, and both at 0 in the end."""
    one = machine()
    one.promise("a", (0, 4096))
    worker = one.start("a", f"begin()\n{MISSED[family]}\nsay(info()[0])\nsys.stdin.read()")
    left = worker.stdout.readline()
    (client,) = one.box.clients(0)
    truth, booked = client.total_bytes, one.book("a").cards[0].used_bytes
    _, err = worker.communicate("", timeout=120)
    one.box.settle()

    assert left, err
    assert truth >= one.context_bytes()
    assert truth <= booked <= truth + 64 * MIB
    assert 4 * GIB - booked == int(left)
    assert 0 == one.box.cards()[0].used_bytes


GREEN = """
begin()
resource, description, green = create_string_buffer(256), c_void_p(), c_void_p()
ok(cu.cuDeviceGetDevResource(0, resource, 1))
ok(cu.cuDevResourceGenerateDesc(byref(description), resource, 1))
ok(cu.cuGreenCtxCreate(byref(green), description, 0, 1))
stream, function = c_void_p(), kernel()
ok(cu.cuGreenCtxStreamCreate(byref(stream), green, 1, 0))
say([launch(function, 1000, stream) for _ in range(50)])
"""


def test_a_green_contexts_launches_go_to_its_cards_bucket(machine):
    """Fewer processors, the same card: its launches are counted there."""
    one = machine()
    one.promise("a", (0, 2048), core_ppm=500_000)

    assert [0] * 50 == one.run("a", GREEN)
    assert 50 == one.book("a").cards[0].launches
