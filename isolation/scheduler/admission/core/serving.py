# SPDX-License-Identifier: Apache-2.0
"""
Which dialects are served, and where they are left to the systems that they come from: read from two options.

The scheduler and the objects in the API server are made from the same two, or pods would be sent to a webhook that
does not translate them, or not sent at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import is_label_name
from isolation.contract.dialects import SYSTEMS
from isolation.contract.names import ACK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.dialects import System


@dataclass(frozen=True, slots=True)
class Serving:
    """See the module."""

    dialects: frozenset[str] = frozenset({ACK.name})
    left: frozenset[tuple[str, str]] = frozenset()
    """(dialect, namespace); an empty namespace says only that the other system is known to be there."""

    @property
    def on(self) -> tuple[System, ...]:
        """Systems other than ACK whose pods are translated."""
        return tuple(one for one in SYSTEMS.values() if one.name in self.dialects)

    @property
    def off(self) -> tuple[System, ...]:
        """All other systems."""
        return tuple(one for one in SYSTEMS.values() if one.name not in self.dialects)


ONLY_ACK: Final = Serving()


def parse_serving(dialects: str, left: Iterable[str] = ()) -> Serving:
    """
    `ack,hami` and entries such as `hami=team-a,team-b`, or `hami=` for no namespace; raises ValueError.

    ACK's words are what all others are translated into: they cannot be switched off.
    """
    named = [name.strip() for name in dialects.split(",") if name.strip()]
    known = (ACK.name, *SYSTEMS)
    for name in named:
        if name not in known:
            raise ValueError(f"dialect {name!r} is unknown: use {', '.join(known)}")
    if ACK.name not in named:
        raise ValueError(f"dialect {ACK.name} is missing: all others are translated into it; add {ACK.name}")
    found: set[tuple[str, str]] = set()
    for entry in left:
        name, equals, namespaces = entry.partition("=")
        if not equals or name not in named or name == ACK.name:
            raise ValueError(f"{entry!r} must be DIALECT=NAMESPACE,..., of a dialect that is switched on")
        listed = [one.strip() for one in namespaces.split(",") if one.strip()]
        if wrong := [one for one in listed if not is_label_name(one)]:
            raise ValueError(f"{wrong[0]!r} is not a name of a namespace")
        found |= {(name, one) for one in listed or [""]}
    return Serving(frozenset(named), frozenset(found))


def parse_trust_groups(entries: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Entries such as `research=ml,vision`, as pairs of a namespace and its group; raises ValueError."""
    found: dict[str, str] = {}
    for entry in entries:
        group, _, namespaces = entry.partition("=")
        listed = [one.strip() for one in namespaces.split(",") if one.strip()]
        if not listed or not all(map(is_label_name, (group, *listed))):
            raise ValueError(f"{entry[:80]!r} must be GROUP=NAMESPACE,..., each in lower-case letters, digits and -")
        for one in listed:
            if found.setdefault(one, group) != group:
                raise ValueError(f"namespace {one} is in the groups {found[one]} and {group}: name one")
    return tuple(sorted(found.items()))


def show_serving(systems: Serving) -> str:
    """The options that `parse_serving` reads."""
    by_dialect: dict[str, list[str]] = {}
    for name, namespace in sorted(systems.left):
        by_dialect.setdefault(name, []).append(namespace)
    shown = [f"--dialects {','.join(name for name in (ACK.name, *SYSTEMS) if name in systems.dialects)}"]
    return " ".join((*shown, *(f"--leave-to {name}={','.join(found)}" for name, found in by_dialect.items())))
