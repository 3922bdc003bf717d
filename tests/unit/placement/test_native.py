# SPDX-License-Identifier: Apache-2.0
"""The native object must be of the sources that Python mirrors; with another, calls would corrupt memory."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from isolation.placement import native

NATIVE = Path(native.__file__).with_name("native")


def built(folder: Path, change: tuple[str, str]) -> ctypes.CDLL:
    """The part of the native code that has the check, with `change` made in its header."""
    header = (NATIVE / "placement.h").read_text()
    assert change[0] in header
    (folder / "placement.h").write_text(header.replace(*change))
    (folder / "fleet.c").write_text((NATIVE / "fleet.c").read_text())
    (folder / "cards.h").write_text((NATIVE / "cards.h").read_text())
    target = folder / "native.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(folder / "fleet.c"), "-lm"], check=True)
    return ctypes.CDLL(str(target))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (("", ""), True),
        (("    uint32_t *version; /* changes", "    int32_t *later;\n    uint32_t *version; /* changes"), False),
        (("int64_t memory; ", "int64_t memory, later; "), False),
    ],
)
def test_an_object_of_other_sources_is_refused(change, same, tmp_path):
    assert native._same_structs(built(tmp_path, change)) is same


def test_an_object_from_before_the_check_is_refused():
    assert not native._same_structs(ctypes.CDLL(None))
