# SPDX-License-Identifier: Apache-2.0
"""JSON values with one place replaced by junk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[Any, ...]


def places(value: object, path: Path = ()) -> Iterator[Path]:
    """Every path in a value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def damaged(value: Any, path: Path, junk: object) -> Any:
    """A copy with one place replaced."""
    if not path:
        return junk
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = damaged(value[path[0]], path[1:], junk)
    return copy
