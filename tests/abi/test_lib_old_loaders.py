# SPDX-License-Identifier: Apache-2.0
"""
Real old C libraries: the objects must load under them with every symbol bound at once.

`python tests/old_glibc.py` (also part of `make test`) fetches them into build/glibc; GPUSHARE_OLD_GLIBC
names another folder with one folder per version.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import old_glibc
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
    printf("%s %d ", gnu_get_libc_version(), dlsym(0, "printf") != 0);
    printf("%d %d\\n", alloc(&at, 1UL << 29), alloc(&at, 5UL << 30));
    exit(0);
}
__attribute__((naked)) void _start(void) { __asm__("and $-16, %rsp\\n call body"); }
"""
SILENT = """
extern int printf(const char *, ...);
extern void exit(int);
extern void *dlsym(void *, const char *);
extern const char *gnu_get_libc_version(void);
void body(void)
{
    const char *(*version)(void) = dlsym(0, "gnu_get_libc_version");
    printf("%s %d\\n", version(), dlsym(0, "cuInit") != 0);
    exit(0);
}
__attribute__((naked)) void _start(void) { __asm__("and $-16, %rsp\\n call body"); }
"""
BARE = ("-w", "-O1", "-fno-stack-protector", "-nostdlib", "-nostartfiles")
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the test programs are x86-64 assembler")


@pytest.fixture(params=[release.version for release in old_glibc.RELEASES])
def old(request) -> Path:
    """The folder of one old C library."""
    folder = Path(os.environ.get("GPUSHARE_OLD_GLIBC", old_glibc.HOME)) / request.param
    if not folder.is_dir():
        message = (
            f"no glibc {request.param} in {folder.parent}: python tests/old_glibc.py fetches it where it can be had"
        )
        # 2.31 is on every mirror of Debian; 2.17 only where distributions long out of support are kept
        needed = os.environ.get("CI") == "true" and request.param == "2.31"
        pytest.fail(message) if needed else pytest.skip(message)
    return folder


def loaded(folder: Path, program: Path, library: Path, env: dict[str, str]) -> tuple[int, str, str]:
    """Run a program by that loader, our library preloaded, everything bound at once."""
    # 2.17 has no `--preload`; the environment is obeyed by the loader that is the program here as well
    env = env | {"LD_BIND_NOW": "1", "LD_PRELOAD": str(library)}
    command = [str(folder / "ld-linux-x86-64.so.2"), str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr.partition("gpushare: past the promised")[0]


def built(folder: Path, target: Path, text: str, *flags: str) -> Path:
    """A program or library of that C library, without anything of this machine's."""
    target.with_suffix(".c").write_text(text)
    libraries = [str(folder / "libc.so.6"), str(folder / "libdl.so.2")]
    subprocess.run(["gcc", *BARE, "-o", target, target.with_suffix(".c"), *flags, *libraries], check=True)
    return target


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_an_old_loader_takes_the_library_and_the_promise_holds(job, tmp_path, request, old, variant):
    """A program of that C library is limited through dlopen and dlsym, whichever object those live in."""
    one = job(1)
    driver = tmp_path / "old-driver"
    driver.mkdir()
    source = Path(request.config.rootpath) / "isolation" / "lib" / "tests" / "fake_cuda.c"
    shared = ("-shared", "-fPIC", "-D__thread=", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-lgcc")
    include = f"-I{source.parents[1] / 'include'}"
    built(old, driver / "libcuda.so.1", source.read_text(), *shared, include, f"-I{source.parent}")
    program = built(old, tmp_path / "old", PROGRAM)
    env = one.environment(preload=False) | {"LD_LIBRARY_PATH": f"{old}:{driver}"}

    assert (0, f"{old.name} 1 0 2\n", "") == loaded(old, program, request.getfixturevalue(variant), env)


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_an_old_program_without_cuda_does_not_notice(tmp_path, request, old, variant):
    """Output and exit status are its own; only the strict variant answers to a driver's name."""
    program = built(old, tmp_path / "silent", SILENT)
    library = request.getfixturevalue(variant)

    assert (0, f"{old.name} {int('strict' in variant)}\n", "") == loaded(
        old, program, library, {"LD_LIBRARY_PATH": str(old)}
    )
