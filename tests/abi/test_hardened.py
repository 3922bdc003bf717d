# SPDX-License-Identifier: Apache-2.0
"""Every C object of the wheel, built as the wheel builds it, has the hardening that docs/images.md promises."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.compiled import ROOT, kept

OBJECTS = (
    "isolation/placement/_native.so",
    "isolation/simgpu/_hardware.so",
    "isolation/simgpu/lib/libcuda.so.1",
    "isolation/simgpu/lib/libnvidia-ml.so.1",
    "isolation/simgpu/lib/libcudart.so.12",
    "isolation/simgpu/lib/libcudart.so.13",
    "isolation/lib/libgpushare.so",
    "isolation/lib/libgpushare-strict.so",
)
LIBRARY = OBJECTS[-2:]
"""Without libc beyond three symbols, and without thread-local storage (tests/abi/test_lib_gate.py)."""
BUILD = """
import runpy, sys, types
from pathlib import Path

class BuildExt:
    def get_ext_fullpath(self, name):
        return Path(sys.argv[1], self.get_ext_filename(name))

def setup(ext_modules, cmdclass):
    for each in ext_modules:
        cmdclass["build_ext"]().build_extension(each)

def extension(name, sources, depends=(), extra_compile_args=()):
    return types.SimpleNamespace(name=name, sources=sources, extra_compile_args=extra_compile_args)

for name, has in {
    "setuptools": {"setup": setup, "Extension": extension},
    "setuptools.command.build_ext": {"build_ext": BuildExt},
    "setuptools.command.bdist_wheel": {"bdist_wheel": object},
}.items():
    sys.modules[name] = types.SimpleNamespace(**has)
runpy.run_path("setup.py")
"""
"""What setup.py does with a compiler, without the setuptools that is installed here."""
INPUTS = (
    ROOT / "setup.py",
    ROOT / "isolation/lib/build.py",
    *(ROOT / "isolation" / part for part in ("lib/src", "lib/include", "placement/native")),
    *(ROOT / "isolation/simgpu" / part for part in ("driver/hw", "driver/cuda", "driver/nvml", "runtime")),
)


@pytest.fixture(scope="module", params=OBJECTS)
def made(request, tmp_path_factory):
    """An object by its place in the wheel."""

    def make(target):
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-c", BUILD, str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
        archive = ["tar", "-C", str(folder), "-cf", str(target), *OBJECTS]
        subprocess.run(archive, check=True, timeout=60)

    archive = kept("wheel-objects.tar", OBJECTS, INPUTS, make)
    folder = tmp_path_factory.mktemp("objects")
    subprocess.run(["tar", "-C", str(folder), "-xf", str(archive), request.param], check=True, timeout=60)
    return request.param, folder / request.param


def readelf(*arguments):
    """What readelf says."""
    return subprocess.run(["readelf", "-W", *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def test_the_stack_is_not_executable_and_nothing_is_writable_and_executable(made):
    """
    Of no object.
    """
    segments = re.findall(r"^ +(LOAD|GNU_STACK) .* ([R ][W ][E ]) +0x\w+$", readelf("-l", made[1]), re.MULTILINE)
    assert {"LOAD", "GNU_STACK"} == {kind for kind, _ in segments}
    assert [] == [(kind, flags) for kind, flags in segments if "W" in flags and "E" in flags]


def test_what_the_loader_has_resolved_is_read_only(made):
    """
    Full RELRO: all of the global offset table is resolved at the start and then sealed.
    """
    assert "GNU_RELRO" in readelf("-l", made[1])
    assert re.search(r"\(FLAGS_1\) .*\bNOW\b", readelf("-d", made[1]))


def test_overruns_are_caught_where_there_is_a_libc_to_catch_them(made):
    """
    Stack protector and FORTIFY; the preloaded library says in its build why it has neither.
    """
    name, path = made
    imported = set(re.findall(r" UND (\w+)", readelf("--dyn-syms", path)))
    if name in LIBRARY:
        assert not imported & {"__stack_chk_fail", "__stack_chk_guard"}
        return
    assert "__stack_chk_fail" in imported
    assert name.endswith("_native.so") or any(one.endswith("_chk") for one in imported), imported
