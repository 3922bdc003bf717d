# SPDX-License-Identifier: Apache-2.0
"""
YAML and JSON text into plain values that remember their lines.

Decides what is well-formed and small enough to be read at all; knows no Kubernetes. Built on
the parser's events with a stack of its own, so that neither nesting nor aliases can exhaust
the machine. Plain scalars are what Kubernetes' own tools make of them (sigs.k8s.io/yaml: YAML 1.1, so 010 is 8 and
08 is 8 too), without dates and tags.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.codec.cursor import Path

MAX_BYTES: Final = 10 << 20
"""Bytes in one file."""
MAX_DEEP: Final = 100
"""Levels of nesting; Kubernetes' own objects have about 20."""
MAX_VALUES: Final = 2_000_000
"""Values in one document, with every alias counted as often as it is used."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"y", "Y", "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE: Final = frozenset({"n", "N", "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,39})")
_OCTAL: Final = re.compile(r"[-+]?0[0-7]{1,21}")
_BASED: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]{1,16}|0[oO][0-7]{1,21}|0[bB][01]{1,64})")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?")
_NUMBERS: Final = frozenset("+-.0123456789")
_TAGS: Final = frozenset({None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq"))})
_MERGE: Final = "<<"


@dataclass(slots=True)
class Document:
    """One document: its value, and the line of every field in it."""

    value: object
    line: int
    lines: dict[int, dict[str | int, int]] = field(default_factory=dict)
    """By identity of the mapping or list: line of each key or item."""
    text: str = ""
    """JSON whose line numbers are computed on demand."""

    def line_of(self, path: Path) -> int:
        """The line of the deepest part of `path` that stands in the text."""
        if self.text:
            text, self.text = self.text, ""
            with suppress(yaml.YAMLError, ValueError):
                (twin,) = _read(text)
                self.value, self.lines = twin.value, twin.lines
        at, line = self.value, self.line
        for step in path:
            found = self.lines.get(id(at), {}).get(step)
            if found is None or not isinstance(at, dict | list):
                break
            line, at = found, at[step]  # type: ignore[index]
        return line


@dataclass(slots=True)
class _Open:
    """A mapping or list that is still being read."""

    value: dict[str, object] | list[object]
    line: int
    anchor: str | None
    lines: dict[str | int, int] = field(default_factory=dict)
    key: str | None = None
    size: int = 1


def documents(text: str) -> Iterator[Document]:
    """Every document of a YAML stream or JSON text; raises DocumentError where it is malformed."""
    # JSON is read by its own reader, ten times as fast; what that refuses the other one explains.
    is_json = text.lstrip(" \t\r\n")[:1] in ("{", "[")
    value = _as_json(text) if is_json else None
    if value is not None:
        yield Document(value, 1, text=text)
        return
    try:
        yield from list(_read(text))
    except yaml.YAMLError as exc:
        raise explain_yaml_error(exc, text) from None


def _read(text: str) -> Iterator[Document]:
    reader, loader = None, _LOADER(text)
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.DocumentStartEvent):
                reader = _Reader()
            elif isinstance(event, yaml.DocumentEndEvent):
                if reader is not None and reader.root is not None:
                    yield reader.root
                reader = None
            elif reader is not None:
                reader.take(event)
    finally:
        loader.dispose()


class _Reader:
    """Events of one document into a Document."""

    def __init__(self) -> None:
        self.root: Document | None = None
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[object, int]] = {}
        self.lines: dict[int, dict[str | int, int]] = {}

    def take(self, event: Any) -> None:
        """One event; raises DocumentError where the limits are passed."""
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        if getattr(event, "tag", None) not in _TAGS:
            raise DocumentError(line, column, f"tag {event.tag[:60]!r} is not supported; remove it")
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line, column)
            case yaml.AliasEvent():
                if event.anchor not in self.anchors:
                    raise DocumentError(
                        line, column, f"alias *{event.anchor} has no complete anchor above it; define it first"
                    )
                self._put(*self.anchors[event.anchor], line, column)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if len(self.open) >= MAX_DEEP:
                    raise DocumentError(line, column, f"nested more than {MAX_DEEP} levels deep; flatten it")
                if self.open and self._wants_key():
                    raise DocumentError(
                        line,
                        column,
                        "expected a key, not a bracket; quote it, or render the template first",
                    )
                value: dict[str, object] | list[object] = {} if isinstance(event, yaml.MappingStartEvent) else []
                self.open.append(_Open(value, line, event.anchor))
            case _:
                done = self.open.pop()
                self.lines[id(done.value)] = done.lines
                if done.anchor:
                    self.anchors[done.anchor] = (done.value, done.size)
                self._put(done.value, done.size, done.line, column)

    def _wants_key(self) -> bool:
        top = self.open[-1]
        return isinstance(top.value, dict) and top.key is None

    def _scalar(self, event: Any, line: int, column: int) -> None:
        if self.open and self._wants_key():
            top = self.open[-1]
            if event.value in top.lines and event.value != _MERGE:
                first = top.lines[event.value]
                raise DocumentError(
                    line, column, f"duplicate key {event.value[:60]!r}, first on line {first}; keep one"
                )
            top.key, top.lines[event.value] = event.value, line
            return
        # implicit[0]: a plain scalar without a tag; quoted ones and !!str are text as they stand
        value = _resolve(event.value) if event.implicit[0] else event.value
        if event.anchor:
            self.anchors[event.anchor] = (value, 1)
        self._put(value, 1, line, column)

    def _put(self, value: object, size: int, line: int, column: int) -> None:
        if not self.open:
            self.root = Document(value, line, self.lines)
            return
        top = self.open[-1]
        top.size += size
        if top.size > MAX_VALUES:
            raise DocumentError(line, column, f"more than {MAX_VALUES} values, counting aliases; split the file")
        if isinstance(top.value, list):
            top.lines[len(top.value)] = line
            top.value.append(value)
        elif top.key is None:
            raise DocumentError(line, column, "expected a key, not an alias; write the key itself")
        else:
            if top.key == _MERGE:
                self._merge(top, value, line, column)
            else:
                top.value[top.key] = value
            top.key = None

    @staticmethod
    def _merge(top: _Open, value: object, line: int, column: int) -> None:
        """`<<: *other`: fields that the mapping does not set itself."""
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(top.value, dict) or not isinstance(source, dict):
                raise DocumentError(line, column, "<< merges only mappings; use an alias of a mapping")
            for key, inherited in source.items():
                top.value.setdefault(key, inherited)


def _resolve(text: str) -> object:
    """The value of a plain scalar."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    number = text.replace("_", "") if text[0] in _NUMBERS else text
    if _INT.fullmatch(number):
        return int(number)
    if _OCTAL.fullmatch(number):
        return int(number, 8)
    if _BASED.fullmatch(number):
        return int(number, 0)
    if _FLOAT.fullmatch(number) and isfinite(value := float(number)):
        return value
    return text


