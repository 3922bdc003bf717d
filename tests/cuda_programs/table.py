# SPDX-License-Identifier: Apache-2.0
"""
Writes docs/cuda-programs.md: what each program showed when `make cuda-programs` ran it last.

A program that was not run (its toolchain is missing) keeps its row.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_programs import pins

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cuda-programs.md"
BEGIN, END = "<!-- programs: written by `make cuda-programs` -->\n", "<!-- end -->\n"
HEAD = "| program | version | what is run | without the library | with it |\n| --- | --- | --- | --- | --- |\n"
_ROW = re.compile(r"^\| ([\w-]+) \| (\S+) \|.*\|$", re.MULTILINE)


def rows(page: str) -> dict[str, str]:
    """Lines of the page's table by program."""
    block = page.partition(BEGIN + HEAD)[2].partition(END)[0]
    return {found[1]: found[0] for found in _ROW.finditer(block)}


def updated(page: str, results: list[dict[str, str]]) -> str:
    """The page with these results; programs that are no longer pinned leave it."""
    lines = rows(page)
    for one in results:
        lines[one["program"]] = (
            f"| {' | '.join(one[name] for name in ('program', 'version', 'what', 'plain', 'shared'))} |"
        )
    table = "".join(f"{lines[name]}\n" for name in sorted(pins.programs()) if name in lines)
    before, begin, rest = page.partition(BEGIN)
    return before + begin + HEAD + table + END + rest.partition(END)[2]


def versions(page: str) -> dict[str, str]:
    """Version by program, as the table has them."""
    return {program: _ROW.fullmatch(line)[2] for program, line in rows(page).items()}


def main() -> None:
    """Read what the tests wrote, write the page."""
    results = [json.loads(file.read_text()) for file in sorted((ROOT / "build" / "cuda-programs").glob("*.json"))]
    PAGE.write_text(updated(PAGE.read_text(), results))


if __name__ == "__main__":
    main()
