# SPDX-License-Identifier: Apache-2.0
"""
What modules and libraries cost of a promise, against the simulator's own records: what their images say.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct

import pytest
from support import cuda_images
from support.lib_machine import machines
from support.simcontainers import GIB, MIB, OOM

from isolation.simgpu.hardware import KINDS

SMALL = cuda_images.cubin({"k": 4096})
"""A kernel of 4 KiB."""


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


def held(one, card=0):
    """Bytes of modules on the card, by its own ledger."""
    return sum(client.bytes[KINDS.index("module")] for client in one.box.clients(card))


def image(data: bytes) -> str:
    """Python for a program that has this image as `image`."""
    return f"image = create_string_buffer(bytes.fromhex({data.hex()!r}))\n"


LARGE = 2 * GIB
TWO_GIB = {
    "a cubin's zeroed variable": cuda_images.cubin({"k": 4096}, {"table": LARGE}),
    "PTX": cuda_images.ptx(variables=f".visible .global .align 4 .b8 table[{LARGE}];"),
    "PTX, an array of arrays": cuda_images.ptx(variables=".global .v4 .f32 table[1024][0x100][ 512U ];"),
    "PTX on one line": cuda_images.ptx(
        variables="/* .global .b8 x[9]; */ .global .b64 a = 1, table[268435456];"
    ).replace(b"\n", b" "),
    "a fat binary": cuda_images.fat(cuda_images.entry(cuda_images.cubin({"k": 4096}, {"table": LARGE}), 70)),
    "a fat binary's PTX": cuda_images.fat(
        cuda_images.entry(cuda_images.ptx(variables=f".global .b8 table[{LARGE}];"), 60), cuda_images.entry(SMALL, 90)
    ),
    "a compressed cubin": cuda_images.fat(cuda_images.entry(bytes(64), 70, full_bytes=LARGE)),
}


@pytest.mark.parametrize("how", TWO_GIB)
def test_static_data_past_the_promise_is_refused(machine, how):
    """`__device__` variables are memory like any other: 2 GiB of them do not fit into 1 GiB."""
    one = machine()
    one.promise("a", (0, 1024))
    one.promise("b", (0, 3072))
    code = image(TWO_GIB[how]) + "begin()\nmodule = c_void_p()\nrc = cu.cuModuleLoadData(byref(module), image)\n"

    assert OOM == one.run("a", code + "say(rc)")
    assert ["DENIED"] == [breach.kind.name for breach in one.breaches("a")]
    process = one.start("b", code + "say([rc, info()[0]])\nsys.stdin.read()")
    rc, left = json.loads(process.stdout.readline())
    truth = held(one)
    _, err = process.communicate("", timeout=120)

    assert 0 == rc, err
    assert LARGE <= truth <= 3072 * MIB - one.context_bytes() - left <= truth + 2 * MIB


KERNELS = """
begin()
before, modules = info()[0], []
for number in range(1000):
    modules.append(c_void_p())
    ok(cu.cuModuleLoadData(byref(modules[-1]), image))
after = info()[0]
say([before - after, sys.stdin.readline()])
for module in modules:
    ok(cu.cuModuleUnload(module))
say([before - info()[0]])
"""


@pytest.mark.parametrize("form", [SMALL, cuda_images.ptx()])
def test_a_thousand_small_kernels_cost_what_they_take(machine, form):
    """A just-in-time compiler loads one module for each kernel: they share blocks, and give them back."""
    one = machine()
    one.promise("a", (0, 1024))
    process = one.start("a", image(form) + KERNELS.replace("say([before - after, sys.stdin.readline()])",
                                                           "say(before - after)\nsys.stdin.readline()"))  # fmt: skip
    charged = int(process.stdout.readline())
    truth = held(one)
    back, err = process.communicate("\n", timeout=120)

    assert truth <= charged <= truth + 2 * MIB, err
    assert charged <= 16 * MIB
    assert "[0]" == back.strip()


LIBRARY = """
begin()
library, kernel, function, module = c_void_p(), c_void_p(), c_void_p(), c_void_p()
at, size = c_uint64(), c_size_t()
def used():
    return total - info()[0]
