# SPDX-License-Identifier: Apache-2.0
"""
Preloaded where it has no business: nothing breaks, nothing is printed, nobody is ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from isolation.contract import abi
from isolation.lib import build

if TYPE_CHECKING:
    from pathlib import Path

LIMITED = """
begin()
for i in range(30): rc, at = alloc(4 * GIB)
say(rc=rc)
"""
MUSL = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *thread(void *told) { return dlsym(RTLD_DEFAULT, told); }
int main(int argc, char **argv)
{
    void *found;
    pthread_t it;
    pthread_create(&it, NULL, thread, "strlen");
    pthread_join(it, &found);
    printf("%d %d %d %s\n", found == (void *)strlen, dlsym(RTLD_DEFAULT, "nobody") == NULL, argc, dlerror());
    if (argc == 1)
        execl(argv[0], argv[0], "again", NULL);
    return 7;
}
"""
OTHER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
static int asked;
void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    asked++;
    return real(handle, name);
}
int asked_of_me(void) { return asked; }
"""


@pytest.fixture(params=["plain_library", "strict_library"])
def library(request) -> Path:
    """Either variant."""
    return request.getfixturevalue(request.param)


def output(command: list[str], **env: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr in a small environment."""
    given = {"PATH": os.environ["PATH"]} | env
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def gcc(target: Path, text: str, *flags: str, compiler: str = "gcc") -> str:
    """Compile one small C text."""
    source = target.with_suffix(".c")
    source.write_text(text)
    subprocess.run([compiler, "-w", "-O1", "-o", target, source, *flags], check=True)
    return str(target)


@pytest.mark.parametrize("bind_now", ["", "1"])
def test_a_dynamic_musl_program_does_not_notice(tmp_path, library, bind_now):
    """Another C library, without our imports' versions: threads, dlsym, dlerror and exec as without us."""
    if not shutil.which("musl-gcc"):
        message = "musl-gcc is not installed (apt-get install musl-tools)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    program = gcc(tmp_path / "musl", MUSL, compiler="musl-gcc")
    loader = subprocess.run(["readelf", "-l", program], capture_output=True, text=True, check=True).stdout
    env = {"LD_BIND_NOW": bind_now} if bind_now else {}
    expected = output([program], **env)

    assert "ld-musl" in loader
    assert (7, "1 1 2") == (expected[0], expected[1].splitlines()[-1][:5])
    assert expected == output([program], LD_PRELOAD=str(library), **env)


@pytest.mark.parametrize("first", [True, False])
def test_another_library_that_takes_dlsym_keeps_working(tmp_path, library, first):
    """Two that want every dlsym, in either order: names resolve, and neither calls the other for ever."""
    other = gcc(tmp_path / "other.so", OTHER, "-shared", "-fPIC", "-ldl")
    order = [other, str(library)] if first else [str(library), other]
    code = (
        "import ctypes; me = ctypes.CDLL(None); print(me.strlen(b'four'), me.asked_of_me() > 0, hasattr(me, 'culprit'))"
    )

    assert (0, "4 True False\n", "") == output([sys.executable, "-S", "-c", code], LD_PRELOAD=":".join(order))


@pytest.mark.parametrize(
    ("streams", "status"),
    [("<&-", 0), (">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("2>/dev/full", 0), ("2>&1 | head -c0", 0)],
)
def test_a_program_lives_whatever_becomes_of_its_streams(job, tmp_path, streams, status):
    """Refused over and over with its streams closed, full or gone: the line is lost, the program is not."""
    one = job(1)
    script, end = tmp_path / "script.py", tmp_path / "end"
    prelude = one.start("pass").args[3].removesuffix("pass")
    refused = LIMITED.replace("say(rc=rc)", f"open({str(end)!r}, 'w').write(str(rc))")
    script.write_text(prelude.replace("import ctypes,", "import sys, ctypes,") + refused)
    shell = f"{sys.executable} -S {script} {streams}"
    done = subprocess.run(["sh", "-c", shell], env=one.environment(), capture_output=True, timeout=120, check=False)

    assert (status, "2") == (done.returncode, end.read_text())


@pytest.mark.parametrize("mode", ["inert", "active", "no limits", "no region", "strict entries"])
def test_stdout_is_the_programs_and_stderr_gets_one_line_at_most(job, mode):
    """Byte for byte what the program printed; of ours never more than one line, whatever goes wrong how often."""
    one = job(1, flags=abi.Flag.STRICT if mode == "strict entries" else abi.Flag.NONE)
    code = LIMITED.replace("alloc(4 * GIB)", "begin(), alloc(4 * GIB)")
    if mode == "inert":
        one.environment = lambda: {
            key: value for key, value in type(one).environment(one).items() if not key.startswith("GPUSHARE_")
        }
    elif mode == "no limits":
        one.limits.write_bytes(b"?")
    elif mode == "no region":
        one.region.unlink()
    elif mode == "strict entries":
        code = """
begin()
found = c_void_p()
for i in range(100): rc = cu.cuGetProcAddress_v2(b"cuNobody%d" % i, byref(found), 12000, c_uint64(0), None)
say(rc=rc)
"""
    process = one.start(code.replace("say(rc=rc)", "sys.stdout.write('exactly this')"))
    out, err = process.communicate(timeout=120)

    assert (0, "exactly this") == (process.returncode, out)
    assert len(err.splitlines()) <= (0 if mode in {"inert", "strict entries"} else 1)
    assert all(line.startswith("gpushare: ") for line in err.splitlines())


def test_nothing_in_the_library_can_end_a_process(library):
    """No exit, abort or kill is called, asked of the kernel, or left by the compiler as a trap."""
    text = "".join(path.read_text() for path in (build.HERE / "src").glob("*.[cSh]"))
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True)
    traps = re.findall(r"\t(ud2|hlt|int3|int1|brk|udf)\b", code.stdout)

    forbidden = r"SYS_(?:exit\w*|kill|t?gkill|tkill|rt_sig(?!procmask)\w*|ptrace)|__builtin_(?:trap|unreachable)"
    assert [] == re.findall(forbidden, text)
    # the mask of signals is never changed: with an unknown `how` the call only tells whether memory can be read
    assert ["SYS_rt_sigprocmask, -1,"] == re.findall(r"SYS_rt_sigprocmask, [^ ]*", text)
    assert [] == re.findall(r"\b(?:abort|_?exit|raise|kill|signal|sigaction|assert)\s*\(", text)
    assert code.stdout.count("\n") > 10_000
    assert [] == traps
