# SPDX-License-Identifier: Apache-2.0
"""
What the built objects need and export: old loaders must take them, and nothing may slip in.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from isolation.lib import build

OLDEST = (2, 17)


@pytest.fixture(params=["plain", "strict"])
def library(request, plain_library, strict_library) -> Path:
    """Either variant."""
    return plain_library if request.param == "plain" else strict_library


def readelf(*arguments: str) -> str:
    """What readelf says."""
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def dynamic_symbols(path: Path) -> list[list[str]]:
    """The rows of the dynamic symbol table."""
    rows = (line.split() for line in readelf("--dyn-syms", str(path)).splitlines())
    return [row for row in rows if len(row) >= 8 and row[0].rstrip(":").isdigit() and row[7:]]


def test_only_libc_is_needed_at_versions_of_2012(library):
    """NEEDED is libc alone; no version above glibc 2.17, none private, no relative-relocation marker."""
    needed = re.findall(r"NEEDED.*\[(.+)\]", readelf("-d", str(library)))
    versions = set(re.findall(r"Name: (\S+)", readelf("-V", str(library))))

    assert ["libc.so.6"] == needed
    assert {name for name in versions if not re.fullmatch(r"GLIBC_[\d.]+", name)} == set()
    assert all(tuple(map(int, name[6:].split("."))) <= (*OLDEST, 9) for name in versions)


def test_every_import_is_one_that_is_allowed_and_versioned(library):
    """Undefined symbols: the allowed three, each with its version; no TLS, no weak loopholes."""
    undefined = [row for row in dynamic_symbols(library) if row[6] == "UND"]

    assert set(build.IMPORTS) == {row[7].split("@")[0] for row in undefined}
    assert all("@GLIBC_" in row[7] for row in undefined)
    assert "TLS" not in {row[3] for row in dynamic_symbols(library)}
    assert "TLS" not in readelf("-l", str(library))


def test_the_loader_is_asked_for_nothing_that_came_after_2012(library):
    """Every dynamic tag and relocation is one that the loader of glibc 2.17 knows; no constructor, no IFUNC."""
    tags = set(re.findall(r"^ 0x\w+ \((\w+)\)", readelf("-d", str(library)), re.MULTILINE))
    kinds = set(re.findall(r"^[0-9a-f]{12,16}\s+[0-9a-f]+\s+(R_\w+)", readelf("-r", str(library)), re.MULTILINE))
    tables = {"SYMTAB", "SYMENT", "STRTAB", "STRSZ", "HASH", "GNU_HASH", "VERNEED", "VERNEEDNUM", "VERSYM", "NULL"}
    relocations = {"RELA", "RELASZ", "RELAENT", "RELACOUNT", "JMPREL", "PLTREL", "PLTRELSZ", "PLTGOT"}
    prefix = {"x86_64": "R_X86_64_", "aarch64": "R_AARCH64_"}[build.machine()]
    # readelf cuts the names of types, so JUMP_SLOT may read JUMP_SLO
    known = re.compile(rf"{prefix}(RELATIV\w*|GLOB_DAT?|JUMP_SL\w*|64|ABS64)")

    assert {"NEEDED", "SONAME"} <= tags <= {"NEEDED", "SONAME", "SYMBOLIC", "FLAGS", "FLAGS_1"} | tables | relocations
    assert kinds
    assert [] == [kind for kind in kinds if not known.fullmatch(kind)]
    assert "IFUNC" not in {row[3] for row in dynamic_symbols(library)}


def test_exports_are_the_table_and_nothing_else(library, strict_library):
    """Wrappers, stubs of the loader, three calls of our own; the strict variant has every driver function besides."""
    exported = {row[7] for row in dynamic_symbols(library) if row[6] != "UND"}
    wrapped = {name for how, name, _ in build.symbols() if how == "WRAP"}
    passed = {name for how, name, _ in build.symbols() if how == "PASS" and name.startswith("cu")}
    loader = {"dlsym", "dlvsym", "dlopen", "dlmopen"}
    own = loader | {"gpushare_version", "gpushare_layout", "gpushare_reap"}

    assert wrapped | own | (passed if library == strict_library else set()) == exported


def test_sonames_tell_the_variants_apart(plain_library, strict_library):
    """Only the strict one answers to the driver's name."""
    sonames = [re.findall(r"SONAME.*\[(.+)\]", readelf("-d", str(path)))[0] for path in (plain_library, strict_library)]

    assert ["libgpushare.so", "libcuda.so.1"] == sonames


def test_the_table_is_sorted_complete_and_classified():
    """Binary search needs the order; every wrapped name has a class that explains its wrapper."""
    table = build.symbols()
    names = [name for _, name, _ in table]
    lines = [line for line in (build.HERE / "src" / "symbols.def").read_text().splitlines() if "(" in line[:6]]

    assert sorted(set(names)) == names
    assert len(lines) == len(table)
    assert {kind for _, _, kind in table} == {"CHARGE", "UNCHARGE", "LAUNCH", "IMPORT", "QUERY", "PASS"}
    assert [] == [name for how, name, kind in table if how == "WRAP" and kind == "PASS"]


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_every_export_of_the_simulated_driver_is_classified(name):
    """The simulator was written from the same documentation by other eyes: a name missing here shows."""
    path = build.HERE.parent / "simgpu" / "lib" / name
    if not path.is_file():
        pytest.skip("the simulated driver is not built")
    exported = {row[7].split("@")[0] for row in dynamic_symbols(path) if row[6] != "UND"}

    assert set() == {each for each in exported if each.startswith(("cu", "nvml"))} - {
        each for _, each, _ in build.symbols()
    }


def _asked_by(module: str, pattern: str) -> set[str]:
    """Entry points that an installed binding names in its files."""
    root = Path(pytest.importorskip(module).__file__).parent
    found: set[str] = set()
    for path in [*root.rglob("*driver*.so"), *root.glob("pynvml.py")]:
        found |= {name.decode() for name in re.findall(pattern.encode(), path.read_bytes())}
    return found


def test_every_name_that_bindings_ask_for_is_classified():
    """A driver function that cuda-bindings knows and the table does not would be passed unseen."""
    asked = _asked_by("cuda.bindings", rb"\x00(cu[A-Z]\w+)\x00".decode())

    assert set() == asked - {name for _, name, _ in build.symbols()} - {"cuFormat"}  # a keyword argument


def test_every_nvml_name_that_nvidia_ml_py_asks_for_is_classified():
    """The same for NVML."""
    asked = _asked_by("pynvml", r'_nvmlGetFunctionPointer\("(nvml\w+)"')

    assert set() == asked - {name for _, name, _ in build.symbols()}


@pytest.mark.parametrize("variant", [build.PLAIN, build.STRICT])
def test_two_builds_are_the_same(variant, tmp_path):
    """No name of a temporary file, no time and no path of the machine is in the object."""
    made = [tmp_path / name for name in ("once.so", "again.so")]
    for target in made:
        build.build(target, variant)

    assert made[0].read_bytes() == made[1].read_bytes()
