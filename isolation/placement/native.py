# SPDX-License-Identifier: Apache-2.0
"""
The C code as Python sees it: structs mirrored field by field, nothing decided here.

Built by the project's own build (`setup.py`, gcc only). Arrays stay owned by their Python
holder; a struct only points at them.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import numpy as np

MAX_CARDS: Final = 64
MAX_SHAPES: Final = 128
MAX_SIZES: Final = 32
PRICE_STEPS: Final = 1000


BUILD: Final = "run `make test`, or `pip install .` with gcc on PATH"


class NativeMissingError(ImportError):
    """The shared object is not beside this module, or was built from other sources."""


class FleetStruct(Structure):
    """`struct gs_fleet`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("nodes", c_int32),
        ("stride", c_int32),
        *((name, c_void_p) for name in ("cpu", "memory", "pods", "cards", "choice")),
        *((name, c_void_p) for name in ("offered", "free", "core", "kind", "offline", "version")),
    ]


class MixStruct(Structure):
    """`struct gs_mix`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("shapes", c_int32),
        ("singles", c_int32),
        ("kinds", c_int32),
        ("segments", c_int32),
        ("capacity", c_int64),
        *((name, c_void_p) for name in ("cpu", "memory", "cards", "popularity", "group", "end")),
        *((name, c_void_p) for name in ("need", "order", "value", "eligible", "may")),
        ("hosts", c_int32),
        ("pad", c_int32),
        *((name, c_void_p) for name in ("host_cpu", "host_memory", "host_popularity")),
        ("cpu_per_card", c_double),
    ]


class PolicyStruct(Structure):
    """`struct gs_policy`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("rank", c_int32),
        ("pad", c_int32),
        *((name, c_double) for name in ("fragment", "price", "strand", "mismatch", "host", "tie", "grain")),
        ("cpu_span", c_double),
        ("card_span", c_double),
        ("salt", c_uint64),
    ]


class AskStruct(Structure):
    """`struct gs_ask`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("cpu", c_int64),
        ("memory", c_int64),
        ("bytes", c_int64),
        *((name, c_int32) for name in ("core", "cards", "whole", "group", "offline", "pad")),
    ]


class RowStruct(Structure):
    """`struct gs_row`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        (name, c_void_p) for name in ("score", "mask", "version", "phi", "phi_version")
    ]


class BestStruct(Structure):
    """`struct gs_best`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        (name, c_int64) for name in ("card_bytes", "free_bytes", "core", "cards", "untouched", "cpu", "memory")
    ]


def _load() -> ctypes.CDLL:
    path = Path(__file__).with_name("_native.so")
    if not path.is_file():
        raise NativeMissingError(f"{path.name} was not built: {BUILD}")
    lib = ctypes.CDLL(str(path))
    if not _same_structs(lib):
        raise NativeMissingError(f"{path.name} was built from other sources: {BUILD}")
    fleet, mix, policy, ask, row = (POINTER(s) for s in (FleetStruct, MixStruct, PolicyStruct, AskStruct, RowStruct))
    lib.gs_pick.argtypes = [fleet, mix, policy, ask, row, c_void_p, c_void_p, c_int32, POINTER(c_uint64)]
    lib.gs_pick.restype = c_int32
    lib.gs_rate.argtypes = [fleet, mix, policy, ask, row, c_void_p, c_void_p, c_int32, c_void_p, c_int32]
    lib.gs_rate.restype = None
    lib.gs_say.argtypes = [fleet, ask, c_void_p, c_void_p, c_void_p, c_int32, c_void_p]
    lib.gs_say.restype = None
    lib.gs_take.argtypes = [fleet, ask, c_int32, c_uint64, c_int32]
    lib.gs_take.restype = c_int32
    lib.gs_give.argtypes = [fleet, ask, c_int32, c_uint64]
    lib.gs_give.restype = None
    lib.gs_why.argtypes = [fleet, ask, c_void_p, c_void_p, c_void_p, POINTER(BestStruct)]
    lib.gs_why.restype = None
    lib.gs_fragment.argtypes = [fleet, mix, POINTER(c_double)]
    lib.gs_fragment.restype = c_double
    lib.gs_prices.argtypes = [c_int32, c_void_p, c_void_p, c_void_p]
    lib.gs_prices.restype = c_int32
    return lib


def _same_structs(lib: ctypes.CDLL) -> bool:
    """Whether the object's structs have the sizes of those here; with others, calls would corrupt memory."""
    structs = (FleetStruct, MixStruct, PolicyStruct, AskStruct, RowStruct, BestStruct)
    sizes = (c_int32 * len(structs))()
    try:
        lib.gs_struct_sizes(sizes)
    except AttributeError:
        return False
    return list(sizes) == [ctypes.sizeof(struct) for struct in structs]


LIB: Final = _load()


def pointer(array: np.ndarray[Any, Any]) -> int:
    """Address of a C-contiguous array; the caller keeps it alive."""
    return int(array.ctypes.data)
