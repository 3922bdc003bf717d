# SPDX-License-Identifier: Apache-2.0
"""What programs of others ask of the driver: long names, objects of theirs in graphs, shared events and pools."""

from __future__ import annotations

import pytest

LONG = "_ZN2at6native" + "N3cub17DeviceReduceTileE" * 200


TEXT = "simgpu 1\nkernel {name} params=8 ns=$0\nglobal {name}_data 4096\n"
PTX = ".version 8.0\n.visible .entry {name}(.param .u64 p)\n{{ ret; }}\n.visible .global .u8 {name}_data[4096];\n"


@pytest.mark.parametrize("form", [TEXT, PTX])
def test_names_may_be_as_long_as_templates_make_them(make_box, run, form):
    """Two kernels whose names differ only at the end, and a global."""
    box = make_box()
    text = form.format(name=LONG + "A") + (form.format(name=LONG + "B") if form.startswith(".") else "")
    client = run(
        box,
        f"""
        start()
        module = c_void_p()
        do("cuModuleLoadData", byref(module), {text.encode()!r})
        name, found = c.c_char_p(), c_void_p()
        do("cuModuleGetFunction", byref(found), module, {LONG.encode()!r} + b"A")
        do("cuFuncGetName", byref(name), found)
        at, size = c_uint64(), c_size_t()
        do("cuModuleGetGlobal_v2", byref(at), byref(size), module, {LONG.encode()!r} + b"A_data")
        say(name.value.decode() == {LONG + "A"!r}, size.value,
            call("cuModuleGetFunction", byref(found), module, {LONG.encode()!r}))
        """,
    )

    assert "True 4096 500" == client.end()


def test_objects_live_as_long_as_graphs_refer_to_them(make_box, run):
    """Moved into a graph, kept by its executable form, destroyed once with the last of them."""
    client = run(
        make_box(),
        """
        start()
        gone = []
        destroy = c.CFUNCTYPE(None, c_void_p)(gone.append)
        made, graph, executable = c_void_p(), c_void_p(), c_void_p()
        do("cuUserObjectCreate", byref(made), c_void_p(4711), destroy, 1, 1)
        do("cuUserObjectRetain", made, 2)
        do("cuUserObjectRelease", made, 2)
        do("cuGraphCreate", byref(graph), 0)
        do("cuGraphRetainUserObject", graph, made, 1, 1)
        do("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        say(gone, call("cuGraphReleaseUserObject", graph, made, 2))
        do("cuGraphReleaseUserObject", graph, made, 1)
        do("cuGraphDestroy", graph)
        say(gone)
        do("cuGraphExecDestroy", executable)
        say(gone, call("cuUserObjectRelease", made, 1))
        """,
    )

    assert ["[] 1", "[]", "[4711] 1"] == client.end().splitlines()


def test_an_event_is_shared_between_processes(make_box, run):
    """Another process waits for what was recorded; one that is gone keeps nobody."""
    box = make_box()
    owner = run(
        box,
        """
        start()
        (busy,) = functions(b"busy")
        event, handle = c_void_p(), (c.c_uint64 * 8)()
        do("cuEventCreate", byref(event), 6)
        do("cuIpcGetEventHandle", byref(handle), event)
        say(*handle)
        wait()
        launch(busy, int(3e8))
        do("cuEventRecord", event, None)
        say("recorded")
        wait()
        launch(busy, int(60e9))
        do("cuEventRecord", event, None)
        say("again")
        wait()
        """,
    )
    words = owner.line().split()
    other = run(
        box,
        f"""
        import time
        class Handle(c.Structure):
            _fields_ = [("words", c_uint64 * 8)]
        start()
        event = c_void_p()
        LIB.cuIpcOpenEventHandle.argtypes = [c_void_p, Handle]
        do("cuIpcOpenEventHandle", byref(event), Handle((c_uint64 * 8)({", ".join(words)})))
        say("opened")
        wait()
        say(call("cuEventQuery", event))
        wait()
        do("cuStreamWaitEvent", stream(), event, 0)
        say(call("cuEventQuery", event))
        wait()
        say(call("cuEventQuery", event))
        wait()
        say(call("cuEventSynchronize", event))
        """,
    )

    assert "opened" == other.line()
    box.stop()
    owner.tell()
    assert "recorded" == owner.line()
    other.tell()
    assert "600" == other.line()
    box.go()
    other.tell()
    assert "0" == other.line()
    owner.tell()
    assert "again" == owner.line()
    other.tell()
    assert "600" == other.line()
    owner.kill()
    other.tell()
    assert "0" == other.end()


