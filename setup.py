"""
Builds the C parts with plain gcc: no Python headers, no toolchain beyond `gcc`.

A shared object is loaded with ctypes and speaks no Python API, so one wheel serves every
Python 3 of the platform (tag `py3-none-<platform>`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# Warnings are errors in our own tests (tests/native), not on a user's newer compiler.
CFLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra", "-fvisibility=hidden"]
KERNEL = Path("isolation/placement/kernel")


class BuildC(build_ext):
    """Compile each extension to `<name>.so`, without a Python ABI suffix."""

    def get_ext_filename(self, fullname: str) -> str:
        """`isolation.placement._kernel` -> `isolation/placement/_kernel.so`."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """One gcc call; its error output is the error."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [
            os.environ.get("CC", "gcc"),
            *CFLAGS,
            *(ext.extra_compile_args or []),
            "-o",
            str(target),
            *ext.sources,
        ]
        subprocess.run([*command, "-lm"], check=True)


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def finalize_options(self) -> None:
        """The wheel holds machine code."""
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """No Python ABI is used."""
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[
        Extension(
            "isolation.placement._kernel",
            sources=sorted(map(str, KERNEL.glob("*.c"))),
            depends=sorted(map(str, KERNEL.glob("*.h"))),
        )
    ],
    cmdclass={"build_ext": BuildC, "bdist_wheel": PlatformWheel},
)
