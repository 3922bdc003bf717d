# SPDX-License-Identifier: Apache-2.0
"""docs/cuda-programs.md: every pinned program stands in its table with the version that runs, and nothing else does."""

from __future__ import annotations

import pytest
from cuda_programs import get, pins, table

PAGE = """# Title

before
<!-- programs: written by `make cuda-programs` -->
| program | version | what is run | without the library | with it |
| --- | --- | --- | --- | --- |
| gone | 1.0 | x | y | z |
| gpustat | 0.1 | x | y | z |
<!-- end -->
after
"""


def test_the_table_names_the_clients_and_versions_that_are_pinned():
    """After a pin moved, `make cuda-programs` writes the row."""
    assert pins.programs() == table.versions(table.PAGE.read_text())


def test_a_result_replaces_its_row_and_a_client_that_was_not_run_keeps_it(monkeypatch):
    """One that is no longer pinned leaves the table; the text around it stays."""
    monkeypatch.setattr(pins, "programs", lambda: {"gpustat": "0.1", "nvitop": "2.0"})
    row = {"program": "nvitop", "version": "2.0", "what": "a", "plain": "b", "shared": "c"}

    after = table.updated(PAGE, [row])

    assert (
        PAGE.replace("| gone | 1.0 | x | y | z |\n", "").replace("<!-- end", "| nvitop | 2.0 | a | b | c |\n<!-- end")
        == after
    )


def test_a_pin_that_moves_moves_the_place_in_the_cache(monkeypatch, tmp_path):
    """Another checkout with other pins keeps its own programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pinned = tmp_path / "requirements.txt"
    pinned.write_text("a==1\n")
    first = pins.place("python", pinned)
    pinned.write_text("a==2\n")

    assert first.parent == tmp_path / "gpushare" / "clients" == pins.place("python", pinned).parent
    assert first != pins.place("python", pinned)


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        (".sources", "Types: deb\nComponents: main\n", "Types: deb\nComponents: main contrib non-free\n"),
        (
            ".list",
            "# deb x\ndeb mirror bookworm main contrib\n",
            "# deb x\ndeb mirror bookworm main contrib non-free\n",
        ),
    ],
)
def test_the_sources_of_this_machine_are_read_with_more_components(suffix, text, expected):
    """In both forms of apt's files; a comment stays one."""
    assert expected == get.with_components(text, suffix)


def test_a_set_that_was_left_half_done_is_fetched_again_and_a_whole_one_stays(monkeypatch, tmp_path, capsys):
    """
    One that fails hides no other; one whose toolchain is missing is left out by name, and that is no failure.
    """
    built = []

    def build(folder):
        built.append(folder.name)
        assert [] == list(folder.iterdir())

    def fail(_folder):
        raise OSError("no network")

    half = tmp_path / "half"
    half.mkdir()
    (half / "rest").touch()
    known = {
        "broken": (tmp_path / "broken", fail, ()),
        "strange": (tmp_path / "strange", build, ("no-such-toolchain",)),
        "half": (half, build, ()),
    }
    monkeypatch.setattr(get, "sets", lambda: known)

    assert [1, 1, 0] == [get.main([]), get.main([]), get.main(["half", "strange"])]
    assert ["half"] == built
    said = capsys.readouterr().out
    assert "strange: left out: no-such-toolchain is not installed" in said
    assert "broken: could not be fetched: no network" in said
