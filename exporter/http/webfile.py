# SPDX-License-Identifier: Apache-2.0
"""
The web configuration's file, and the certificates that it names: read, and read again when one of them changes.

Looked at when somebody asks, at most once a second. A file that has become unusable leaves the last good one in force
and says so in the log: half a file on its way to the disk must not end the scrapes. What is handed out holds the
certificates themselves, so that whoever speaks TLS need not be able to read files.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from exporter.http.tls import server_context
from exporter.http.webconfig import Tls, WebConfig, WebConfigError, load
from isolation.host.reloading import LOOK_SECONDS, Reloading, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isolation.host.reloading import Stamp


class WebFile:
    """Raises WebConfigError where there is no good one to begin with."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._tls: bool | None = None
        """Whether the first configuration has TLS; None: it is being read."""
        self._reloading = Reloading(self._load, self._stamp, WebConfigError, "web configuration")
        self._tls = self.config.tls is not None
        self._looked = clock()

    @property
    def config(self) -> WebConfig:
        """What is in force, with the contents of the files that it names."""
        return self._reloading.current

    def changed(self) -> WebConfig | None:
        """The configuration, where the file or one that it names is another than before; else None."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        return self.config if self._reloading.refresh() else None

    def _load(self) -> tuple[WebConfig, Stamp]:
        """The file as it is with what it names, and their stamp, each taken before the file is read."""
        stamp = stamp_of([self._path])
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise WebConfigError(f"{self._path}: cannot read file: {getattr(exc, 'strerror', None) or exc}") from None
        try:
            config = load(text)
            stamp += stamp_of(self._named(config))
            if config.tls is not None:
                config = replace(config, tls=_with_contents(config.tls, self._path.parent))
        except WebConfigError as exc:
            raise WebConfigError(f"{self._path}: {exc}") from None
        if self._tls not in {None, config.tls is not None}:
            raise WebConfigError(f"{self._path}: TLS can be switched on or off only by a restart")
        return config, stamp

    def _stamp(self, config: WebConfig) -> Stamp:
        return stamp_of([self._path, *self._named(config)])

    def _named(self, config: WebConfig) -> list[Path]:
        return [self._path.parent / name for name in (config.tls.files if config.tls is not None else ())]


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
