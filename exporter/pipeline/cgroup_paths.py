# SPDX-License-Identifier: Apache-2.0
"""
Which pod and which container a control group belongs to, from the text of /proc/<pid>/cgroup.

Pure. A process may have moved itself into a group of any name below its own, so what stands outermost
decides: the first pod in the path, and the container right below it. What a container nests (another
container engine, a cluster) is the container's own. Below the pod that holds the exporter's own kubelet
(a cluster inside a pod) the count begins there.

A path is believed only as far as nobody but root could have made it: the callers check who owns
`CgroupPlace.within`, for a user's own subtree may hold a `kubepods` too.

Forms: cgroup v1 and v2, systemd and cgroupfs drivers, containerd, CRI-O, docker, podman; private cgroup
namespaces show others' groups as /../../<group>.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
ROOT: Final = re.compile(r"kubepods|(?:[a-z0-9]+-)*kubepods\.slice")
QOS: Final = re.compile(r"burstable|besteffort|(?:[a-z0-9]+-)*kubepods-(?:burstable|besteffort)\.slice")
POD: Final = re.compile(
    rf"(?P<named>(?:[a-z0-9]+-)*kubepods(?:-(?:burstable|besteffort))?-)?pod(?P<uid>{UID})(?:\.slice)?"
    r"(?::[a-z][a-z0-9-]*:(?P<container>[0-9a-f]{64}))?"
)
_CONTAINER: Final = re.compile(r"(?:(?!crio-conmon-|libpod-conmon-)[a-z][a-z0-9-]*-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_DELETED: Final = " (deleted)"
_UP: Final = ".."


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """Where a control group lies."""

    pod_uid: str = ""
    """Dashed, or a static pod's 32 hex digits."""
    container_id: str = ""
    """64 hex digits."""
    within: str = ""
    """The group in which the pods' or the container's own begins; empty: the root of what we see."""


NOWHERE: Final = CgroupPlace()


def paths(text: str) -> Iterator[tuple[bool, str]]:
    """(is it the unified hierarchy, path) for each line."""
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            yield hierarchy == "0", path.removesuffix(_DELETED)


def place(text: str, below: str = "") -> CgroupPlace:
    """The place that the hierarchies tell of; the first that knows a pod, else the first with a container."""
    found = NOWHERE
    for _, path in paths(text):
        here = place_of(path, below)
        if here.pod_uid:
            return here
        if not found.container_id:
            found = here
    return found


def place_of(path: str, below: str = "") -> CgroupPlace:
    """Likewise for one path. `below`: where the exporter's own pods begin (see `nest`)."""
    if below and path.startswith(f"{below}/"):
        path = path.removeprefix(below)
    segments = path.strip("/").split("/")
    ups = 0
    while ups < len(segments) and segments[ups] == _UP:
        ups += 1
    named = segments[ups:]
    return _in_pod(named, relative=ups > 0) or _in_container(named) or NOWHERE


def nest(text: str) -> str:
    """Where the pods of the exporter's own kubelet begin, if it runs in a pod inside a pod; else nothing."""
    longest = ""
    for _, path in paths(text):
        segments = path.strip("/").split("/")
        pods = [at for at, segment in enumerate(segments) if POD.fullmatch(segment)]
        if len(pods) > 1:
            roots = [at for at in range(pods[-1]) if ROOT.fullmatch(segments[at])]
            longest = max(longest, "/" + "/".join(segments[: roots[-1] if roots else pods[-1]]), key=len)
    return longest


def _in_pod(segments: Sequence[str], *, relative: bool) -> CgroupPlace | None:
    begins: int | None = 0 if relative else None
    """Where the pods' own tree begins; beside us in it, its name is not shown."""
    for at, segment in enumerate(segments):
        pod = POD.fullmatch(segment)
        if pod and (pod["named"] or begins is not None):
            inner = _CONTAINER.fullmatch(segments[at + 1]) if at + 1 < len(segments) else None
            container = pod["container"] or (inner["id"] if inner else "")
            within = segments[: at if begins is None else begins]
            return CgroupPlace(pod["uid"].replace("_", "-"), container, "/".join(within))
        if ROOT.fullmatch(segment):
            begins = at if begins is None else begins
        elif relative and begins == 0 and not QOS.fullmatch(segment):
            relative, begins = False, None  # another tree after all
    return None


def _in_container(segments: Sequence[str]) -> CgroupPlace | None:
    for at, segment in enumerate(segments):
        found = _CONTAINER.fullmatch(segment)
        if found:
            return CgroupPlace("", found["id"], "/".join(segments[:at]))
    return None
