# SPDX-License-Identifier: Apache-2.0
"""Every name of the driver API is there, found by name and version as real drivers do."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

import isolation.simgpu
from isolation.simgpu.hardware import LIBRARIES

DRIVER = Path(isolation.simgpu.__file__).parent / "driver"
ENTRY = re.compile(r"^([XAP])\((\w+), (\w+)(?:, (\w+))?\)$", re.MULTILINE)


def entries():
    """(kind, name, version or base, symbol) of every line of the table."""
    return ENTRY.findall((DRIVER / "cuda/names.def").read_text())


def test_every_documented_symbol_is_exported():
    """
    Each entry point, each variant for a default stream per thread, and each NVML name can be dlsym'ed.
    """
    cuda, nvml = (ctypes.CDLL(str(LIBRARIES / name)) for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
    symbols = {name if kind == "P" else symbol for kind, name, _, symbol in entries()}
    others = set(re.findall(r"^S\((\w+)\)$", (DRIVER / "nvml/names.def").read_text(), re.MULTILINE))

    assert 700 < len(symbols)
    assert 400 < len(others)
    assert [] == [name for name in sorted(symbols) if not hasattr(cuda, name)]
    assert [] == [name for name in sorted(others) if not hasattr(nvml, name)]


@pytest.mark.parametrize(
    ("name", "version", "flags", "expected"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuCtxCreate", 11000, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemAlloc_v2", 13000, 0, 1),
        ("cuNothing", 13000, 0, 1),
        ("cuGreenCtxCreate", 11000, 0, 2),
    ],
)
def test_names_lead_to_the_newest_form_that_was_asked_for(name, version, flags, expected):
    """
    CuGetProcAddress gives the exported symbol itself, NOT_FOUND for unknown names, and says when only
    the version was too old.
    """
    cuda = ctypes.CDLL(str(LIBRARIES / "libcuda.so.1"))
    found, status = ctypes.c_void_p(), ctypes.c_int()
    code = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )

    if isinstance(expected, int):
        assert (500, expected, None) == (code, status.value, found.value)
    else:
        symbol = ctypes.cast(getattr(cuda, expected), ctypes.c_void_p).value
        assert (0, 0, symbol) == (code, status.value, found.value)


def test_without_hardware_there_is_no_device(tmp_path, monkeypatch):
    """
    A driver without a hardware file answers NO_DEVICE, and NVML that no driver is loaded.
    """
    monkeypatch.setenv("GPUSHARE_SIMGPU", str(tmp_path / "none"))
    cuda, nvml = (ctypes.CDLL(str(LIBRARIES / name)) for name in ("libcuda.so.1", "libnvidia-ml.so.1"))

    assert (100, 3, 9) == (cuda.cuInit(0), cuda.cuCtxSynchronize(), nvml.nvmlInit_v2())