total = info()[0]
ok(cu.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0))
say(used())
sys.stdin.readline()
"""
NODE = """
graph, node, value = c_void_p(), c_void_p(), (c_void_p * 1)(0)
def of(function, kernel):
    shape = (function and function.value, 1 << 32 | 80, 128 << 32 | 1, 1 << 32 | 1, 0)
    return (c_uint64 * 9)(*shape, addressof(value), 0, kernel and kernel.value, 0)
ok(cu.cuGraphCreate(byref(graph), 0))
ok(cu.cuLibraryGetKernel(byref(kernel), library, b"k"))
"""
FIRST_USES = {
    "the launch of its kernel": 'ok(cu.cuLibraryGetKernel(byref(kernel), library, b"k")); rc = launch(kernel)',
    "its enumerated kernel": "ok(cu.cuLibraryEnumerateKernels(byref(kernel), 1, library)); rc = launch(kernel)",
    "a function": 'ok(cu.cuLibraryGetKernel(byref(kernel), library, b"k")); '
    "rc = cu.cuKernelGetFunction(byref(function), kernel)",
    "a graph's node": NODE + "rc = cu.cuGraphAddKernelNode_v2(byref(node), graph, None, c_size_t(0), of(kernel, 0))",
    "a graph's node by its kernel": NODE
    + "rc = cu.cuGraphAddKernelNode_v2(byref(node), graph, None, c_size_t(0), of(0, kernel))",
    "a graph's node of any type": NODE
    + "rc = cu.cuGraphAddNode(byref(node), graph, None, c_size_t(0), (c_uint64 * 32)(0, 0, *of(kernel, 0)))",
    "its module": "rc = cu.cuLibraryGetModule(byref(module), library)",
    "a variable": 'rc = cu.cuLibraryGetGlobal(byref(at), byref(size), library, b"table")',
}
FIVE = cuda_images.fat(
    *(
        cuda_images.entry(cuda_images.cubin({"k": 4096}, {"table": size * MIB - 65536}), arch)
        for arch, size in ((60, 6), (70, 8), (75, 14), (80, 22), (90, 10))
    )
)
"""A library for five architectures; of sm_70 it has 8 MiB."""


@pytest.mark.parametrize("use", FIRST_USES)
def test_a_library_is_charged_when_it_is_loaded(machine, use):
    """Not when it is made, and of its five architectures the card's own only; once, and given back."""
    one = machine()
    one.promise("a", (0, 1024))
    code = (
        image(FIVE)
        + LIBRARY
        + FIRST_USES[use]
        + """
say([rc, used()])
sys.stdin.readline()
ok(cu.cuLibraryGetModule(byref(module), library))
ok(cu.cuLibraryGetKernel(byref(kernel), library, b"k")); ok(launch(kernel)); ok(launch(kernel))
ok(cu.cuCtxSynchronize())
again = used()
ok(cu.cuLibraryUnload(library))
say([again, used()])
"""
    )
    process = one.start("a", code)
    made, none = process.stdout.readline().strip(), held(one)
    process.stdin.write("\n"), process.stdin.flush()
    loaded, truth = process.stdout.readline().strip(), held(one)
    rest, err = process.communicate("\n", timeout=120)

    assert ("0", 0) == (made, none), err
    assert (json.dumps([0, 8 * MIB]), 8 * MIB) == (loaded, truth), err
    assert json.dumps([8 * MIB, 0]) == rest.strip()
    assert 0 == held(one)


@pytest.mark.parametrize("use", FIRST_USES)
def test_a_library_past_the_promise_is_refused_at_its_first_use(machine, use):
    """The card holds nothing of it, and what is freed makes room for it."""
    one = machine()
    one.promise("a", (0, 1024))
    code = image(cuda_images.fat(cuda_images.entry(cuda_images.cubin({"k": 64}, {"table": 300 * MIB}), 70))) + LIBRARY
    process = one.start(
        "a",
        code
        + "rc, much = alloc(info()[0] - 100 * MIB)\n"
        + FIRST_USES[use]
        + """
say(rc)
sys.stdin.readline()
ok(cu.cuMemFree_v2(much))
"""
        + FIRST_USES[use]
        + "\nsay(rc)",
    )
    assert "0" == process.stdout.readline().strip()
    process.stdin.write("\n"), process.stdin.flush()
    refused, truth = process.stdout.readline().strip(), held(one)
    rest, err = process.communicate("\n", timeout=120)

    assert (str(OOM), 0, "0") == (refused, truth, rest.strip()), err


