# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime for simulated cards: what programs call, over the simulated driver."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from support.compiled import gcc

import isolation.simgpu
from isolation.simgpu.hardware import KINDS, LIBRARIES

MIB = 1 << 20
RUNTIME = Path(isolation.simgpu.__file__).parent / "runtime"


@pytest.fixture(params=["12", "13"])
def rt(request, run):
    """Clients of either runtime: `rt(box, code)`."""

    def start(box, code, **env):
        return run(box, f"from support.simruntime import *\n{_flush(code)}", RUNTIME=request.param, **env)

    start.major = int(request.param)
    return start


def _flush(code):
    lines = code.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[margin:] for line in lines)


def held(box):
    """Bytes by kind of the only process on the card."""
    (book,) = box.clients(0)
    return {kind: size for kind, size in zip(KINDS, book.bytes, strict=True) if size}


def names(major):
    """(functions, variants for a default stream per thread) that this version exports."""
    text = (RUNTIME / "names.def").read_text()
    common, _, rest = text.partition("#if RUNTIME == 12\n")
    of_12, _, of_13 = rest.partition("#else\n")
    mine = common + (of_12 if major == 12 else of_13.partition("#endif")[0])
    return [re.findall(rf"^{kind}\((\w+)", mine, re.MULTILINE) for kind in "XP"]


