# SPDX-License-Identifier: Apache-2.0
"""
Which of our device IDs the kubelet has given to containers, by the file in which it keeps them over a restart.

Read only. The format is the kubelet's own (pkg/kubelet/cm/devicemanager/checkpoint, kubelet 1.20 and newer): where it
cannot be read, nothing is known, and what was known stays.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_log: Final = logging.getLogger(__name__)
FILE: Final = "kubelet_internal_checkpoint"
_MOST_BYTES: Final = 64 << 20


class Checkpoint:
    """See the module; one resource."""

    def __init__(self, folder: Path, resource: str) -> None:
        self._file, self._resource = folder / FILE, resource
        self._stamp: tuple[int, int, int] | None = None
        self._used: frozenset[str] = frozenset()
        self._told = ""

    def used(self) -> frozenset[str]:
        """Device IDs of containers; read again when the file has changed."""
        try:
            about = self._file.stat()
            stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
            if stamp != self._stamp:
                self._used, self._stamp = self._read(), stamp
        except FileNotFoundError:
            self._used, self._stamp = frozenset(), None  # a kubelet that has given nothing to anybody
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            if str(exc) != self._told:
                _log.warning("cannot read %s: %s", self._file, exc)
            self._told = str(exc)
        return self._used

    def _read(self) -> frozenset[str]:
        with self._file.open("rb") as file:
            record = json.loads(file.read(_MOST_BYTES))
        entries = record["Data"]["PodDeviceEntries"] or []
        mine = [entry["DeviceIDs"] for entry in entries if entry["ResourceName"] == self._resource]
        return frozenset(str(one) for by_numa in mine for ids in by_numa.values() for one in ids)
