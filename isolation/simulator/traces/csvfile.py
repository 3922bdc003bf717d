# SPDX-License-Identifier: Apache-2.0
"""
Rows of a CSV file from outside, each able to complain with file, line and fix.

Decides what is a usable table: UTF-8, one header, every row as wide as the header, names once,
numbers whole and within bounds. Knows nothing of what the columns mean.

    TraceError      the file cannot be used; the message is for the person who wrote it
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

MAX_FILE_BYTES: Final = 256 << 20
MAX_ROWS: Final = 2_000_000
MAX_NAME: Final = 253
"""Characters of a Kubernetes object name."""

T = TypeVar("T")
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]*[A-Za-z0-9])?")


class TraceError(ValueError):
    """A file that is no trace, or a row that contradicts itself."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of a file, and how to complain about it."""

    file: str
    line: int
    cells: Mapping[str, str]

    def fail(self, problem: str) -> NoReturn:
        """Refuse the row."""
        raise TraceError(f"{self.file}:{self.line}: {problem}")

    def name(self, column: str) -> str:
        """A name safe to print and to use as a Kubernetes name."""
        text = self.cells[column]
        if not text:
            self.fail(f"column {column} is empty; every row needs a name")
        if len(text) > MAX_NAME or not _NAME.fullmatch(text):
            self.fail(
                f"{column} {quote(text)} is not a valid name; use at most {MAX_NAME} letters and digits, "
                "with . _ : / - only between them"
            )
        return text

    def whole(self, column: str, most: int) -> int:
        """A whole number from 0 to `most`."""
        text = self.cells[column]
        if not _WHOLE.fullmatch(text):
            self.fail(f"{column} is {quote(text)}; write a whole number from 0 to {most}")
        if int(text) > most:
            self.fail(f"{column} is {quote(text)}, more than {most}; check the unit or lower it")
        return int(text)

    def maybe(self, column: str, most: int) -> int | None:
        """A whole number that may be absent, as may its column."""
        return self.whole(column, most) if self.cells.get(column) else None

    def names(self, column: str, between: str = "") -> frozenset[str]:
        """Names that may be absent, as may their column; `between` separates several."""
        text = self.cells.get(column, "")
        if not text:
            return frozenset()
        found = [name.strip() for name in text.split(between)] if between else [text]
        if not all(_NAME.fullmatch(name) and len(name) <= MAX_NAME for name in found):
            form = f"names separated by {between}, such as a{between}b" if between else "one name"
            self.fail(f"{column} is {quote(text)}; write {form}, or leave it empty")
        return frozenset(found)


def make_unique(table: Iterable[CsvRow], column: str, make: Callable[[CsvRow], T]) -> tuple[T, ...]:
    """One value per row; a name that comes twice is an error."""
    seen: dict[str, int] = {}
    made: list[T] = []
    for row in table:
        name = row.name(column)
        if name in seen:
            row.fail(f"{column} {name} is already in line {seen[name]}; rename or remove one")
        seen[name] = row.line
        made.append(make(row))
    return tuple(made)


def read(path: Path) -> str:
    """A file's text, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            # Bounded, so that an endless pipe ends here too.
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise TraceError(f"{path}: {exc.strerror or exc}; check the path and its permissions") from exc
    if len(content) > MAX_FILE_BYTES:
        raise TraceError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; split the file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise TraceError(f"{path}:{line}: not UTF-8 text; save the file as plain CSV in UTF-8") from exc


def parse_rows(text: str, file: str, needed: Sequence[str]) -> Iterator[CsvRow]:
    """The rows under the header; blank lines are nothing, a row of the wrong width is an error."""
    lines = csv.reader(StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    header: list[str] = []
    count, line = 0, 1
    try:
        for raw in lines:
            # A quoted field may span lines: a row stands where it begins.
            start, line = line, lines.line_num + 1
            cells = [cell.strip() for cell in raw]
            if not any(cells) and len(cells) <= 1:
                continue
            if not header:
                header = _header(cells, f"{file}:{start}", needed)
                continue
            row = CsvRow(file, start, dict(zip(header, cells, strict=False)))
            count += 1
            if len(cells) != len(header):
                row.fail(f"{len(cells)} fields, but the header has {len(header)}; give every column a field")
            if count > MAX_ROWS:
                row.fail(f"more than {MAX_ROWS} rows; split the file")
            yield row
    except csv.Error as exc:
        raise TraceError(f"{file}:{line}: {exc}; correct the quoting, or save the file as plain CSV") from exc
    if not header:
        raise TraceError(f"{file}:1: the file is empty; its first line must be {','.join(needed)}")
    if not count:
        raise TraceError(f"{file}:{line}: no rows after the header; add at least one")


def _header(cells: list[str], where: str, needed: Sequence[str]) -> list[str]:
    """The column names, once those that are needed are there, each once."""
    names = [cell.lower() for cell in cells]
    missing = [name for name in needed if name not in names]
    if len(cells) == 1 and (found := re.search(r"[;\t|]", cells[0])):
        raise TraceError(f"{where}: columns are separated by {quote(found[0])}; save the file with commas")
    if missing:
        raise TraceError(
            f"{where}: missing column {', '.join(missing)}; the first line must contain {','.join(needed)}"
        )
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise TraceError(f"{where}: duplicate column {quote(', '.join(twice))}; remove one")
    return names


def quote(text: str) -> str:
    """Text from a file, short and free of control characters."""
    return ascii(text[:60]) if text else "empty"