@pytest.mark.parametrize("major", [12, 13])
def test_every_name_is_exported_with_the_version_that_programs_are_linked_to(major):
    """The loader refuses a program of which one symbol is missing."""
    library = ctypes.CDLL(str(LIBRARIES / f"libcudart.so.{major}"))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    functions, per_thread = names(major)

    assert len(functions) > 300
    assert len(per_thread) > 50
    version = f"libcudart.so.{major}".encode()
    assert [] == [name for name in functions + per_thread if not find(library._handle, name.encode(), version)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("major", [12, 13])
def test_it_compiles_without_a_warning(major):
    """Every warning is an error here."""
    flags = ["-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wvla", "-fvisibility=hidden", "-O1"]

    assert gcc("library.so", sorted(RUNTIME.glob("*.c")), *flags, f"-DRUNTIME={major}", beside=[RUNTIME]).is_file()


def test_memory_is_taken_copied_and_given_back(make_box, rt):
    """Bytes go there and back; nothing is no error; the records are at the context alone afterwards."""
    box = make_box()
    client = rt(
        box,
        """
        a, b, back = malloc(1 << 20), malloc(1 << 20), c.create_string_buffer(16)
        must("cudaMemcpy", a, b"sixteen letters!", c_size_t(16), TO_DEVICE)
        must("cudaMemcpy", b, a, c_size_t(16), ON_DEVICE)
        must("cudaMemset", b, 45, c_size_t(7))
        must("cudaMemcpyAsync", back, b, c_size_t(16), BY_ADDRESS, None)
        must("cudaDeviceSynchronize")
        pinned, nothing = c_void_p(), c_void_p(1)
        must("cudaHostAlloc", byref(pinned), c_size_t(4096), 0)
        must("cudaMalloc", byref(nothing), c_size_t(0))
        must("cudaFree", None)
        big = malloc(64 << 20)
        free, total = c_size_t(), c_size_t()
        must("cudaMemGetInfo", byref(free), byref(total))
        say(back.raw.decode(), nothing.value, (total.value - free.value) >> 20)
        must("cudaFree", a), must("cudaFree", b), must("cudaFree", big), must("cudaFreeHost", pinned)
        say(rt("cudaFree", a))
        wait()
        """,
    )

    assert "------- letters! None 372" == client.line()
    assert "1" == client.line()
    assert {"context": 306 * MIB} == held(box)


def test_out_of_memory_is_an_error_of_the_thread_and_passes(make_box, rt):
    """By number, name and text; kept until it is asked for; other threads have none; then memory is to be had."""
    client = rt(
        make_box(),
        """
        pointer = c_void_p()
        say(rt("cudaMalloc", byref(pointer), c_size_t(1 << 40)), pointer.value)
        thread = threading.Thread(target=lambda: say(rt("cudaPeekAtLastError")))
        thread.start(), thread.join()
        say(rt("cudaPeekAtLastError"), rt("cudaGetLastError"), rt("cudaGetLastError"))
        say(RT.cudaGetErrorName(2).decode(), "-", RT.cudaGetErrorString(2).decode())
        say(RT.cudaGetErrorName(98).decode(), "-", RT.cudaGetErrorString(98).decode())
        say(malloc(1 << 20).value > 0)
        """,
    )

    assert [
        "2 None",
        "0",
        "2 2 0",
        "cudaErrorMemoryAllocation - out of memory",
        "cudaErrorInvalidDeviceFunction - invalid device function",
        "True",
    ] == client.end().splitlines()


IMAGES = """
KERNEL, OTHER, TABLE, STRANGER = 0x1000, 0x1010, 0x1020, 0x1030
image = fat_binary((ELF, 60, 4096, 0), (ELF, 70, 8192, 10 << 20), (ELF, 75, 4096, 0), (ELF, 80, 4096, 99 << 20))
register(image, {KERNEL: b"_Z6kernelv", OTHER: b"_Z5otherv"}, {TABLE: (b"table", 4 << 20)})
"""


def test_images_are_loaded_when_their_first_kernel_is_used(make_box, rt):
    """The image for this card alone, at its full size, with its variables; unregistered addresses are no kernels."""
    box = make_box()
    client = rt(
        box,
        IMAGES
        + """
must("cudaFree", None)
say("before"), wait()
say(launch_host(STRANGER), launch_host(KERNEL), launch_host(OTHER, blocks=0))
must("cudaDeviceSynchronize")
say("after"), wait()
at, size, back = c_void_p(), c_size_t(), c.create_string_buffer(3)
must("cudaGetSymbolAddress", byref(at), c_void_p(TABLE))
must("cudaGetSymbolSize", byref(size), c_void_p(TABLE))
must("cudaMemcpyToSymbol", c_void_p(TABLE), b"abc", c_size_t(3), c_size_t(8), TO_DEVICE)
must("cudaMemcpyFromSymbol", back, c_void_p(TABLE), c_size_t(2), c_size_t(9), TO_HOST)
say(size.value, back.value.decode(), rt("cudaGetSymbolAddress", byref(at), c_void_p(KERNEL)))
""",
    )

    assert "before" == client.line()
    assert "module" not in held(box)
    client.tell()
    assert "98 0 9" == client.line()
    assert "after" == client.line()
    assert 14 * MIB == held(box)["module"]
    assert 1 == box.clients(0)[0].launches
    client.tell()
    assert f"{4 * MIB} bc 13" == client.end()


def test_attributes_and_occupancy_are_asked_of_a_kernel(make_box, rt):
    """Through the driver's function behind it."""
    client = rt(
        make_box(),
        IMAGES
        + """
size, ints = c_size_t * 3, c_int * 32
class Attributes(c.Structure):
    _fields_ = [("bytes", size), ("ints", ints)]
found, blocks, function = Attributes(), c_int(), c_void_p()
must("cudaFuncGetAttributes", byref(found), c_void_p(KERNEL))
must("cudaFuncSetAttribute", c_void_p(KERNEL), 8, 65536)
must("cudaOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), c_void_p(KERNEL), 256, c_size_t(0))
say(found.ints[0], found.ints[3], blocks.value)
must("cudaFuncGetAttributes", byref(found), c_void_p(KERNEL))
say(found.ints[5], rt("cudaFuncGetAttributes", byref(found), c_void_p(STRANGER)))
""",
    )

    assert ["1024 70 8", "65536 98"] == client.end().splitlines()


def test_a_launch_finds_what_was_pushed_for_it(make_box, rt):
    """What compilers make of <<<...>>>; nothing pushed is an error."""
    client = rt(
        make_box(),
        """
        grid, block, shared, where = Dim3(), Dim3(), c_size_t(), c_void_p()
        RT.__cudaPushCallConfiguration.argtypes = [Dim3, Dim3, c_size_t, c_void_p]
        out = (byref(grid), byref(block), byref(shared), byref(where))
        RT.__cudaPushCallConfiguration(Dim3(1, 2, 3), Dim3(4, 5, 6), 7, 8)
        say(rt("__cudaPopCallConfiguration", *out), rt("__cudaPopCallConfiguration", *out))
        say(grid.y, block.z, shared.value, where.value)
        """,
    )

    assert ["0 52", "2 6 7 8"] == client.end().splitlines()


def test_streams_and_events_order_and_measure(make_box, rt):
    """A kernel between two events; another stream waits for the second."""
    client = rt(
        make_box(kernel_ns=1_000_000_000),
        IMAGES
        + """
one, two = made("cudaStreamCreate"), made("cudaStreamCreateWithFlags", 1)
begin, end = made("cudaEventCreate"), made("cudaEventCreateWithFlags", 0)
must("cudaEventRecord", begin, one)
say(launch_host(KERNEL, where=one))
must("cudaEventRecord", end, one)
must("cudaStreamWaitEvent", two, end, 0)
say(rt("cudaStreamQuery", two), rt("cudaEventQuery", end))
must("cudaStreamSynchronize", two)
ms = c_float()
must("cudaEventElapsedTime", byref(ms), begin, end)
say(rt("cudaEventQuery", end), 1000 <= ms.value)
""",
    )

    assert ["0", "600 600", "0 True"] == client.end().splitlines()


def test_a_capture_becomes_a_graph_that_runs_again(make_box, rt):
    """Recorded, not run; each launch runs all of it."""
    box = make_box()
    client = rt(
        box,
        IMAGES
        + """
stream, graph, status = made("cudaStreamCreate"), c_void_p(), c_int()
must("cudaStreamBeginCapture", stream, 0)
say(launch_host(KERNEL, where=stream), launch_host(OTHER, where=stream))
must("cudaStreamIsCapturing", stream, byref(status))
must("cudaStreamEndCapture", stream, byref(graph))
count = c_size_t()
must("cudaGraphGetNodes", graph, None, byref(count))
executable = made("cudaGraphInstantiateWithFlags", graph, c_uint64(0))
say(status.value, count.value)
for _ in range(3):
    must("cudaGraphLaunch", executable, stream)
must("cudaStreamSynchronize", stream)
must("cudaGraphExecDestroy", executable), must("cudaGraphDestroy", graph)
say("done"), wait()
""",
    )

    assert "0 0" == client.line()
    assert "1 2" == client.line()
    assert "done" == client.line()
    assert 3 == box.clients(0)[0].launches


def test_what_a_capture_says_of_itself(make_box, rt):
    """Its id, graph and last node: in the form of this version."""
    edges = "" if rt.major == 12 else "None, "
    name = "cudaStreamGetCaptureInfo" + ("_v2" if rt.major == 12 else "")
    client = rt(
        make_box(),
        IMAGES
        + f"""
stream, status, ident, n = made("cudaStreamCreate"), c_int(), c_uint64(), c_size_t()
graph, tips = c_void_p(), c_void_p()
must("cudaStreamBeginCapture", stream, 0)
launch_host(KERNEL, where=stream)
must("{name}", stream, byref(status), byref(ident), byref(graph), byref(tips), {edges}byref(n))
say(status.value, ident.value > 0, graph.value is not None, n.value)
""",
    )

    assert "1 True True 1" == client.end()


OFFSETS = {
    12: {"total": 288, "warp": 308, "threads": 320, "major": 360, "sms": 388, "per_sm": 624, "l2": 616},
    13: {"total": 288, "warp": 308, "threads": 320, "major": 360, "sms": 384, "per_sm": 604, "l2": 596},
}
"""Of cudaDeviceProp's fields, by version, as compilers lay out the documented structure."""


def test_a_device_shows_its_properties_where_programs_look(make_box, rt):
    """Name and size, and figures at the offsets of this version's structure."""
    at = OFFSETS[rt.major]
    name = "cudaGetDeviceProperties" + ("_v2" if rt.major == 12 else "")
    client = rt(
        make_box("a10"),
        f"""
        raw = c.create_string_buffer(1032)
        must("{name}", raw, 0)
        int_at = lambda at: c_int.from_buffer(raw, at).value
        say(raw.value.decode(), c_uint64.from_buffer(raw, {at["total"]}).value >> 20)
        say(*map(int_at, {[at[one] for one in ("warp", "threads", "major", "sms", "per_sm", "l2")]}))
        value, version = c_int(), c_int()
        must("cudaDeviceGetAttribute", byref(value), 16, 0)
        must("cudaRuntimeGetVersion", byref(version))
        say(value.value, version.value // 1000, rt("{name}", raw, 7))
        """,
    )

    assert ["NVIDIA A10 22516", "32 1024 8 72 1536 6291456", f"72 {rt.major} 101"] == client.end().splitlines()


def test_each_thread_has_a_device_and_pointers_know_theirs(make_box, rt):
    """Threads begin on device 0; memory says what it is and where."""
    client = rt(
        make_box("t4", "t4"),
        """
        def device():
            found = c_int()
            must("cudaGetDevice", byref(found))
            return found.value
        class Pointer(c.Structure):
            _fields_ = [("type", c_int), ("device", c_int), ("at", c_void_p), ("more", c.c_long * 9)]
        def kind(pointer):
            found = Pointer()
            must("cudaPointerGetAttributes", byref(found), pointer)
            return found.type, found.device
        must("cudaSetDevice", 1)
        there, pinned, managed = malloc(1 << 20), c_void_p(), c_void_p()
        must("cudaMallocHost", byref(pinned), c_size_t(4096))
        must("cudaMallocManaged", byref(managed), c_size_t(4096), 1)
        thread = threading.Thread(target=lambda: say(device()))
        thread.start(), thread.join()
        say(device(), count(), rt("cudaSetDevice", 2))
        say(kind(there), kind(pinned)[0], kind(managed)[0], kind(c.create_string_buffer(8)))
        peer = c_int()
        must("cudaDeviceCanAccessPeer", byref(peer), 0, 1)
        must("cudaMemcpyPeerAsync", there, 1, there, 1, c_size_t(16), None)
        """,
    )

    assert ["0", "1 2 101", "(2, 1) 1 3 (0, -2)"] == client.end().splitlines()


def test_pools_serve_in_stream_order(make_box, rt):
    """The default pool grows, keeps what it is told to keep, and is trimmed; a pool of one's own too."""
    box = make_box()
    client = rt(
        box,
        """
        pool, pointer = made("cudaDeviceGetDefaultMemPool", 0), c_void_p()
        keep, reserved = c_uint64(1 << 40), c_uint64()
        must("cudaMemPoolSetAttribute", pool, 4, byref(keep))
        must("cudaMallocAsync", byref(pointer), c_size_t(100 << 20), None)
        must("cudaFreeAsync", pointer, None)
        must("cudaDeviceSynchronize")
        must("cudaMemPoolGetAttribute", pool, 5, byref(reserved))
        say(reserved.value >> 20)
        must("cudaMemPoolTrimTo", pool, c_size_t(0))
        must("cudaMemPoolGetAttribute", pool, 5, byref(reserved))
        props = (c_int * 22)(1, 0, 1, 0)
        own = made("cudaMemPoolCreate", props)
        must("cudaMallocFromPoolAsync", byref(pointer), c_size_t(1 << 20), own, None)
        say(reserved.value, rt("cudaFreeAsync", pointer, None), rt("cudaMemPoolDestroy", own))
        """,
    )

    assert ["128", "0 0 0"] == client.end().splitlines()


def test_memory_and_events_are_shared_between_processes(make_box, rt):
    """The memory stands in its owner's records alone, and is readable there; the event is the same one."""
    box = make_box()
    owner = rt(
        box,
        """
        pointer, event = malloc(64 << 20), made("cudaEventCreateWithFlags", 6)
        handles = c.create_string_buffer(64), c.create_string_buffer(64)
        must("cudaIpcGetMemHandle", handles[0], pointer)
        must("cudaIpcGetEventHandle", handles[1], event)
        must("cudaEventRecord", event, None)
        say(*(handle.raw.hex() for handle in handles)), wait()
        """,
    )
    memory, event = owner.line().split()
    other = rt(
        box,
        f"""
        class Handle(c.Structure):
            _fields_ = [("bytes", c.c_char * 64)]
        RT.cudaIpcOpenMemHandle.argtypes = [c_void_p, Handle, c.c_uint]
        RT.cudaIpcOpenEventHandle.argtypes = [c_void_p, Handle]
        pointer, event = c_void_p(), c_void_p()
        must("cudaIpcOpenMemHandle", byref(pointer), Handle.from_buffer_copy(bytes.fromhex("{memory}")), 1)
        must("cudaIpcOpenEventHandle", byref(event), Handle.from_buffer_copy(bytes.fromhex("{event}")))
        must("cudaEventSynchronize", event)
        must("cudaMemset", pointer, 0, c_size_t(64 << 20))
        say("open"), wait()
        must("cudaIpcCloseMemHandle", pointer), must("cudaEventDestroy", event)
        """,
    )

    assert "open" == other.line()
    data = {book.pid: book.bytes[KINDS.index("data")] for book in box.clients(0)}
    assert {owner.process.pid: 64 * MIB, other.process.pid: 0} == data
    other.tell()
    assert not other.end()


def test_threads_at_the_end_of_the_card_fail_and_recover(make_box, rt):
    """Sixteen at once: each refusal is out of memory, and nothing of it stays."""
    box = make_box("t4")
    client = rt(
        box,
        """
        answers = set()
        def work():
            for _ in range(50):
                pointer = c_void_p()
                status = rt("cudaMalloc", byref(pointer), c_size_t(1536 << 20))
                answers.add(status)
                if not status:
                    must("cudaFree", pointer)
        threads = [threading.Thread(target=work) for _ in range(16)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        say(*sorted(answers)), wait()
        """,
    )

    assert client.line() in {"0 2", "0"}
    assert "data" not in held(box)
    assert box.clients(0)[0].peak_bytes <= (15360 - 449) * MIB


def test_a_reset_device_starts_again(make_box, rt):
    """All of the device's memory is free; what is used next is loaded again."""
    box = make_box()
    client = rt(
        box,
        IMAGES
        + """
malloc(64 << 20)
say(launch_host(KERNEL), rt("cudaDeviceReset")), wait()
say(launch_host(KERNEL), rt("cudaDeviceSynchronize")), wait()
""",
    )

    assert "0 0" == client.line()
    assert 0 == sum(box.clients(0)[0].bytes)
    client.tell()
    assert "0 0" == client.line()
    assert 14 * MIB == held(box)["module"]


def test_a_forked_child_may_not_use_it(make_box, rt):
    """As on hardware: the runtime of a process that called the driver is of no use in its children."""
    client = rt(
        make_box(),
        """
        import os
        say(count())
        if not os.fork():
            say(count())
            os._exit(0)
        os.wait()
        """,
    )

    assert ["1", "-3"] == client.end().splitlines()


def test_the_drivers_functions_are_found_through_it(make_box, rt):
    """By name and version; unknown names are a status, no error."""
    client = rt(
        make_box(),
        """
        function, status = c_void_p(), c_int(-1)
        must("cudaGetDriverEntryPointByVersion", b"cuMemAlloc", byref(function), 12000, c_uint64(0), byref(status))
        say(function.value == c.cast(LIB.cuMemAlloc_v2, c_void_p).value, status.value)
        must("cudaGetDriverEntryPointByVersion", b"cuNothing", byref(function), 12000, c_uint64(0), byref(status))
        say(function.value, status.value)
        """,
    )

    assert ["True 0", "None 1"] == client.end().splitlines()


def test_what_it_does_not_do_is_said(make_box, rt):
    """Not supported, without a crash; the form for a default stream per thread is the plain one."""
    client = rt(
        make_box(),
        """
        say(rt("cudaGraphicsMapResources", 0, None, None), rt("cudaGraphAddMemcpyNode1D"))
        say(rt("cudaStreamSynchronize_ptsz", None), rt("cudaStreamQuery_ptsz", c_void_p(2)))
        """,
    )

    assert ["801 801", "0 0"] == client.end().splitlines()


def test_another_driver_is_refused(make_box, rt, tmp_path):
    """It is for simulated cards alone: a driver without its private table is as good as none."""
    source = tmp_path / "other.c"
    source.write_text("int cuInit(unsigned flags) { return flags != 0; }\n")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(tmp_path / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    code = (
        "import ctypes, sys\n"
        f"rt = ctypes.CDLL({str(LIBRARIES / f'libcudart.so.{rt.major}')!r})\n"
        "count, version = ctypes.c_int(7), ctypes.c_int(7)\n"
        "said = rt.cudaGetDeviceCount(ctypes.byref(count)), count.value\n"
        "print(*said, rt.cudaDriverGetVersion(ctypes.byref(version)), version.value, rt.cudaMalloc(None, 1))\n"
    )
    done = subprocess.run(
        ["python3", "-c", code],
        env={"LD_LIBRARY_PATH": str(tmp_path), "GPUSHARE_SIMGPU": str(make_box().path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert ["35", "0", "0", "0", "1"] == done.stdout.split()


def test_without_hardware_there_is_no_device(rt, tmp_path):
    """The simulated driver without a hardware file: no device, and no crash."""
    client = rt(type("Box", (), {"path": tmp_path / "none"}), "say(count(), rt('cudaFree', None))")

    assert "-100 100" == client.end()
