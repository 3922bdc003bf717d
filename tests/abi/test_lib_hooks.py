# SPDX-License-Identifier: Apache-2.0
"""
How calls reach the library, what it does to programs that have nothing to do with it, and what escapes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from isolation.contract import abi, breach_ring
from isolation.lib import build

GIB = 1 << 30
OOM = 2

DIRECT = """
#include <stdio.h>
extern int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long *, unsigned long);
int main(void)
{
    int device;
    void *context;
    unsigned long at;
    cuInit(0), cuDeviceGet(&device, 0), cuDevicePrimaryCtxRetain(&context, device), cuCtxSetCurrent(context);
    printf("%d %d\\n", cuMemAlloc_v2(&at, 1UL << 29), cuMemAlloc_v2(&at, 4UL << 30));
    return 0;
}
"""

NEXT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
unsigned int sleep(unsigned int s)
{
    unsigned int (*real)(unsigned int) = (unsigned int (*)(unsigned int))dlsym(RTLD_NEXT, "sleep");
    return real && (void *)real != (void *)sleep ? real(s) + 40 : 99;
}
"""


def gcc(target, text: str, *flags: str) -> str:
    """Compile one small C text."""
    source = target.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["gcc", "-w", "-O1", "-o", str(target), str(source), *flags], check=True)
    return str(target)


def output(command: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("bind", [(), ("-Wl,-z,now",)])
@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_a_program_linked_against_the_driver_is_limited(job, tmp_path, request, variant, bind):
    """No dlsym at all: the dynamic linker finds the wrappers first, lazily or at once."""
    one = job(1)
    one.library = request.getfixturevalue(variant)
    program = gcc(tmp_path / "direct", DIRECT, f"-L{one.driver}", "-l:libcuda.so.1", *bind)

    assert (0, "0 2\n") == output([program], one.environment())[:2]


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_entry_points_asked_of_the_driver_are_limited(job, request, variant):
    """Through cuGetProcAddress, also when that was itself asked of cuGetProcAddress, by any version."""
    one = job(1)
    one.library = request.getfixturevalue(variant)
    done = one.run("""
begin()
def ask(get, name):
    found, status = c_void_p(), c_int()
    rc = get(name, byref(found), c_int(12000), c_uint64(0), byref(status))
    kind = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)
    return rc, found.value and kind(found.value)
rc, again = ask(cu.cuGetProcAddress_v2, b"cuGetProcAddress")
getter = ctypes.CFUNCTYPE(c_int, ctypes.c_char_p, c_void_p, c_int, c_uint64, c_void_p)
again = getter(ctypes.cast(again, c_void_p).value)
rc, allocate = ask(again, b"cuMemAlloc")
at = c_uint64()
say(rc=rc, ok=allocate(ctypes.addressof(at), 1 << 29), refused=allocate(ctypes.addressof(at), 4 * GIB),
    absent=ask(again, b"cuNeverWas")[0])
""")

    assert (0, 0, OOM, 500) == (done["rc"], done["ok"], done["refused"], done["absent"])


@pytest.mark.parametrize(("flag", "expected"), [(abi.Flag.NONE, 0), (abi.Flag.STRICT, 500)])
def test_an_unknown_entry_point_is_recorded_and_refused_when_strict(job, flag, expected):
    """What nobody classified passes with a record; under the strict flag it is not found."""
    one = job(1, flags=flag)
    done = one.run("""
begin()
found = c_void_p()
say(rc=cu.cuGetProcAddress_v2(b"cuNobodyKnowsThis", byref(found), 12000, c_uint64(0), None), found=bool(found.value))
""")

    assert (expected, expected == 0) == (done["rc"], done["found"])
    (breach,) = one.breaches()
    assert (abi.Breach.UNKNOWN_ENTRY, breach_ring.api_code("cuNobodyKnowsThis")) == (breach.kind, breach.api)


def test_without_a_driver_nothing_looks_like_one(plain_library, tmp_path):
    """Our own exports do not answer for libcuda: dlsym says no, dlopen fails, dlerror tells."""
    code = """
import ctypes
me = ctypes.CDLL(None)
try:
    me.cuInit
    print("found")
except AttributeError as exc:
    print("absent", "cuInit" in str(exc) or "driver" in str(exc))
try:
    ctypes.CDLL("libcuda.so.1")
    print("opened")
except OSError:
    print("closed")
"""
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(plain_library), "LD_LIBRARY_PATH": str(tmp_path)}

    assert (0, "absent True\nclosed\n", "") == output([sys.executable, "-S", "-c", code], env)


