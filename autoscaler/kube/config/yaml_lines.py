# SPDX-License-Identifier: Apache-2.0
"""
YAML that an operator wrote, as values that know the line they stand on.

Decides what is no document at all: too large, aliases (a short file that means gigabytes), a key twice, text that
is no YAML, text nested deeper or a number longer than any configuration's, and numbers that YAML 1.1 takes for
others (010 for 8, 1:30 for 90). What the values mean is `reader`'s business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.contract.codec.cursor import At, CodecError

if TYPE_CHECKING:
    from isolation.contract.codec.cursor import Path

MAX_BYTES: Final = 1 << 19
"""Half of what a ConfigMap holds; 200 pools with profiles of 16 cards have room."""
MAX_VALUES: Final = 50_000
"""Keys count too. Reading so many takes about half a second."""
_DEEPEST: Final = 32
_LONGEST_NUMBER: Final = 100
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_OCTAL: Final = re.compile(r"[-+]?0[0-7_]+")
_UNKNOWN: Final = 1
_PARSER: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where it is there: a file of the largest size must not keep a process that holds a Lease busy for long."""


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """One file's value, and where its parts stand."""

    at: At
    lines: dict[Path, int]
    """From 1; of every key and item."""

    def line(self, path: Path) -> int:
        """Where this stands, or what is around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, _UNKNOWN)


def document(raw: bytes) -> ConfigDocument:
    """The value of a file; raises CodecError, its message with the line where that is known."""
    if len(raw) > MAX_BYTES:
        raise CodecError((), f"{len(raw)} bytes: a configuration file has at most {MAX_BYTES}")
    try:
        text = raw.decode()
        _bounded(text)
        lines: dict[Path, int] = {}
        root = yaml.compose(text, Loader=_PARSER)
        value = None if root is None else _value(yaml.SafeLoader(""), root, (), lines)
    except UnicodeDecodeError:
        raise CodecError((), "not UTF-8 text") from None
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}: " if exc.problem_mark is not None else ""
        raise CodecError((), f"{where}invalid YAML: {exc.problem or exc.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as exc:
        if isinstance(exc, CodecError):
            raise
        raise CodecError((), f"invalid YAML: {str(exc)[:200]}") from None
    return ConfigDocument(At(value), lines)


def _bounded(text: str) -> None:
    """Before anything is built of it: no aliases, no deeper than a configuration, and no more than one says."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_PARSER):
        if isinstance(event, yaml.AliasEvent):
            raise CodecError((), "aliases (*name) are not supported; write the value out")
        values += isinstance(event, yaml.NodeEvent)
        if values > MAX_VALUES:
            raise CodecError((), f"too many keys and values: the maximum is {MAX_VALUES}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            where = f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
            raise CodecError((), f"{where}nested too deeply: the maximum is {_DEEPEST} levels")


def _value(loader: yaml.SafeLoader, node: yaml.Node, path: Path, lines: dict[Path, int]) -> object:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*path, i), lines) for i, item in enumerate(node.value)]
    return _scalar(loader, node)


def _scalar(loader: yaml.SafeLoader, node: yaml.Node) -> object:
    line = node.start_mark.line + 1
    if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
        raise CodecError((), f"line {line}: number has {len(node.value)} characters: the maximum is {_LONGEST_NUMBER}")
    if node.tag in _NUMBERS and (":" in node.value or _OCTAL.fullmatch(node.value)):
        kind = "base 60" if ":" in node.value else "octal"
        hint = f"YAML reads {node.value} as {kind}; write a decimal number, or quote it if you mean text"
        raise CodecError((), f"line {line}: {hint}")
    try:
        found: object = loader.construct_object(node)
    except (KeyError, AttributeError, TypeError):
        # PyYAML's own constructors break on a tag that does not go with its text
        raise CodecError((), f"line {line}: tag {node.tag} does not match the value; remove the tag") from None
    return found


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _scalar(loader, key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise CodecError((), f"line {line}: key is not a string; quote it")
        if key in found:
            raise CodecError((), f"line {line}: duplicate key {key}; keep one of them")
        lines[(*path, key)] = line
        found[key] = _value(loader, value_node, (*path, key), lines)
    return found
