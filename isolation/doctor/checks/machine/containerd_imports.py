# SPDX-License-Identifier: Apache-2.0
"""
The files that containerd's configuration imports, in its order.

Decides which names a pattern means, in the machine's file system and nowhere else; bounded, since the
pattern is somebody else's text.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from posixpath import basename, dirname, join, normpath
from typing import TYPE_CHECKING, Final

from isolation.doctor.bounded_files import Folder, Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.doctor.bounded_files import Peek

_MOST_FILES: Final = 32
_MAIN: Final = "/etc/containerd"


def parts_of(text: Text, peek: Peek) -> Iterator[Text]:
    """What each imported file says."""
    if not isinstance(text, str):
        return
    try:
        patterns = tomllib.loads(text).get("imports", [])
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return
    given = 0
    for pattern in patterns if isinstance(patterns, list) else []:
        if not isinstance(pattern, str):
            continue
        path = normpath(join(_MAIN, pattern))
        folder = peek.folder(dirname(path))
        names = folder.names if isinstance(folder, Folder) else ()
        for name in names:
            if fnmatchcase(name, basename(path)) and given < _MOST_FILES:
                given += 1
                yield peek.text(join(dirname(path), name))
