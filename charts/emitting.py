# SPDX-License-Identifier: Apache-2.0
"""
The text of a template from a tree: YAML, conditions as lines of their own, comments as in the manifests.

Pure. `Raw`, `Block` and `Embedded` stand for what is no plain value.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from charts.merging import Branch, Choice, List, Map, identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from charts.sources import Place

_WORDS: Final = ("if ", "range ", "with ")
_FIRST: Final = ("apiVersion", "kind", "metadata", "name", "namespace")


@dataclass(frozen=True)
class Raw:
    """A scalar: its text in the template."""

    text: str


@dataclass(frozen=True)
class Block:
    """A map or a list: an expression that gives its YAML."""

    text: str


@dataclass(frozen=True)
class Embedded:
    """A string that is YAML itself."""

    node: Any


@dataclass(frozen=True)
class Style:
    """What the manifests say beside the values."""

    order: Mapping[Place, Sequence[str]] = field(default_factory=dict)
    comments: Mapping[Place, Sequence[str]] = field(default_factory=dict)


def emit(node: Any, style: Style, indent: int = 0, place: Place = ()) -> list[str]:
    """The lines of a tree, below the key or the dash in front of it."""
    pad = " " * indent
    if isinstance(node, Map):
        order = [*style.order.get(place, ()), *_FIRST]
        ranks = {key: rank for rank, key in enumerate(dict.fromkeys(order))}
        branches = sorted(node.branches, key=lambda branch: ranks.get(branch.key, len(ranks)))
        return _conditional(branches, pad, lambda one: _entry(one, style, indent, place))
    if isinstance(node, List):
        return _conditional(node.branches, pad, lambda one: _item(one, style, indent, place))
    raise TypeError(f"{node!r} stands behind its key")


def _entry(branch: Branch, style: Style, indent: int, place: Place) -> list[str]:
    inside = (*place, branch.key)
    pad = " " * indent
    said = [f"{pad}{line}" for line in style.comments.get(inside, ())]
    return said + _value(f"{pad}{_scalar(branch.key)}:", branch.node, style, indent, inside)


def _value(head: str, node: Any, style: Style, indent: int, place: Place) -> list[str]:
    pad = " " * indent
    if isinstance(node, Choice):
        lines: list[str] = []
        for at, one in enumerate(node.branches):
            word = ("if" if at == 0 else "else if") + f" {one.condition}" if one.condition else "else"
            lines += [f"{pad}{{{{- {word} }}}}", *_value(head, one.node, style, indent, place)]
        return [*lines, f"{pad}{{{{- end }}}}"]
    if isinstance(node, Map | List):
        if not node.branches:
            return [f"{head} {'{}' if isinstance(node, Map) else '[]'}"]
        return [head, *emit(node, style, indent + 2, place)]
    if isinstance(node, Block):
        return [head, f"{pad}  {{{{- {node.text} | nindent {indent + 2} }}}}"]
    if isinstance(node, Embedded):
        return [f"{head} |", *emit(node.node, style, indent + 2, place)]
    if isinstance(node, str) and "{{" in node:
        if '{{ include "gpushare.' not in node or "\n" in node:
            raise ValueError(f"a template would read the braces of {node!r}")
        return [f"{head} |-", f"{pad}  {node}"]
    if isinstance(node, str) and "\n" in node:
        mark = "|" if node.endswith("\n") else "|-"
        return [f"{head} {mark}", *(f"{pad}  {line}".rstrip() for line in node.rstrip("\n").split("\n"))]
    return [f"{head} {_scalar(node)}"]


def _item(branch: Branch, style: Style, indent: int, place: Place) -> list[str]:
    node, pad = branch.node, " " * indent
    inside = (*place, _identity(node))
    said = [f"{pad}{line}" for line in style.comments.get(inside, ())]
    if isinstance(node, Map) and node.branches:
        lines = emit(node, style, indent + 2, inside)
        if lines[0].lstrip().startswith(("#", "{{")):
            return [*said, f"{pad}-", *lines]
        return [*said, f"{pad}- {lines[0].lstrip()}", *lines[1:]]
    return [*said, *_value(f"{pad}-", node, style, indent, inside)]


def _identity(node: Any) -> str:
    """As `identity` of the value: of one that conditions change, its name."""
    try:
        return identity(_plain(node))
    except (TypeError, StopIteration):
        return ""


def _plain(node: Any) -> Any:
    if isinstance(node, Map):
        return {branch.key: _plain(branch.node) for branch in node.branches if not branch.condition}
    if isinstance(node, List):
        return [_plain(branch.node) for branch in node.branches if not branch.condition]
    return _plain(node.branches[-1].node) if isinstance(node, Choice) else node


def _conditional(branches: Sequence[Branch], pad: str, lines: Any) -> list[str]:
    """Neighbours with the same condition share it."""
    found: list[str] = []
    for condition, group in itertools.groupby(branches, key=lambda branch: branch.condition):
        inner = [line for branch in group for line in lines(branch)]
        head = condition if condition.startswith(_WORDS) else f"if {condition}"
        found += [f"{pad}{{{{- {head} }}}}", *inner, f"{pad}{{{{- end }}}}"] if condition else inner
    return found


def _scalar(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    written: str = yaml.safe_dump(value, width=1_000_000, allow_unicode=True)
    return written.removesuffix("\n").removesuffix("\n...")


def walk(node: Any, place: Sequence[str] = ()) -> Iterator[tuple[Place, Branch]]:
    """Every branch of a tree with its place."""
    if isinstance(node, Map | List):
        for branch in node.branches:
            step = branch.key if isinstance(node, Map) else _identity(branch.node)
            inside = (*place, step)
            yield inside, branch
            yield from walk(branch.node, inside)
    elif isinstance(node, Embedded):
        yield from walk(node.node, place)