def test_strict_without_a_driver_says_stub_library(strict_library, tmp_path):
    """It must answer to the name; its answer is CUDA_ERROR_STUB_LIBRARY, wrapped or forwarded."""
    code = "import ctypes\ncu = ctypes.CDLL('libcuda.so.1')\nprint(cu.cuInit(0), cu.cuDriverGetVersion(None))"
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(strict_library), "LD_LIBRARY_PATH": str(tmp_path)}

    assert (0, "34 34\n", "") == output([sys.executable, "-S", "-c", code], env)


PROGRAMS = {
    "sh": ["sh", "-c", "echo ok"],
    "python": [sys.executable, "-S", "-c", "import ctypes; ctypes.CDLL(None).getpid(); print('ok')"],
    "perl": ["perl", "-e", "print qq(ok\\n)"],
    "node": ["node", "-e", "console.log('ok')"],
    "java": ["java", "-version"],
    "git": ["git", "--version"],
}


@pytest.mark.parametrize("bind_now", [False, True])
@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_without_cuda_do_not_notice(request, variant, program, bind_now):
    """Preloaded: same exit status, same output, not a byte more."""
    command = PROGRAMS[program]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    preloaded = env | {"LD_PRELOAD": str(request.getfixturevalue(variant))} | ({"LD_BIND_NOW": "1"} if bind_now else {})

    assert output(command, env) == output(command, preloaded)


def test_a_static_program_does_not_notice(tmp_path, plain_library):
    """It never loads us: it runs, and only the host can see it."""
    program = gcc(tmp_path / "static", "int main(void) { return 7; }", "-static")

    assert 7 == output([program], {"LD_PRELOAD": str(plain_library)})[0]


@pytest.mark.parametrize("first", [True, False])
def test_another_preload_keeps_its_rtld_next(tmp_path, plain_library, first):
    """Its wrapper finds the next definition, whether it stands before or after us."""
    other = gcc(tmp_path / "next.so", NEXT, "-shared", "-fPIC")
    program = gcc(tmp_path / "sleeper", "#include <unistd.h>\nint main(void) { return sleep(0); }")
    order = [other, str(plain_library)] if first else [str(plain_library), other]

    assert 40 == output([program], {"LD_PRELOAD": ":".join(order)})[0]


def test_names_of_other_libraries_resolve_as_ever(plain_library):
    """RTLD_DEFAULT, RTLD_NEXT and missing names behave as without us, dlerror included."""
    code = """
import ctypes
me = ctypes.CDLL(None)
print(me.strlen(b"four"), hasattr(me, "cumulus"), hasattr(me, "nvmlx"), hasattr(me, "d"), hasattr(me, "n"))
"""
    env = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", "-c", code]

    assert output(command, env) == output(command, env | {"LD_PRELOAD": str(plain_library)})


def test_absolute_paths_and_plain_names_are_limited_through_dlsym(job):
    """The driver opened by its path is the driver all the same: dlsym hands out the wrapper."""
    one = job(1)
    done = one.run(f"""
cu = ctypes.CDLL("{one.driver}/libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_LOCAL)
begin()
say(rc=alloc(4 * GIB)[0], total=info()[2])
""")

    assert (OOM, GIB) == (done["rc"], done["total"])


def test_the_driver_opened_by_the_strict_object_is_the_real_one(job, strict_library):
    """Functions without a wrapper reach the driver through the forwarders, arguments intact."""
    one = job(1)
    one.library = strict_library
    done = one.run("""
version, device, count = c_int(), c_int(), c_int()
rc = cu.cuInit(0), cu.cuDriverGetVersion(byref(version)), cu.cuDeviceGetCount(byref(count))
say(rc=rc, version=version.value, count=count.value)
""")

    assert ([0, 0, 0], 13000, 1) == (done["rc"], done["version"], done["count"])


DEEP = """
extern int cuMemAlloc_v2(unsigned long *, unsigned long);
int deep(unsigned long bytes) { unsigned long at; return cuMemAlloc_v2(&at, bytes); }
"""


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_a_library_that_prefers_its_own_dependencies_is_limited(job, tmp_path, request, variant):
    """Opened with RTLD_DEEPBIND it finds libcuda before us: the driver's own symbol table leads to us by then."""
    one = job(1)
    one.library = request.getfixturevalue(variant)
    deep = gcc(tmp_path / "deep.so", DEEP, "-shared", "-fPIC", f"-L{one.driver}", "-l:libcuda.so.1")
    done = one.run(f"""
deep = ctypes.CDLL({deep!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
begin()
say(rc=deep.deep(c_size_t(4 * GIB)), ok=deep.deep(c_size_t(MIB)), used=info()[1] < GIB)
""")

    assert (OOM, 0, True) == (done["rc"], done["ok"], done["used"])


