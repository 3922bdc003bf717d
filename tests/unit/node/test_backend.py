# SPDX-License-Identifier: Apache-2.0
"""What enforces promises is found out by several threads, and again while nothing works."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from isolation.contract.backends import AUTO
from isolation.contract.model import Mode
from isolation.node.backend import LibraryBackend, NoBackend, NodeBackends


def test_backends_that_share_a_library_install_it_once(tmp_path):
    """At the agent's start several are asked at the same time; none finds half of another's."""
    (tmp_path / "library.so").write_bytes(b"\x7fELF" + bytes(4 << 20))
    for turn in range(8):
        found = [LibraryBackend(tmp_path / str(turn), lambda: tmp_path / "library.so") for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert [""] * 4 == list(pool.map(lambda one: one.available(), found))


def test_where_nothing_works_it_is_looked_at_again(tmp_path):
    """A node does not stay without shares because a file came late."""
    now, used = [0.0], []
    known = {"library": LibraryBackend(tmp_path, lambda: tmp_path / "library.so"), "none": NoBackend()}
    made = NodeBackends(known, lambda: AUTO, lambda: Mode.CGPU, used.append, clock=lambda: now[0])
    assert made.available()
    (tmp_path / "library.so").write_bytes(b"\x7fELF library")
    assert made.available()
    now[0] = 10.0
    assert ("", "library") == (made.available(), made.name)
    assert ["", "library"] == used
