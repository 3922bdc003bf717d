# SPDX-License-Identifier: Apache-2.0
"""
The built library as the host sees it: where it is, which version, whether it would work here.

Nothing of a promise is decided here. The self-check loads the library the way a container does,
by preload with every symbol bound at once, and compares its layout with isolation.contract.abi.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from isolation.contract import abi
from isolation.lib.build import PLAIN, STRICT

HERE: Final = Path(__file__).resolve().parent

_LAYOUT: Final = ("limits", "limit_card", "feed", "feed_card", "region", "card", "slot", "record")
_SECTIONS: Final = ("region.cards", "region.slots", "region.ring")


class LibraryMissingError(FileNotFoundError):
    """The shared object is not beside this module: the package was not built."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold for the library to work here."""

    name: str
    ok: bool
    detail: str


def library_path(*, strict: bool = False) -> Path:
    """Where the library is; `strict` is the variant that takes libcuda's SONAME."""
    path = HERE / (STRICT if strict else PLAIN)
    if not path.is_file():
        raise LibraryMissingError(f"{path} is missing: build it with `python -m isolation.lib.build` (requires gcc)")
    return path


@cache
def _loaded(path: Path) -> Any:
    library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    library.gpushare_version.restype = ctypes.c_char_p
    library.gpushare_layout.restype = ctypes.c_uint32
    library.gpushare_reap.restype = ctypes.c_int64
    return library


def version(*, strict: bool = False) -> str:
    """Version that the library itself tells."""
    version: bytes = _loaded(library_path(strict=strict)).gpushare_version()
    return version.decode("ascii")


def reap(region: Path) -> tuple[int, int]:
    """
    Give back what dead processes of a container hold: (bytes, processes).

    Maps the file into this process: a tenant who truncates it kills the caller. Where tenants are
    not trusted, call it in a process of its own (`gpushare lib --reap`).
    """
    slots = ctypes.c_uint32(0)
    given = int(_loaded(library_path()).gpushare_reap(os.fsencode(region), ctypes.byref(slots)))
    if given < 0:
        raise abi.AbiError(f"{region}: not a region file of this library version")
    return given, slots.value


def _layout_check(path: Path) -> Check:
    library = _loaded(path)
    layout = [int(library.gpushare_layout(index)) for index in range(2 + len(_LAYOUT) + len(_SECTIONS))]
    mirror = abi.layout()
    expected = [abi.MAJOR, abi.MINOR, *(mirror[name] for name in (*_LAYOUT, *_SECTIONS))]
    return Check(
        "abi",
        expected == layout,
        f"{layout[0]}.{layout[1]}, as this program expects" if expected == layout else str(layout),
    )


def _preload_check(path: Path) -> Check:
    env = {"PATH": os.defpath, "LD_PRELOAD": str(path), "LD_BIND_NOW": "1"}
    done = subprocess.run(["/bin/sh", "-c", ":"], env=env, capture_output=True, text=True, timeout=10, check=False)
    ok = done.returncode == 0 and not done.stderr and not done.stdout
    return Check("preload", ok, "loads into a program without CUDA and prints nothing" if ok else done.stderr.strip())


def self_check(*, strict: bool = False) -> tuple[Check, ...]:
    """Whether the library would work on this machine, check by check."""
    path = library_path(strict=strict)
    return (_layout_check(path), _preload_check(path))
