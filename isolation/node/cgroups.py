# SPDX-License-Identifier: Apache-2.0
"""
Processes of a pod's containers, by the kernel's control groups.

Both versions, both of the kubelet's drivers, and a cluster within a container. A pod whose group is gone has
no processes; where no pods' tree is found at all, nothing can be told and None is the answer, never False.
Forms: kubelet, pkg/kubelet/cm (cgroupfs: kubepods/burstable/pod<uid>; systemd:
kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with underscores>.slice).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

ROOT: Final = Path("/sys/fs/cgroup")
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_PODS: Final = re.compile(r"kubepods|(?:[a-z0-9]+-)*kubepods\.slice")
_QOS: Final = re.compile(r"burstable|besteffort|(?:[a-z0-9]+-)*kubepods-(?:burstable|besteffort)\.slice")
_PROCS: Final = "cgroup.procs"
_DEEPEST: Final = 5
"""Levels from the root to the pods' tree: hierarchy, machine, container, kubelet, tree."""
_IN_NAME: Final = ":"
"""In the name of a group that is a container's, where that containerd puts it beside its pod's name."""
_MONITOR: Final = "crio-conmon-"
"""Before a container's id in the name of the group of CRI-O's own process beside it (conmon_cgroup = "pod")."""
_OLD: Final = "system.slice/containerd.service"
"""Where a containerd without the systemd driver puts containers that the kubelet names by slice."""


class KernelCgroups:
    """Fulfils `allocations.ProcessLookup`."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._trees: tuple[Path, ...] = ()

    def pids(self, uid: str, container: str) -> frozenset[int] | None:
        """See `allocations.ProcessLookup`."""
        return self._pids(uid, lambda group: container in group.name)

    def group(self, uid: str, container: str) -> Path | None:
        """A container's own group of cgroup version 2; None: it has none, or it cannot be told."""
        groups = (group for pod in self._of(uid) or () for group in _children(pod))
        return next((one for one in groups if container in one.name and (one / "cgroup.controllers").is_file()), None)

    def strays(self, uid: str, known: Collection[str]) -> frozenset[int] | None:
        """See `allocations.ProcessLookup`."""
        return self._pids(uid, lambda group: not any(one in group.name for one in known))

    def _pids(self, uid: str, chosen: Callable[[Path], bool]) -> frozenset[int] | None:
        """Processes of the containers of a pod whose groups are chosen."""
        found = self._look(uid, chosen)
        if not found:
            self._trees = ()  # nobody is called dead before every hierarchy was looked for again
            found = self._look(uid, chosen)
        return found

    def _look(self, uid: str, chosen: Callable[[Path], bool]) -> frozenset[int] | None:
        pods = self._of(uid)
        if pods is None:
            return None
        groups = [group for pod in pods for group in ((pod,) if _IN_NAME in pod.name else _children(pod))]
        mine = (group for group in groups if chosen(group) and not group.name.startswith(_MONITOR))
        return frozenset(pid for group in mine for pid in _pids(group))

    def _of(self, uid: str) -> list[Path] | None:
        """The pod's groups, in every hierarchy."""
        if not _UID.fullmatch(uid):
            return None
        trees = self._pod_trees()
        if not trees:
            return None
        names = re.compile(rf"(?:.*-)?pod(?:{uid}|{uid.replace('-', '_')}(?:\.slice)?)(?::.*)?")
        return [group for tree in trees for group in _pods_in(tree) if names.fullmatch(group.name)]

    def _pod_trees(self) -> tuple[Path, ...]:
        """Where pods are; looked for until there is one, for the kubelet may come later than we."""
        if not self._trees or not all(tree.is_dir() for tree in self._trees):
            self._trees = tuple(_find(self._root, _DEEPEST))
        return self._trees


def _find(folder: Path, levels: int) -> Iterator[Path]:
    for child in _children(folder):
        if _PODS.fullmatch(child.name) or str(child).endswith(_OLD):
            yield child
        elif levels > 1:
            yield from _find(child, levels - 1)


def _pods_in(tree: Path) -> Iterator[Path]:
    for child in _children(tree):
        if _QOS.fullmatch(child.name):
            yield from _children(child)
        else:
            yield child


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _pids(group: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        yield from map(int, (group / _PROCS).read_text("ascii").split())
    for child in _children(group):
        yield from _pids(child)
