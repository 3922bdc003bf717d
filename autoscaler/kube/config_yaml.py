"""
YAML that an operator wrote, as values that know the line they stand on.

Decides what is no document at all: too large, aliases (a short file that means gigabytes), a key twice, text that
is no YAML. What the values mean is `config`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

from isolation.contract.codec_shape import At, CodecError

if TYPE_CHECKING:
    from isolation.contract.codec_shape import Path

MOST_BYTES: Final = 1 << 20
"""As much as a ConfigMap holds."""
_DEEPEST: Final = 32
_UNKNOWN: Final = 1


@dataclass(frozen=True, slots=True)
class Document:
    """One file's value, and where its parts stand."""

    at: At
    lines: dict[Path, int]
    """From 1; of every key and item."""

    def line(self, path: Path) -> int:
        """Where this stands, or what is around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, _UNKNOWN)


def document(raw: bytes) -> Document:
    """The value of a file; raises CodecError, its message with the line where that is known."""
    if len(raw) > MOST_BYTES:
        raise CodecError((), f"{len(raw)} bytes; a configuration has {MOST_BYTES} at most")
    try:
        text = raw.decode()
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise CodecError((), "aliases (*name) are not read; write the value out")
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            lines: dict[Path, int] = {}
            value = None if root is None else _value(loader, root, (), lines)
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        raise CodecError((), "not text in UTF-8") from None
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}: " if exc.problem_mark is not None else ""
        raise CodecError((), f"{where}not YAML: {exc.problem or exc.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as exc:
        if isinstance(exc, CodecError):
            raise
        raise CodecError((), f"not YAML: {str(exc)[:200]}") from None
    return Document(At(value), lines)


def _value(loader: yaml.SafeLoader, node: yaml.Node, path: Path, lines: dict[Path, int]) -> object:
    lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > _DEEPEST:
        raise CodecError((), f"line {lines[path]}: nested more than {_DEEPEST} deep")
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*path, i), lines) for i, item in enumerate(node.value)]
    found: object = loader.construct_object(node)
    return found


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise CodecError((), f"line {line}: a key that is not text; quote it")
        if key in found:
            raise CodecError((), f"line {line}: {key} stands here twice; keep one of them")
        lines[(*path, key)] = line
        found[key] = _value(loader, value_node, (*path, key), lines)
    return found
