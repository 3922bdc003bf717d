# SPDX-License-Identifier: Apache-2.0
"""
Files that are written whole or not at all: what commands write for people, and what our processes keep.

Decides where nothing is written: into an installed package, which pip owns. What stands in them is their writer's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_MODE: Final = 0o644


def write_whole(texts: Mapping[Path, str]) -> None:
    """
    All of these files, or none where one cannot be written; OSError names the one.

    What is no ordinary file, such as /dev/stdout, is written as it is.
    """
    drafts: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            if path.exists() and not path.is_file():
                path.write_text(text, encoding="utf-8")
                continue
            drafts[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            with drafts[path].open("x", encoding="utf-8") as draft:
                draft.write(text)
                draft.flush()
                os.fsync(draft.fileno())
            drafts[path].chmod(path.stat().st_mode & 0o777 if path.exists() else _MODE)
        for path, draft_path in drafts.items():
            draft_path.replace(path.resolve())
    except OSError as exc:
        for draft_path in drafts.values():
            with contextlib.suppress(OSError):
                draft_path.unlink()
        raise OSError(exc.errno, exc.strerror, str(path)) from None


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """The text in that place, durable, seen whole or not at all. OSError."""
    draft = path.with_name(f".{path.name}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, mode)
        file.write(text)
        file.flush()
        os.fsync(fd)
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def installed(folder: Path) -> bool:
    """Whether the folder belongs to an installed package."""
    return not _INSTALLED.isdisjoint(folder.resolve().parts)
