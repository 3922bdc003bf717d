# SPDX-License-Identifier: Apache-2.0
"""
The web configuration's file, and the certificates that it names: read, and read again when one of them changes.

Looked at when somebody asks, at most once a second. A file that has become unusable leaves the last good one in force
and says so in the log: half a file on its way to the disk must not end the scrapes. What is handed out holds the
certificates themselves, so that whoever speaks TLS need not be able to read files.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from exporter.http.tls import server_context
from exporter.http.webconfig import Tls, WebConfig, WebConfigError, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0


class WebFile:
    """Raises WebConfigError where there is no good one to begin with."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self.config, self._stamp = self._load()
        self._looked = clock()
        self._failed: tuple[object, ...] | None = None

    def changed(self) -> WebConfig | None:
        """The configuration, where the file or one that it names is another than before; else None."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        stamp = _stamp(self._path, self.config.tls)
        if stamp in {self._stamp, self._failed}:
            return None
        try:
            config, stamp = self._load()
            self._like_before(config)
        except WebConfigError as exc:
            self._failed = stamp
            _log.error("cannot load web configuration %s; keeping the previous one", exc)
            return None
        self._failed = None
        self.config, self._stamp = config, stamp
        _log.info("reloaded web configuration %s", self._path)
        return config

    def _like_before(self, config: WebConfig) -> None:
        if (config.tls is None) != (self.config.tls is None):
            raise WebConfigError(f"{self._path}: TLS can be switched on or off only by a restart")

    def _load(self) -> tuple[WebConfig, tuple[object, ...]]:
        """The file as it is, with what it names, and what will change with it."""
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise WebConfigError(f"{self._path}: cannot read file: {getattr(exc, 'strerror', None) or exc}") from None
        try:
            config = load(text)
            # the stamp is taken first: what changes while we read is read again
            stamp = _stamp(self._path, config.tls)
            if config.tls is not None:
                config = replace(config, tls=_with_contents(config.tls, self._path.parent))
        except WebConfigError as exc:
            raise WebConfigError(f"{self._path}: {exc}") from None
        return config, stamp


def _with_contents(tls: Tls, folder: Path) -> Tls:
    """The same with contents beside the names of files, which are relative to the configuration's."""

    def content(text: str, name: str) -> str:
        if not name:
            return text
        try:
            return (folder / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise WebConfigError(f"tls_server_config: cannot load {name}: {reason}") from None

    found = replace(
        tls,
        cert=content(tls.cert, tls.cert_file),
        key=content(tls.key, tls.key_file),
        client_ca=content(tls.client_ca, tls.client_ca_file),
    )
    server_context(found)  # a pair that does not fit is refused before it is served with
    return found


def _stamp(path: Path, tls: Tls | None) -> tuple[object, ...]:
    """What changes when one of the files does; a Secret's files are links, and it is their targets that change."""
    found: list[object] = []
    for file in (path, *(path.parent / name for name in (tls.files if tls is not None else ()))):
        try:
            about = file.stat()
        except OSError as exc:
            found.append(exc.errno)
        else:
            found.append((about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)
