# SPDX-License-Identifier: Apache-2.0
"""
Which of our device IDs the kubelet has given to which pods, by the file in which it keeps them over a restart.

Read only. The format is the kubelet's own (pkg/kubelet/cm/devicemanager/checkpoint, kubelet 1.20 and newer): where it
cannot be read, nothing is known, and what was known stays.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_log: Final = logging.getLogger(__name__)
FILE: Final = "kubelet_internal_checkpoint"
_MAX_BYTES: Final = 64 << 20


class Checkpoint:
    """See the module; one resource."""

    def __init__(self, folder: Path, resource: str) -> None:
        self._file, self._resource = folder / FILE, resource
        self._stamp: tuple[int, int, int] | None = None
        self._given: Mapping[str, frozenset[str]] = {}
        self._told = ""

    def used(self) -> frozenset[str]:
        """Device IDs of containers."""
        return frozenset[str]().union(*self._now().values())

    def used_by(self, uids: Collection[str]) -> frozenset[str]:
        """Device IDs of containers of these pods."""
        return frozenset[str]().union(*(ids for uid, ids in self._now().items() if uid in uids))

    def pods(self) -> frozenset[str]:
        """UIDs of pods that were admitted with some."""
        return frozenset(self._now())

    def _now(self) -> Mapping[str, frozenset[str]]:
        """Device IDs by pod UID; read again when the file has changed."""
        try:
            about = self._file.stat()
            stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
            if stamp != self._stamp:
                self._given, self._stamp = self._read(), stamp
        except FileNotFoundError:
            self._given, self._stamp = {}, None  # a kubelet that has given nothing to anybody
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            if str(exc) != self._told:
                _log.warning("cannot read %s: %s", self._file, exc)
            self._told = str(exc)
        return self._given

    def _read(self) -> Mapping[str, frozenset[str]]:
        with self._file.open("rb") as file:
            record = json.loads(file.read(_MAX_BYTES))
        found: dict[str, frozenset[str]] = {}
        for entry in record["Data"]["PodDeviceEntries"] or []:
            if entry["ResourceName"] == self._resource:
                ids = frozenset(str(one) for by_numa in entry["DeviceIDs"].values() for one in by_numa)
                found[entry["PodUID"]] = found.get(entry["PodUID"], frozenset()) | ids
        return found
