# SPDX-License-Identifier: Apache-2.0
"""
The configuration file as it lies on the disk: read at the start, and again whenever its bytes change.

Decides that a file that cannot be used changes nothing: the last good one stays in force, and why is said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from autoscaler.kube.config.reader import read_config
from autoscaler.kube.config.yaml_lines import MAX_BYTES
from autoscaler.kube.core.config import Config, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


class ConfigFile:
    """One file; without a path the configuration is an empty one for good."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._raw: bytes | None = None
        self.problem = ""
        """Why the file is not in force, on one line; empty: it is."""
        self.loaded: float | None = None
        """When what is in force was read, since the epoch; None: nothing is."""

    def first(self) -> Config:
        """At the start; ConfigError where it cannot be used."""
        if self._path is None:
            self.loaded = time.time()
            return Config()
        self._raw = self._read(self._path)
        return read_config(self._raw, str(self._path))

    async def news(self) -> Config | None:
        """`look` in a thread: a large file takes half a second, and the Lease is to be renewed meanwhile."""
        return await asyncio.to_thread(self.look)

    def look(self) -> Config | None:
        """What the file says now, if that is new and can be read; `accept` or `refuse` it."""
        if self._path is None:
            return None
        try:
            raw = self._read(self._path)
            if raw == self._raw:
                return None
            self._raw = raw
            return read_config(raw, str(self._path))
        except ConfigError as exc:
            self.refuse(str(exc))
            return None

    def accept(self) -> None:
        """What was read last is in force."""
        if self.loaded is not None and self._path is not None:
            log.info("reloaded configuration file %s", self._path)
        self.problem, self.loaded = "", time.time()

    def refuse(self, why: str) -> None:
        """What was read last cannot be used."""
        said = "; ".join(why.splitlines())
        if said != self.problem:
            log.error("invalid configuration file: %s: %s", self.instead, said)
        self.problem = said

    @property
    def instead(self) -> str:
        """What holds while the file cannot be used."""
        if self.loaded is None:
            return "no configuration is in force, and nothing is done"
        return "the previous configuration stays in force"

    def _read(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as exc:
            raise ConfigError(f"{path}: cannot read the file: {exc.strerror}") from None
        if not raw.strip():
            raise ConfigError(f"{path}: the file is empty; write at least `pools: []`")
        return raw
