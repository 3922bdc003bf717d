# SPDX-License-Identifier: Apache-2.0
"""
Where the agent's book lies: one file, replaced as a whole, on the disk before anybody is told.

Decides nothing about what the text says.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from isolation.files import replace_file
from isolation.node.book import MOST_CHARS
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from pathlib import Path

BOOK: Final = "checkpoint.json"


class FileShelf:
    """Fulfils `world.Shelf`."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / BOOK

    def load(self) -> str | None:
        """See `world.Shelf`."""
        try:
            with self._path.open("rb") as file:
                return file.read(MOST_CHARS + 1).decode("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise UnreachableError(f"cannot read {self._path}: {exc}") from None

    async def save(self, text: str) -> None:
        """See `world.Shelf`."""
        try:
            await asyncio.to_thread(self._save, text)
        except OSError as exc:
            raise UnreachableError(f"cannot write {self._path}: {exc.strerror}") from None

    def _save(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, text, 0o600)
