# SPDX-License-Identifier: Apache-2.0
"""
Container IDs to names, without the API server.

From the kubelet's Pods API where it has one (on by default from Kubernetes 1.37), else from the names of
its log folders and links: /var/log/containers/<pod>_<namespace>_<container>-<id>.log, which point to
/var/log/pods/<namespace>_<pod>_<uid>/<container>/<restart>.log. Logs are never opened.

Init, ephemeral and restarted containers each have an ID of their own. What an ID means never changes, so
it is read once: the Pods API, whose answer is whole pods, is asked only while somebody asks for an ID
that is not known, and for one that stays unknown ever more seldom; folders only when they have changed.
Names that no API server would let pass are not believed.
"""

from __future__ import annotations

import os
import re
import time
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from exporter.pipeline.snapshot import ContainerIdentity, IdentitySample
from exporter.sources.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from exporter.sources.grpc_channel import GrpcConnection

T = TypeVar("T")
PODS_API, LOG_FOLDER = "pods-api", "log-directory"
DEADLINE_SECONDS: Final = 1.0
REFRESH_SECONDS: Final = 60.0
"""How often the Pods API is asked when nobody is unknown, so that the pods that are gone are forgotten."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until an unknown ID is asked for again."""
REST_SECONDS: Final = 10.0
"""How long a Pods API that failed is left alone; the log folders tell meanwhile."""
_NEVER: Final = (float("-inf"), 0.0)
SETTLED_NS: Final = 100_000_000
"""Times of folders are as coarse as the kernel's clock: a few milliseconds."""
MAX_ENTRIES: Final = 20_000
_ID: Final = re.compile(r"[0-9a-f]{64}")
_LINK_ID: Final = re.compile(r"([0-9a-f]{12,64})\.log")
"""The kubelet cuts long names at the end, where the ID stands."""
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(_LABEL)
_POD_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain as Kubernetes checks it: as a whole at most 253 characters, its parts not limited."""
_UID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{32}")


_FOLDER: Final = (_NAME, _POD_NAME, _UID)


def identity(namespace: str, pod: str, container: str, uid: str) -> ContainerIdentity | None:
    """None where one of the names is none that Kubernetes allows."""
    fits = (
        _NAME.fullmatch(namespace) and _POD_NAME.fullmatch(pod) and _NAME.fullmatch(container) and _UID.fullmatch(uid)
    )
    return ContainerIdentity(namespace, pod, container, uid) if fits else None


def pod_folder(name: str) -> tuple[str, str, str] | None:
    """Namespace, name and UID of the pod whose logs such a folder holds."""
    parts = name.split("_")
    if len(parts) == len(_FOLDER) and all(form.fullmatch(part) for form, part in zip(_FOLDER, parts, strict=True)):
        return parts[0], parts[1], parts[2]
    return None


def from_link(name: str, target: str) -> tuple[str, ContainerIdentity] | None:
    """
    (container ID, or its beginning where the kubelet cut a long name; who it is). None: no link of the kubelet's.
    """
    _, folder, container, _ = ("", "", "", *target.split("/"))[-4:]
    pod = pod_folder(folder)
    who = identity(pod[0], pod[1], container, pod[2]) if pod else None
    if who is None:
        return None
    begin = f"{who.pod}_{who.namespace}_{who.container}-"
    found = _LINK_ID.fullmatch(name.removeprefix(begin))
    return (found[1], who) if found else None


class IdentitySource:
    """See the module. Not for several threads at once."""

    def __init__(self, links: Path, pods_socket: Path | None = None, deadline: float = DEADLINE_SECONDS) -> None:
        """`links`: /var/log/containers, with the folder `pods` beside it. `pods_socket`: None: not to be asked."""
        self._logs = _LogFolders(links)
        self._api = _PodsApi(pods_socket, deadline) if pods_socket is not None else None

    def read(self, now: float, wanted: Collection[str] = (), pods: Collection[str] = ()) -> IdentitySample:
        """
        The identities that are known. `now`: monotonic seconds.

        `wanted`: container IDs that are needed, `pods`: pod UIDs likewise.
        """
        if self._api is None or not self._api.usable(now):
            return self._logs.read(wanted)
        try:
            return self._api.read(now, wanted, pods)
        except SourceError as exc:
            try:
                return self._logs.read(wanted)
            except SourceError:
                raise exc from None

    def close(self) -> None:
        """Let the connection go."""
        if self._api is not None:
            self._api.close()


class _Folder(Generic[T]):
    """What the names in a folder tell, read when it has changed."""

    def __init__(self, path: Path, take: Callable[[os.DirEntry[str]], T | None]) -> None:
        self._path, self._take = path, take
        self._entries: dict[str, T | None] = {}
        self._stamp = -1

    def read(self) -> tuple[dict[str, T | None], bool]:
        """By name, and whether anything changed. OSError where the folder cannot be read."""
        stamp = self._path.stat().st_mtime_ns
        if stamp == self._stamp:
            return self._entries, False
        before, self._entries = self._entries, {}
        with os.scandir(self._path) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                self._entries[entry.name] = before[entry.name] if entry.name in before else self._take(entry)
        # what has just changed may change again under the same time
        self._stamp = stamp if time.time_ns() - stamp > SETTLED_NS else -1
        return self._entries, True


class _LogFolders:
    """What the kubelet's folder of links and its folder of pods tell."""

    def __init__(self, links: Path) -> None:
        self._links = _Folder(links, _follow)
        self._pods = _Folder(links.parent / "pods", lambda entry: pod_folder(entry.name))
        self._facts = IdentitySample({}, LOG_FOLDER)
        self._cut: list[tuple[str, ContainerIdentity]] = []

    def read(self, wanted: Collection[str]) -> IdentitySample:
        try:
            links, changed = self._links.read()
            pods, also = self._pods.read()
        except OSError as exc:
            advice = "mount the host's /var/log and set --log-dir to its container log links"
            raise SourceError(f"cannot read {exc.filename} ({exc.strerror}): {advice}") from None
        if changed or also:
            named = [one for one in links.values() if one is not None]
            names = {pod[2]: pod[:2] for pod in pods.values() if pod is not None}
            self._cut = [one for one in named if not _ID.fullmatch(one[0])]
            self._facts = _facts(dict(one for one in named if _ID.fullmatch(one[0])), LOG_FOLDER, names)
        return self._completed(wanted)

    def _completed(self, wanted: Collection[str]) -> IdentitySample:
        """With the IDs of which long names left the beginning only, if that can mean but one container."""
        more = {}
        for ident in wanted if self._cut else ():
            fitting = {who for begin, who in self._cut if ident.startswith(begin)}
            if ident not in self._facts.containers and len(fitting) == 1:
                more[ident] = fitting.pop()
        if not more:
            return self._facts
        return _facts({**self._facts.containers, **more}, LOG_FOLDER, self._facts.pods)


