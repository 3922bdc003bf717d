# SPDX-License-Identifier: Apache-2.0
"""
What kustomize loses of the manifests: in which file an object stands, the order of its keys, and the comments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from charts.merging import identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Key = tuple[str, str]
"""Kind and name."""
Place = tuple[str, ...]
"""Keys, and identities of items of lists."""


@dataclass
class Source:
    """One object."""

    file: str
    """Below `base`, `components` or `overlays`."""
    order: dict[Place, list[str]] = field(default_factory=dict)
    comments: dict[Place, list[str]] = field(default_factory=dict)


def read_sources(manifests: Path) -> dict[Key, Source]:
    """Every object that a file has whole."""
    found: dict[Key, Source] = {}
    for root in ("overlays", "components", "base"):
        for path in sorted((manifests / root).rglob("*.yaml")):
            if path.name != "kustomization.yaml":
                found |= dict(_read(path.read_text(), str(path.relative_to(manifests / root))))
    return found


def _read(text: str, file: str) -> Iterator[tuple[Key, Source]]:
    lines = text.splitlines()
    before = 0
    for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
        if not isinstance(node, yaml.MappingNode):
            continue
        value = yaml.SafeLoader("").construct_document(node)
        source = Source(file)
        _walk(node, value, (), lines, source)
        first = node.start_mark.line
        source.comments[()] = [line for line in lines[before:first] if line.startswith("#")]
        before = node.end_mark.line
        if "metadata" in value and "name" in value["metadata"]:
            yield (value["kind"], value["metadata"]["name"]), source


def _walk(node: yaml.Node, value: Any, place: Place, lines: list[str], source: Source) -> None:
    if isinstance(node, yaml.MappingNode):
        source.order[place] = list(value)
        for key, child in node.value:
            if place or key.start_mark.line != node.start_mark.line:
                _comment(key, child, (*place, key.value), lines, source)
            _walk(child, value[key.value], (*place, key.value), lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for child, item in zip(node.value, value, strict=True):
            inside = (*place, identity(item))
            _comment(child, child, inside, lines, source)
            _walk(child, item, inside, lines, source)


def _comment(start: yaml.Node, end: yaml.Node, place: Place, lines: list[str], source: Source) -> None:
    """Lines of comment above, and the one behind, where nothing else of the line precedes what they speak of."""
    at = start.start_mark.line
    head = lines[at][: start.start_mark.column].strip()
    if head not in ("", "-"):
        return
    found: list[str] = []
    line = at - 1
    while line >= 0 and lines[line].lstrip().startswith("#"):
        found.insert(0, lines[line].strip())
        line -= 1
    whole = getattr(end, "flow_style", None) or (isinstance(end, yaml.ScalarNode) and end.style not in ("|", ">"))
    mark = end.end_mark if whole else start.start_mark
    if (behind := lines[mark.line][mark.column :].partition("#" if whole else " #")[2]) and found[-1:] != [behind]:
        found.append(f"#{behind}")
    if found and found not in source.comments.values():
        source.comments[place] = found


def key_of(thing: dict[str, Any]) -> Key:
    """The key of a built object."""
    return thing["kind"], thing["metadata"]["name"]


def canonical(thing: Any) -> str:
    """The same for equal objects."""
    return json.dumps(thing, sort_keys=True)