@pytest.mark.parametrize("mib", [1024, 310])
def test_where_programs_are_loaded_eagerly_a_library_is_charged_when_it_is_made(machine, mib):
    """CUDA_MODULE_LOADING=EAGER: on the card at once, or refused; and not charged again when it is used."""
    one = machine()
    one.promise("a", (0, mib))
    code = (
        LIBRARY.split("ok(cu.cuLibraryLoadData", maxsplit=1)[0]
        + """
rc = cu.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0)
say([rc, used()])
sys.stdin.readline()
ok(rc or cu.cuLibraryGetModule(byref(module), library))
say(used())
"""
    )
    process = one.start("a", image(FIVE) + code, CUDA_MODULE_LOADING="EAGER")
    made, truth = json.loads(process.stdout.readline()), held(one)
    again, _ = process.communicate("\n", timeout=120)

    if mib == 310:
        assert ([OOM, 0], 0) == (made, truth)
    else:
        assert ([0, 8 * MIB], 8 * MIB, str(8 * MIB)) == (made, truth, again.strip())


def test_a_library_of_each_device_is_charged_there(machine):
    """Two cards: each by its architecture, when it is used there; a primary context that ends gives it back."""
    one = machine("v100-16g", "h100-80g")
    one.promise("a", (0, 1024), (1, 2048))
    process = one.start(
        "a",
        image(FIVE)
        + """
assert begin(0) == 0
library, kernel, other = c_void_p(), c_void_p(), c_void_p()
ok(cu.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0))
ok(cu.cuLibraryGetKernel(byref(kernel), library, b"k"))
ok(launch(kernel)); ok(launch(kernel))
first = info()[0]
assert begin(1) == 0
empty = info()[0]
ok(launch(kernel)); ok(launch(kernel))
ok(cu.cuCtxSynchronize())
say([first, empty - info()[0]])
sys.stdin.readline()
ok(cu.cuDevicePrimaryCtxReset_v2(1))
assert begin(1) == 0
again = info()[0]
ok(launch(kernel))
say([empty - again, empty - info()[0]])
""",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    first, second = json.loads(process.stdout.readline())
    truth = [held(one), held(one, 1)]
    rest, err = process.communicate("\n", timeout=120)

    assert [1024 * MIB - one.context_bytes() - 8 * MIB, 10 * MIB] == [first, second], err
    assert [8 * MIB, 10 * MIB] == truth
    assert json.dumps([0, 10 * MIB]) == rest.strip()


def test_files_are_sized_like_images(machine, tmp_path):
    """Modules and libraries from files that no estimate by their length would fit."""
    one = machine()
    one.promise("a", (0, 1024))
    (tmp_path / "five").write_bytes(FIVE)
    (tmp_path / "large").write_bytes(TWO_GIB["a fat binary"])
    one_file, other = (str(tmp_path / name).encode() for name in ("five", "large"))

    assert [8 * MIB, OOM, 8 * MIB] == one.run(
        "a",
        f"""
begin()
before, it = info()[0], c_void_p()
ok(cu.cuModuleLoad(byref(it), {one_file!r}))
one = before - info()[0]
refused = cu.cuModuleLoad(byref(it), {other!r})
ok(cu.cuModuleUnload(it)) if refused == 0 else None
before = info()[0]
library, module = c_void_p(), c_void_p()
ok(cu.cuLibraryLoadFromFile(byref(library), {one_file!r}, None, None, 0, None, None, 0))
ok(cu.cuLibraryGetModule(byref(module), library))
say([one, refused, (before - info()[0]) + (8 << 20) % (before - info()[0] or 1)])
""",
    )


@pytest.fixture(scope="module")
def reader(c_program):
    """gs_image_bytes(address, length, architecture) by itself."""
    flags = ("-shared", "-fPIC", "-fno-builtin")
    function = ctypes.CDLL(str(c_program("image.so", "src/image.c", "src/sys.c", flags=flags))).gs_image_bytes
    function.restype, function.argtypes = ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
    return function


@pytest.fixture(scope="module")
def sizes(reader):
    """Bytes of an image on sm_70, or another architecture."""
    return lambda data, arch=70: reader(data, len(data), arch)


UNKNOWN = 2**64 - 1
PTX_SIZES = {
    ".global .u32 a;": 256,
    ".global .u32 a, b[65];": 768,
    ".visible .global .align 16 .b8 a[];": 256,
    ".global .u64 a[] = {1, 2, {3, 4}, 0x5};": 256,
    ".global .f16x2 a[128];": 512,
    ".global .b128 a[32];": 512,
    ".const .b32 a[64];": 256,
    ".global .attribute(.managed) .s32 a[128];": 512,
    ".weak .global .texref a;": 256,
    ".extern .global .b8 a[4096];": 0,
    "// .global .b8 a[4096];": 0,
    '.file 1 "x .global .b8 a[4096];"': 0,
    ".visible .func f(.param .u64 .ptr .global .align 8 p){ld.global.u32 %r1, [%rd1];\nst.global.f32 [a], %f1;}": 0,
    ".entry f(.param .b8 p[4096])\n.maxntid 256, 1, 1\n{ .shared .b8 s[4096]; .reg .b32 %r<9>; L: bra L; }": 0,
    ".global .b8 a[0x40000000][0x40000000][0x40000000];": UNKNOWN,
    ".global .b8 a[WIDTH];": UNKNOWN,
}


@pytest.mark.parametrize("text", PTX_SIZES)
def test_variables_of_ptx_are_told_from_everything_else(sizes, text):
    """State spaces, types, vectors, arrays, initialisers; no instruction, parameter, comment or string."""
    head = b".version 8.0\n.target sm_90\n.address_size 64\n"
    for between in (b"\n", b" "):
        data = (head + text.encode()).replace(b"\n", between)
        assert min(PTX_SIZES[text] + len(data), UNKNOWN) == sizes(data)


def test_the_entry_that_fits_the_device_counts(sizes):
    """The newest cubin of the same major, else the newest PTX; unknown kinds by their size."""
    entries = {arch: cuda_images.entry(cuda_images.cubin({"k": arch * 256}), arch) for arch in (60, 70, 75, 80, 90)}
    text = cuda_images.ptx(variables=".global .b8 a[65536];")
    all_of = cuda_images.fat(cuda_images.entry(text, 70), *entries.values())

    assert [60 * 256, 70 * 256, 70 * 256, 75 * 256, 80 * 256, 80 * 256, 90 * 256] == [
        sizes(all_of, arch) for arch in (61, 70, 72, 75, 80, 89, 90)
    ]
    assert 65536 < sizes(all_of, 120) < 65536 + 256 + len(text)
    assert 90 * 256 <= sizes(all_of, 0)
    assert 4096 == sizes(cuda_images.fat(cuda_images.entry(bytes(4096), 70, kind=8)))
    assert 0 == sizes(b"") == sizes(b"\0" * 64) == sizes(b"hello, world")


def test_no_image_makes_the_reader_read_what_is_not_there(reader):
    """Cut and scribbled images before an unmapped page: an answer always, in time, and never a crash."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    room = 1 << 20
    base = libc.mmap(None, room + 4096, 3, 0x22, -1, 0)
    assert 0 == libc.mprotect(ctypes.c_void_p(base + room), 4096, 0)
    rng = random.Random(18)  # noqa: S311 (not for secrets)
    for _ in range(4000):
        data = bytearray(rng.choice([FIVE[:200], SMALL, FIVE[-70000:], *TWO_GIB.values(), cuda_images.fat(SMALL)]))
        for _ in range(rng.randrange(6)):
            at = rng.randrange(len(data) - 8)
            data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, rng.getrandbits(64)]))
        del data[rng.randrange(len(data) + 1) :]
        data = data[-room:]
        ctypes.memmove(base + room - len(data), bytes(data), len(data))
        reader(base + room - len(data), 2**64 - 1, 70)