POOLS = """
class Place(c.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]
class Props(c.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("place", Place), ("win32", c_void_p), ("most", c_size_t),
                ("rest", c.c_uint8 * 56)]
start()
def pool(kind, place, handles=0):
    made = c_void_p()
    return call("cuMemPoolCreate", byref(made), byref(Props(kind, handles, Place(place, 0)))), made
def take(made, size):
    at = c_uint64()
    return call("cuMemAllocFromPoolAsync", byref(at), c_size_t(size), made, None), at
"""


@pytest.mark.parametrize(("version", "expected"), [(13000, [0, 0, 0]), (12080, [801, 801, 0])])
def test_managed_and_host_pools_came_with_13_0(make_box, run, version, expected):
    """Of no place, of the host, and of a node of the host: the last is older."""
    client = run(make_box(cuda_version=version), POOLS + "say([pool(2, 0)[0], pool(1, 2)[0], pool(1, 3)[0]])")

    assert str(expected) == client.end()


def test_managed_memory_of_a_pool_is_on_the_card_when_it_was_brought_there(make_box, run):
    """As with cuMemAllocManaged; freed with the rest of it."""
    box = make_box()
    client = run(
        box,
        POOLS
        + """
rc, made = pool(2, 1)
_, at = take(made, 64 << 20)
_, host = take(pool(1, 2)[1], 64 << 20)
say(rc); wait()
do("cuMemPrefetchAsync_v2", at, c_size_t(64 << 20), Place(1, 0), 0, None)
say("there"); wait()
do("cuMemFreeAsync", at, None)
do("cuMemFreeAsync", host, None)
say("gone"); wait()
""",
    )

    def taken() -> int:
        return box.clients(0)[0].total_bytes - int(box.cards()[0].model.context_bytes)

    assert ("0", 0) == (client.line(), taken())
    client.tell()
    assert ("there", 64 << 20) == (client.line(), taken())
    client.tell()
    assert ("gone", 0) == (client.line(), taken())


def test_a_pool_is_shared_between_processes(make_box, run):
    """Its descriptor and a pointer's 64 bytes; who imports allocates nothing from it and is charged nothing."""
    box = make_box()
    owner = run(
        box,
        POOLS
        + """
import os
rc, made = pool(1, 1, handles=1)
_, at = take(made, 64 << 20)
fd, data = c_int(), (c_uint64 * 8)()
do("cuMemPoolExportToShareableHandle", byref(fd), made, 1, c_uint64(0))
do("cuMemPoolExportPointer", byref(data), at)
say(os.getpid(), fd.value, *data)
wait()
""",
    )
    pid, fd, *words = owner.line().split()
    other = run(
        box,
        POOLS
        + f"""
import os
fd = os.open("/proc/{pid}/fd/{fd}", os.O_RDONLY)
made, at, size = c_void_p(), c_uint64(), c_size_t()
do("cuMemPoolImportFromShareableHandle", byref(made), c_void_p(fd), 1, c_uint64(0))
do("cuMemPoolImportPointer", byref(at), made, (c_uint64 * 8)({", ".join(words)}))
do("cuMemGetAddressRange_v2", None, byref(size), at)
say(size.value, take(made, 1 << 20)[0])
wait()
do("cuMemFree_v2", at)
""",
    )

    assert f"{64 << 20} 1" == other.line()
    context = int(box.cards()[0].model.context_bytes)
    assert [True, False] == [client.total_bytes > context for client in box.clients(0)]
    other.tell()
    assert not other.end()


LIMITS = [("v100-16g", 3, 24, 0), ("v100-16g", 3, 25, 1), ("h100-80g", 3, 3, 215), ("h100-80g", 4, 65536, 0)]


@pytest.mark.parametrize("case", LIMITS)
def test_the_device_runtime_reserves_memory_for_its_limits(make_box, run, case):
    """Levels of synchronisation end with compute capability 9.0; what a limit takes stands in the records."""
    model, limit, value, code = case
    box = make_box(model)
    client = run(box, f"start()\nsay(call('cuCtxSetLimit', {limit}, c_size_t({value})))\nwait()")

    assert str(code) == client.line()
    took = box.clients(0)[0].total_bytes - int(box.cards()[0].model.context_bytes)
    assert (took > 100 << 20) == (code == 0)