def _as_json(text: str) -> object:
    """The value of sound JSON, else None."""
    try:
        return json.loads(text, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError):
        return None


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


class DocumentError(ValueError):
    """Text that cannot be read; `line` and `column` count from 1 (0: the file as a whole)."""

    def __init__(self, line: int, column: int, message: str) -> None:
        self.line, self.column, self.problem = line, column, message
        super().__init__(message)


# What the parser says, and what a person should do about it; the first that is contained wins.
_FIXES: Final = (
    ("cannot start any token", "quote the value, and indent with spaces, never with tabs"),
    ("mapping values are not allowed", "quote the value if it contains ': ', or align this line with the one above"),
    ("could not find expected ':'", "write key: value, with a colon and a space"),
    ("did not find expected key", "align this line with the keys above it, and close every quote"),
    ("did not find expected '-' indicator", "start every item of the list with a dash, all in one column"),
    ("did not find expected ',' or", "add the missing comma or close the bracket"),
    ("block sequence entries are not allowed", "start the list on a line of its own"),
    ("unexpected end of stream", "close the quote or bracket"),
    ("undefined alias", "define the anchor above its use"),
    ("escape", "write the backslash twice, or use single quotes"),
)
_DEFAULT_FIX: Final = "check indentation, quotes and brackets here"


def explain_yaml_error(exc: yaml.YAMLError, text: str) -> DocumentError:
    """The parser's complaint with its place and what to do."""
    mark = getattr(exc, "problem_mark", None)
    if mark is None:
        position = getattr(exc, "position", 0)
        before = text[: position if isinstance(position, int) else 0]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        return DocumentError(line, column, "YAML does not allow this character; remove it or save the file as UTF-8")
    problem = str(getattr(exc, "problem", None) or "cannot be read")
    fix = next((fix for part, fix in _FIXES if part in problem), _DEFAULT_FIX)
    lines = text.splitlines()
    if "{{" in (lines[mark.line] if mark.line < len(lines) else ""):
        fix = "this looks like a template; render it first (helm template)"
    start = getattr(exc, "context_mark", None)
    opened = (
        f" (in the block that starts on line {start.line + 1})" if start is not None and start.line != mark.line else ""
    )
    return DocumentError(mark.line + 1, mark.column + 1, f"{problem}{opened}; {fix}")
