# SPDX-License-Identifier: Apache-2.0
"""
Builds the C parts with plain gcc: no Python headers, no toolchain beyond `gcc`.

A shared object is loaded with ctypes and speaks no Python API, so one wheel serves every
Python 3 of the platform (tag `py3-none-<platform>`).
"""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# Warnings are errors in our own tests (tests/native), not on a user's newer compiler.
CFLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra", "-fvisibility=hidden"]
HARDENING = [
    *("-fstack-protector-strong", "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
    *("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
]
PLACEMENT = Path("isolation/placement/native")
LIBRARY = Path("isolation/lib")
SIMULATOR = Path("isolation/simgpu/driver")
RUNTIME = Path("isolation/simgpu/runtime")
GUARD = Path("isolation/node/guard")
PROGRAM = "gpushare-guard"
SUFFIX = {
    "libcuda": ".so.1",
    "libnvidia-ml": ".so.1",
    "libcudart12": ".so.12",
    "libcudart13": ".so.13",
    PROGRAM: "",
}
"""The simulated driver's files carry the names that programs load; the guard is a program."""


class BuildC(build_ext):
    """Compile each extension to `<name>.so`, without a Python ABI suffix."""

    def get_ext_filename(self, fullname: str) -> str:
        """`isolation.placement._native` -> `isolation/placement/_native.so`."""
        suffix = SUFFIX.get(fullname.rpartition(".")[2], ".so")
        return fullname.replace(".", "/").removesuffix(suffix.removeprefix(".so.")) + suffix

    def copy_extensions_to_source(self) -> None:
        """An editable install puts the objects beside the sources; a folder may hold nothing else."""
        for ext in self.extensions:
            Path(self.get_ext_filename(ext.name)).parent.mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        """One gcc call; its error output is the error."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.name.startswith("libgpushare"):
            runpy.run_path(str(LIBRARY / "build.py"))["build"](target.resolve(), target.name)
            return
        if target.name == PROGRAM:  # runs on the host, whatever C library is there
            flags = [flag for flag in CFLAGS if flag not in {"-fPIC", "-shared"}]
            options = [*flags, *HARDENING, "-static", "-s"]
            subprocess.run(
                [os.environ.get("CC", "gcc"), *options, "-o", str(target), *ext.sources], check=True, timeout=600
            )
            return
        command = [
            os.environ.get("CC", "gcc"),
            *CFLAGS,
            *HARDENING,
            *(ext.extra_compile_args or []),
            "-o",
            str(target),
            *ext.sources,
        ]
        subprocess.run([*command, "-lm"], check=True, timeout=600)


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def finalize_options(self) -> None:
        """The wheel holds machine code."""
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """No Python ABI is used."""
        return ("py3", "none", super().get_tag()[2])


def library(name: str) -> Extension:
    """One variant of the isolation library; isolation/lib/build.py knows how."""
    sources = sorted(str(path) for path in (LIBRARY / "src").glob("*.[cS]"))
    headers = [*(LIBRARY / "src").glob("*.h"), *(LIBRARY / "src").glob("*.def"), *(LIBRARY / "include").glob("*.h")]
    return Extension(f"isolation.lib.{name}", sources=sources, depends=sorted(map(str, headers)))


def simulator(name: str, parts: str, *, exported: bool = False) -> Extension:
    """One object of the simulated driver: the hardware's files and one folder more."""
    shared = [path for path in (SIMULATOR / "hw").glob("*.c") if path.name != "tool.c"]
    sources = [*shared, *SIMULATOR.glob(parts)]
    soname = ["-Wl,-Bsymbolic", f"-Wl,-soname,{name.rpartition('.')[2]}.so.1"] if exported else []
    return Extension(
        f"isolation.simgpu.{name}",
        sources=sorted(map(str, sources)),
        depends=sorted(str(path) for path in SIMULATOR.glob("*/*.[hd]*")),
        extra_compile_args=["-Wl,--no-as-needed", "-lpthread", "-ldl", "-Wl,--as-needed", *soname],
    )


def runtime(major: int) -> Extension:
    """The CUDA runtime for simulated cards; its symbols carry the version that programs are linked to."""
    name = f"libcudart.so.{major}"
    return Extension(
        f"isolation.simgpu.lib.libcudart{major}",
        sources=sorted(map(str, RUNTIME.glob("*.c"))),
        depends=sorted(map(str, [*RUNTIME.glob("*.[hdm]*"), *SIMULATOR.glob("cuda/*.h")])),
        extra_compile_args=[
            *(f"-DRUNTIME={major}", "-Wl,--no-as-needed", "-lpthread", "-ldl", "-Wl,--as-needed"),
            *("-Wl,-Bsymbolic", f"-Wl,-soname,{name}", f"-Wl,--version-script={RUNTIME / name}.map"),
        ],
    )


setup(
    ext_modules=[
        Extension(
            "isolation.placement._native",
            sources=sorted(map(str, PLACEMENT.glob("*.c"))),
            depends=sorted(map(str, PLACEMENT.glob("*.h"))),
        ),
        Extension(
            f"isolation.node.guard.{PROGRAM}",
            sources=sorted(map(str, GUARD.glob("*.c"))),
            depends=sorted(map(str, GUARD.glob("*.h"))),
        ),
        library("libgpushare"),
        library("libgpushare-strict"),
        simulator("_hardware", "hw/tool.c"),
        simulator("lib.libcuda", "cuda/*.c", exported=True),
        simulator("lib.libnvidia-ml", "nvml/*.c", exported=True),
        runtime(12),
        runtime(13),
    ],
    cmdclass={"build_ext": BuildC, "bdist_wheel": PlatformWheel},
)
