# SPDX-License-Identifier: Apache-2.0
"""
Which pods have a control group: the kernel's word on who lives, older and younger than no pod record.

Looks for the kubelet's folders in version 1 and 2, of both drivers, also inside the container of a
kind node. Reads names of folders and nothing in them. A tree that somebody without privileges made
does not count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from exporter.pipeline.cgroup_paths import POD, QOS, ROOT

DEPTH: Final = 4
"""/system.slice/docker-<id>.scope/kubelet.slice/kubelet-kubepods.slice"""
HIERARCHIES: Final = ("systemd", "memory", "pids", "cpu", "devices", "unified")
"""Of version 1: the kubelet makes the same folders in each, one is enough."""
MAX_FOLDERS: Final = 4000
SEARCH_SECONDS: Final = 60.0
"""How often the folders are looked for, once they are known or there are none."""


class LivePods:
    """Remembers where the kubelet's folders are."""

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup
        self._roots: tuple[str, ...] = ()
        self._search_at = float("-inf")

    def read(self, now: float) -> frozenset[str] | None:
        """UIDs; None where no kubelet's folder is to be seen."""
        if now - self._search_at >= SEARCH_SECONDS or not all(Path(root).is_dir() for root in self._roots):
            self._search_at = now
            self._roots = tuple(self._search())
        if not self._roots:
            return None
        found: set[str] = set()
        for root in self._roots:
            for folder in _folders(root):
                if not _take(folder, found) and QOS.fullmatch(folder.name):
                    for below in _folders(folder.path):
                        _take(below, found)
        return frozenset(found)

    def _search(self) -> list[str]:
        """In the first hierarchy that has any."""
        if Path(self._cgroup, "cgroup.controllers").exists():
            return _roots(self._cgroup)
        below = (f"{self._cgroup}/{name}" for name in HIERARCHIES)
        return next((found for base in below if (found := _roots(base))), [])


def _roots(base: str) -> list[str]:
    """The kubelet's folders: breadth first, and no further below one."""
    level, found, seen = [base], [], 0
    for _ in range(DEPTH):
        deeper: list[str] = []
        for parent in level:
            for folder in _folders(parent):
                seen += 1
                if not ROOT.fullmatch(folder.name):
                    deeper.append(folder.path)
                elif made_by_root(parent):
                    found.append(folder.path)
            if seen > MAX_FOLDERS:
                return found
        level = deeper
    return found


def made_by_root(folder: str) -> bool:
    """Whether nobody but root, or we ourselves, can have made what is in the folder."""
    try:
        return Path(folder).stat().st_uid in {0, os.geteuid()}
    except OSError:
        return False


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _take(folder: os.DirEntry[str], found: set[str]) -> bool:
    pod = POD.fullmatch(folder.name)
    if pod:
        found.add(pod["uid"].replace("_", "-"))
    return pod is not None
