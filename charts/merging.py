# SPDX-License-Identifier: Apache-2.0
"""
One tree from several builds of the same objects: what differs stands under the condition of the switch that changes it.

Pure. A switch is one overlay or component; each build has one switch on, the first has none. Builds with several
switches on are not merged: a test compares the chart with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MISSING: Final = object()


@dataclass
class Branch:
    """A part of a list or a map, and the condition under which it is there; an empty one is always true."""

    condition: str
    node: Any
    key: str = ""


@dataclass
class Map:
    """A map; a key can stand in several branches."""

    branches: list[Branch]


@dataclass
class List:
    """A list."""

    branches: list[Branch]


@dataclass
class Choice:
    """The first node whose condition is true, else the last one, without a condition."""

    branches: list[Branch]


def one_of(conditions: Iterable[str]) -> str:
    """The condition that one of these is true."""
    listed = [f"({one})" if " " in one else one for one in dict.fromkeys(conditions)]
    return f"or {' '.join(listed)}" if len(listed) > 1 else listed[0].removeprefix("(").removesuffix(")")


def none_of(conditions: Iterable[str]) -> str:
    """The condition that none of these is true."""
    either = one_of(conditions)
    return f"not ({either})" if " " in either else f"not {either}"


def merge(base: Any, builds: Mapping[str, Any]) -> Any:
    """The tree of a value that is there without a switch and with each; `builds` are by the switches' conditions."""
    changed = {condition: value for condition, value in builds.items() if value != base}
    if isinstance(base, dict) and all(isinstance(value, dict) for value in changed.values()):
        keys = dict.fromkeys(key for value in (base, *changed.values()) for key in value)
        found = {key: place(*_at(key, base, builds)) for key in keys}
        return Map([Branch(condition, node, key) for key, (condition, node) in found.items()])
    if isinstance(base, list) and all(isinstance(value, list) for value in changed.values()):
        return List(_items(base, builds))
    if not changed:
        return base
    options = [Branch(condition, plain(value)) for condition, value in changed.items()]
    return Choice([*options, Branch("", base)])


def plain(value: Any) -> Any:
    """The tree of a value that is the same everywhere."""
    return merge(value, {})


def place(base: Any, builds: Mapping[str, Any]) -> tuple[str, Any]:
    """The condition and the tree of a value that may be MISSING from each build."""
    there = {condition: value for condition, value in builds.items() if value is not MISSING}
    if base is not MISSING:
        gone = [condition for condition, value in builds.items() if value is MISSING]
        return none_of(gone) if gone else "", merge(base, there)
    first, *others = there.values()
    if any(one != first for one in others):
        raise ValueError(f"{', '.join(there)} add different values at one place: {first!r}")
    return one_of(there), plain(first)


def identity(item: Any) -> str:
    """What an item of a list is recognised by: its name, else all of it."""
    named = item.get("name") if isinstance(item, dict) else None
    return f"name {named}" if named is not None else json.dumps(item, sort_keys=True)


def _at(key: str, base: Any, builds: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    return base.get(key, MISSING), {condition: value.get(key, MISSING) for condition, value in builds.items()}


def _items(base: Sequence[Any], builds: Mapping[str, Any]) -> list[Branch]:
    order = [identity(item) for item in base]
    by_identity = [dict(zip(order, base, strict=True))]
    for value in builds.values():
        names = _recognised(base, value)
        order = _with(order, names)
        by_identity.append(dict(zip(names, value, strict=True)))
    if any(len(found) != len(value) for found, value in zip(by_identity, (base, *builds.values()), strict=True)):
        raise ValueError(f"a list has an item twice: {base!r}")
    branches = []
    for name in order:
        first, *others = (found.get(name, MISSING) for found in by_identity)
        branches.append(Branch(*place(first, dict(zip(builds, others, strict=True)))))
    return branches


def _recognised(base: Sequence[Any], value: Sequence[Any]) -> list[str]:
    """Identities of another build's items; what stands there instead of a map of the base is that map, changed."""
    before, after = [identity(item) for item in base], [identity(item) for item in value]
    for what, start, end, begin, until in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        maps = all(isinstance(item, dict) for item in (*base[start:end], *value[begin:until]))
        if what == "replace" and maps and end - start == until - begin:
            after[begin:until] = before[start:end]
    return after


def _with(order: Sequence[str], more: Sequence[str]) -> list[str]:
    """`order` with what is new in `more`, each after what precedes it there and after what others have put there."""
    known, found, at = set(order), list(order), 0
    for name in more:
        if name in known:
            at = found.index(name, at) + 1
        else:
            while at < len(found) and found[at] not in more:
                at += 1
            found.insert(at, name)
            at += 1
    return found