def test_threads_may_open_libraries_meanwhile(job, tmp_path):
    """The driver's table is changed under the loader's lock, in the order in which the loader takes its locks."""
    one = job(1)
    deep = gcc(tmp_path / "deep.so", DEEP, "-shared", "-fPIC", f"-L{one.driver}", "-l:libcuda.so.1")
    done = one.run(f"""
import threading
libc = ctypes.CDLL(None)
libc.dlopen.restype = c_void_p
libc.dlclose.argtypes = [c_void_p]
opened = []
def churn(name, flags):
    for _ in range(200):
        handle = libc.dlopen(name, flags)
        opened.append(bool(handle))
        libc.dlclose(handle)
each = [({deep!r}.encode(), os.RTLD_NOW | os.RTLD_DEEPBIND), (b"libcuda.so.1", os.RTLD_NOW),
        (b"libm.so.6", os.RTLD_NOW)]
threads = [threading.Thread(target=churn, args=each[i % 3]) for i in range(9)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
begin()
say(opened=len(opened), all=all(opened), rc=alloc(4 * GIB)[0])
""")

    assert (1800, True, OOM) == (done["opened"], done["all"], done["rc"])


RUNPATH = """
#define _GNU_SOURCE
#include <dlfcn.h>
int opens(const char *name, int flags) { return dlopen(name, flags) != 0; }
int opens_beside(const char *name, int flags) { return dlmopen(LM_ID_BASE, name, flags) != 0; }
"""


@pytest.mark.parametrize("opener", ["opens", "opens_beside"])
def test_who_opens_a_library_is_still_the_caller(job, tmp_path, opener):
    """Its own RUNPATH is searched, with RTLD_DEEPBIND and without."""
    (tmp_path / "aside").mkdir()
    gcc(tmp_path / "aside" / "libaside.so", "int aside;", "-shared", "-fPIC")
    caller = gcc(tmp_path / "caller.so", RUNPATH, "-shared", "-fPIC", f"-Wl,-rpath,{tmp_path}/aside")
    done = job(1).run(f"""
caller = ctypes.CDLL({caller!r})
absent = ctypes.CDLL(None).dlopen(b"libaside.so", os.RTLD_NOW)
say(found=[caller.{opener}(b"libaside.so", os.RTLD_NOW | deep) for deep in (0, os.RTLD_DEEPBIND)], absent=absent)
""")

    assert ([1, 1], 0) == (done["found"], done["absent"])


@pytest.mark.parametrize("first", [True, False])
def test_a_dlsym_from_dlvsym_is_limited(job, first):
    """The dlsym behind ours, taken by its version before or after the driver was opened, finds the wrappers too."""
    taken = f"real = libc.dlvsym(c_void_p(), b'dlsym', b'{build.BASE[build.machine()]}')"
    lines = [taken, "begin()"]
    done = job(1).run(
        "libc = ctypes.CDLL(None)\nlibc.dlvsym.restype = c_void_p\n"
        + "\n".join(lines if first else lines[::-1])
        + """
find = ctypes.CFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(real)
found = find(cu._handle, b"cuMemAlloc_v2")
at = c_uint64()
say(rc=ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(found)(ctypes.addressof(at), 4 * GIB))
"""
    )

    assert OOM == done["rc"]


@pytest.mark.parametrize(("flag", "expected"), [(abi.Flag.NONE, 0), (abi.Flag.STRICT, 500)])
def test_an_unknown_form_of_a_known_name_is_recorded_and_refused_when_strict(job, flag, expected):
    """What counts is the function that the driver gave, not the name it was asked for."""
    one = job(1, flags=flag)
    done = one.run("""
begin()
found, status = c_void_p(), c_int()
rc = [cu.cuGetProcAddress_v2(b"cuMemAlloc", byref(found), version, c_uint64(0), byref(status))
      for version in (12000, 99000)]
say(rc=rc, found=bool(found.value), status=status.value)
""")

    assert ([0, expected], expected == 0, int(expected != 0)) == (done["rc"], done["found"], done["status"])
    (breach,) = one.breaches()
    assert (abi.Breach.UNKNOWN_ENTRY, breach_ring.api_code("cuMemAlloc")) == (breach.kind, breach.api)
