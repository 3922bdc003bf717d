# SPDX-License-Identifier: Apache-2.0
"""
What is built of files, and built again when one of them changes.

Decides when files are good enough to use. While a change is half written, or after one that is unusable, what was built
before stays in force.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0
"""How often whoever looks at files does so."""

Stamp: TypeAlias = tuple[tuple[int, ...], ...]
T = TypeVar("T")


class Reloading(Generic[T]):
    """The value built of the present files, or of the last ones that could be used."""

    def __init__(
        self,
        load: Callable[[], tuple[T, Stamp]],
        stamp: Callable[[T], Stamp],
        error: type[Exception],
        name: str = "",
    ) -> None:
        """
        `load`: a value and the stamp of its files, taken before they were read; raises `error`, as this does.

        `stamp`: of the files of a value, as they are now; `name`: for the log, empty: log nothing.
        """
        self._load, self._stamp_of, self._error, self._name = load, stamp, error, name
        self._warned: Stamp | None = None
        self.rebuild()

    def rebuild(self) -> None:
        """Load what is in the files now, changed or not."""
        self.current, self._stamp = self._load()

    def refresh(self) -> bool:
        """Take what is in the files now, if it has changed and is whole; whether it was taken."""
        stamp = self._stamp_of(self.current)
        if stamp == self._stamp:
            return False
        try:
            fresh, read = self._load()
        except self._error as exc:
            # loaded again at every look, since mended permissions change no stamp, and logged once
            if self._name and stamp != self._warned:
                log.warning("cannot reload %s, keeping the previous one: %s", self._name, exc)
            self._warned = stamp
            return False
        # changed again while it was read: what was read may be of two generations
        if self._stamp_of(fresh) != read:
            return False
        self.current, self._stamp, self._warned = fresh, read, None
        if self._name:
            log.info("reloaded %s", self._name)
        return True


def stamp_of(paths: Iterable[Path]) -> Stamp:
    """What changes when one of these files does; the files of a Secret's volume are links, which are followed."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as exc:
        return (exc.errno or 0,)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
