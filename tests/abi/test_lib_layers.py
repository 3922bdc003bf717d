# SPDX-License-Identifier: Apache-2.0
"""
The library's files lie in layers: none calls, or needs a variable of, one that needs it.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from graphlib import CycleError, TopologicalSorter

import pytest

from isolation.lib import build

STUBS = {"dlsym.S": "lookup.c", "loader.S": "lookup.c", "forward.S": "symbols.c"}
"""Assembler that is the other half of a C file."""


@pytest.fixture(scope="module")
def needs(tmp_path_factory) -> dict[str, dict[str, set[str]]]:
    """File -> file that it needs -> by which names."""
    folder = tmp_path_factory.mktemp("objects")

    def symbols(source: str) -> tuple[str, set[str], set[str]]:
        name = source.rpartition("/")[2]
        target = str(folder / f"{name}.o")
        flags = ("-O0", "-std=gnu11", "-fPIC", "-fno-builtin", '-DGS_VERSION="0"', f"-I{build.HERE / 'include'}")
        build.run([build.compiler(), *flags, "-c", "-o", target, source])
        rows = subprocess.run(["nm", target], capture_output=True, text=True, check=True, timeout=60).stdout
        pairs = [row.split()[-2:] for row in rows.splitlines()]
        return name, {at for kind, at in pairs if kind.isupper() and kind != "U"}, {at for k, at in pairs if k == "U"}

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(symbols, build.sources()))
    owner = {symbol: STUBS.get(name, name) for name, defined, _ in found for symbol in defined}
    graph: dict[str, dict[str, set[str]]] = {}
    for name, _, undefined in found:
        mine = graph.setdefault(STUBS.get(name, name), {})
        for symbol in undefined & owner.keys():
            if owner[symbol] != STUBS.get(name, name):
                mine.setdefault(owner[symbol], set()).add(symbol)
    return graph


def test_no_file_needs_one_that_needs_it(needs):
    """What a lower layer must set off in a higher one is on a list that the linker makes (fork.h, charge.h)."""
    try:
        order = list(TopologicalSorter({name: set(others) for name, others in needs.items()}).static_order())
    except CycleError as exc:
        around = exc.args[1]
        pytest.fail(f"circle: {' <- '.join(around)}")

    assert order.index("core.c") < order.index("charge.c") < order.index("hook.c") < order.index("lookup.c")


def test_the_engine_knows_nothing_of_its_callers(needs):
    """core.c reads the promise and finds a place in the ledger; charge.c is on top of it, the hooks on top of that."""
    low = {"elf.c", "fork.c", "ledger.c", "limits.c", "ring.c", "slot.c", "symbols.c", "sys.c"}

    assert needs["core.c"].keys() <= low
    assert needs["charge.c"].keys() <= low | {"core.c", "sample.c"}
    assert needs["fork.c"].keys() <= {"sys.c"}
