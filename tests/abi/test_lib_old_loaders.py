"""
Real old C libraries: the objects must load under them with every symbol bound at once.

Unpacked glibc packages are not part of this repository: GPUSHARE_OLD_GLIBC names folders that hold
`libc.so.6`, `libdl.so.2` and the loader of one version each, separated by colons.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

PROGRAM = """
extern int printf(const char *, ...);
extern void exit(int);
extern void *dlopen(const char *, int), *dlsym(void *, const char *);
extern const char *gnu_get_libc_version(void);
void body(void)
{
    void *cuda = dlopen("libcuda.so.1", 2), *context;
    int (*init)(unsigned) = dlsym(cuda, "cuInit"), (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    int (*alloc)(unsigned long *, unsigned long) = dlsym(cuda, "cuMemAlloc_v2");
    unsigned long at;
    init(0), retain(&context, 0), current(context);
    printf("%d %d %d\\n", dlsym(0, "printf") != 0, alloc(&at, 1UL << 29), alloc(&at, 5UL << 30));
    exit(0);
}
__attribute__((naked)) void _start(void) { __asm__("and $-16, %rsp\\n call body"); }
"""

FOLDERS = [Path(name) for name in os.environ.get("GPUSHARE_OLD_GLIBC", "").split(":") if name]


@pytest.mark.skipif(not FOLDERS, reason="GPUSHARE_OLD_GLIBC names no unpacked glibc")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the test program is x86-64 assembler")
@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_an_old_loader_takes_the_library_and_the_promise_holds(job, tmp_path, request, folder, variant):
    """A program of that C library is limited through dlopen and dlsym, whichever object those live in."""
    one = job(1)
    loader = next(folder.glob("ld-*.so*"))
    program, driver = tmp_path / "old", tmp_path / "old-driver"
    driver.mkdir()
    (tmp_path / "old.c").write_text(PROGRAM)
    bare = ("-w", "-O1", "-fno-stack-protector", "-nostdlib", "-nostartfiles")
    libraries = [str(folder / "libc.so.6"), str(folder / "libdl.so.2")]
    subprocess.run(["gcc", *bare, "-o", program, tmp_path / "old.c", *libraries], check=True)
    source = Path(request.config.rootpath) / "isolation" / "lib" / "tests" / "fake_cuda.c"
    shared = ("-shared", "-fPIC", "-D__thread=", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    subprocess.run(["gcc", *bare, *shared, "-o", driver / "libcuda.so.1", source, libraries[0], "-lgcc"], check=True)
    env = one.environment(preload=False) | {"LD_LIBRARY_PATH": f"{folder}:{driver}", "LD_BIND_NOW": "1"}

    command = [str(loader), "--preload", str(request.getfixturevalue(variant)), str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)

    assert (0, "1 0 2\n") == (done.returncode, done.stdout)
