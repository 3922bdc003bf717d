"""Who escapes the library: ways round it are bound, or are seen from outside."""

from __future__ import annotations

import subprocess
from itertools import product

import pytest
from lib_machine import machines
from simcontainers import GIB, MIB, OOM

from isolation.contract.compare import CardUser, compare


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


DEEP = r"""
#include <stddef.h>
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long *, size_t);
int deep(size_t bytes)
{
    void *context;
    unsigned long at;
    int rc = cuInit(0);
    rc = rc ? rc : cuDevicePrimaryCtxRetain(&context, 0);
    rc = rc ? rc : cuCtxSetCurrent(context);
    return rc ? rc : cuMemAlloc_v2(&at, bytes);
}
"""
ABSOLUTE = r"""
#include <dlfcn.h>
#include <stddef.h>
int deep(const char *path, size_t bytes)
{
    void *driver = dlopen(path, RTLD_NOW), *context;
    unsigned long at;
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*current)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*alloc)(unsigned long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int rc = init(0);
    rc = rc ? rc : retain(&context, 0);
    rc = rc ? rc : current(context);
    return rc ? rc : alloc(&at, bytes);
}
"""


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
@pytest.mark.parametrize(
    ("name", "deepbind"), list(product(["libcuda.so.1", "libcuda.so", "{folder}/libcuda.so.1"], [False, True]))
)
def test_each_way_to_open_the_driver_is_bound_or_seen(machine, request, tmp_path, variant, name, deepbind):  # noqa: PLR0917
    """By name, by another name, by its path: bound. From a DEEPBIND library, whose dlsym is not ours: seen."""
    one = machine(library=request.getfixturevalue(variant))
    one.promise("a", (0, 2048))
    (one.folder / "libcuda.so").symlink_to("libcuda.so.1")
    source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
    source.write_text(ABSOLUTE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", deep, source, "-ldl"], check=True)
    flags = "os.RTLD_NOW | os.RTLD_DEEPBIND" if deepbind else "os.RTLD_NOW"
    path = name.format(folder=one.folder)
    code = f"say(CDLL({str(deep)!r}, mode={flags}).deep({path.encode()!r}, c_size_t(3 * GIB)))"
    process = one.start("a", f"{code}\nsys.stdin.read()")
    answer = process.stdout.readline().strip()
    users = [CardUser(client.pid, client.total_bytes, None, client.start_time) for client in one.box.clients(0)]
    found = compare(users, one.book("a").slots, 0)
    _, err = process.communicate("", timeout=120)

    # the strict variant has the driver's SONAME: by that name even a DEEPBIND library gets us
    escapes = deepbind and not (variant == "strict_library" and name == "libcuda.so.1")
    assert ("0" if escapes else str(OOM)) == answer, err
    assert ([process.pid] if escapes else []) == [user.pid for user in found.uninstrumented]


ESCAPES = {
    "no preload": {"LD_PRELOAD": ""},
    "no promise": {"GPUSHARE_LIMITS": "", "GPUSHARE_REGION": ""},
    "deepbind": {},
}


@pytest.mark.parametrize("way", ESCAPES)
def test_who_escapes_is_seen_as_uninstrumented(machine, tmp_path, way):
    """The driver shows a process with memory, the region has no slot for it: an accusation with pid and bytes."""
    one = machine()
    one.promise("a", (0, 2048))
    code = "begin()\nrc = alloc(3 * GIB)[0]"
    if way == "deepbind":
        source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
        source.write_text(DEEP)
        command = ["gcc", "-shared", "-fPIC", "-o", deep, source, f"-L{one.folder}", "-l:libcuda.so.1"]
        subprocess.run(command, check=True)
        code = f"rc = CDLL({str(deep)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).deep(c_size_t(3 * GIB))"
    escaped = one.start("a", f"{code}\nsay(rc)\nsys.stdin.read()", **ESCAPES[way])
    bound = one.start("a", "begin()\nsay(alloc(GIB)[0])\nsys.stdin.read()")
    answers = [process.stdout.readline().strip() for process in (escaped, bound)]
    users = [CardUser(client.pid, client.total_bytes, None, client.start_time) for client in one.box.clients(0)]
    found = compare(users, one.book("a").slots, 0)
    for process in (escaped, bound):
        process.communicate("", timeout=120)

    assert ["0", "0"] == answers
    assert [(escaped.pid, True)] == [(user.pid, user.bytes > 3 * GIB) for user in found.uninstrumented]
    assert 0 == found.hidden_bytes


def test_memory_taken_around_the_library_is_hidden_no_longer(machine, tmp_path):
    """A process with a slot takes more through a path that we do not see: the driver's figure tells."""
    one = machine()
    one.promise("a", (0, 2048))
    source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
    source.write_text(
        "#include <stddef.h>\nextern int cuMemAlloc_v2(unsigned long *, size_t);\n"
        "int deep(size_t bytes) { unsigned long at; return cuMemAlloc_v2(&at, bytes); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", deep, source, f"-L{one.folder}", "-l:libcuda.so.1"], check=True)
    around = f"CDLL({str(deep)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).deep(c_size_t(3 * GIB))"
    process = one.start("a", f"begin()\nsay({around})\nsys.stdin.read()")
    answer = process.stdout.readline().strip()
    users = [CardUser(client.pid, client.total_bytes, None, client.start_time) for client in one.box.clients(0)]
    found = compare(users, one.book("a").slots, 0)
    process.communicate("", timeout=120)

    assert "0" == answer
    assert () == found.uninstrumented
    assert 3 * GIB - 64 * MIB <= found.hidden_bytes <= 3 * GIB + 64 * MIB
