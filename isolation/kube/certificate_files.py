# SPDX-License-Identifier: Apache-2.0
"""
Certificate files as they lie on the disk: whether they have changed, and that no key asks for a password.

Decides nothing about whom they vouch for; each server has its own rules about that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]


def stamp(paths: Iterable[Path | None]) -> Stamp:
    """What changes with the files' content; a Secret's volume is a chain of links, which are followed."""
    return tuple(_stamp(path) for path in paths)


def no_password() -> str:
    """For `load_cert_chain`, which would otherwise ask on the terminal."""
    raise ValueError("private key is encrypted: use an unencrypted key")


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