def _follow(entry: os.DirEntry[str]) -> tuple[str, ContainerIdentity] | None:
    try:
        return from_link(entry.name, str(Path(entry.path).readlink()))
    except OSError:
        return None


def _facts(
    containers: Mapping[str, ContainerIdentity], source: str, pods: Mapping[str, tuple[str, str]]
) -> IdentitySample:
    by_uid = {who.pod_uid: (who.namespace, who.pod) for who in containers.values()}
    return IdentitySample(MappingProxyType(dict(containers)), source, MappingProxyType({**by_uid, **pods}))


class _PodsApi:
    """What the kubelet knows of its pods."""

    def __init__(self, socket: Path, deadline: float) -> None:
        self._socket, self._deadline = socket, deadline
        self._connection: GrpcConnection | None = None
        self._facts = IdentitySample({}, PODS_API)
        self._asked_at = float("-inf")
        self._unknown: dict[str, tuple[float, float]] = {}
        """When an unknown ID is asked for again, and the pause before that."""
        self._rest_until = float("-inf")

    def usable(self, now: float) -> bool:
        """Whether this kubelet has the API (it makes the socket when it starts) and it did not fail just now."""
        return now >= self._rest_until and self._socket.is_socket()

    def read(self, now: float, wanted: Collection[str], pods: Collection[str]) -> IdentitySample:
        known = (self._facts.containers, self._facts.pods)
        missing = [ident for ids, have in zip((wanted, pods), known, strict=True) for ident in ids if ident not in have]
        self._unknown = {ident: self._unknown[ident] for ident in missing if ident in self._unknown}
        due = [ident for ident in missing if self._unknown.get(ident, _NEVER)[0] <= now]
        if due or now - self._asked_at >= REFRESH_SECONDS:
            self._rest_until = now + REST_SECONDS
            self._facts, self._asked_at = self._ask(), now
            self._rest_until = now
            for ident in due:
                pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._unknown.get(ident, _NEVER)[1]))
                self._unknown[ident] = (now + pause, pause)
        return self._facts

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _ask(self) -> IdentitySample:
        from exporter.sources import grpc_channel  # noqa: PLC0415 (gRPC: only where there is a kubelet to ask)
        from isolation.contract import kubelet_api as api  # noqa: PLC0415 (likewise)

        if self._connection is None:
            self._connection = grpc_channel.GrpcConnection(self._socket, self._deadline)
        until = time.monotonic() + self._deadline
        answer = self._connection.call(api.LIST_PODS, api.ListPodsRequest(), api.ListPodsResponse, until)
        if isinstance(answer, grpc_channel.NoAnswer):
            raise SourceError(f"the kubelet's Pods API does not list pods: {answer.value}")
        containers: dict[str, ContainerIdentity] = {}
        pods: dict[str, tuple[str, str]] = {}
        for raw in answer.pods:
            _take(raw, api.Pod.FromString, containers, pods)
        return _facts(containers, PODS_API, pods)


def _take(
    raw: bytes,
    parse: Callable[[bytes], Any],
    containers: dict[str, ContainerIdentity],
    pods: dict[str, tuple[str, str]],
) -> None:
    """One pod. One that cannot be read takes nobody else with it."""
    try:
        pod = parse(raw)
    except Exception:  # noqa: BLE001 (protobuf's own error class, which is not to be loaded without a kubelet)
        return
    meta, status = pod.metadata, pod.status
    if _NAME.fullmatch(meta.namespace) and _POD_NAME.fullmatch(meta.name) and _UID.fullmatch(meta.uid):
        pods[meta.uid] = (meta.namespace, meta.name)
    for one in (*status.initContainerStatuses, *status.containerStatuses, *status.ephemeralContainerStatuses):
        ident = one.containerID.rpartition("://")[2]
        who = identity(meta.namespace, meta.name, one.name, meta.uid)
        if who is not None and _ID.fullmatch(ident):
            containers[ident] = who
