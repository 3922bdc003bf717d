# SPDX-License-Identifier: Apache-2.0
"""
The pods of this node by the API server's word: watched, and where it matters asked for afresh.

Decides which pods are looked at: every one that is bound here and has not ended, and of these the ones that
ask for shares, whether or not admission has labelled them: a pod that got past admission must be known
too. What a pod's JSON means is `bound`'s business; nothing is ever taken for gone because nobody answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from isolation.contract.codec import CodecError
from isolation.contract.names import EXEMPT
from isolation.kube.core.errors import ClusterError, MalformedError, NotFoundError
from isolation.kube.core.wire import identity_of, page_of
from isolation.kube.informer import NOT_ENDED
from isolation.kube.listwatch import Reflector, Selection, WatchOptions
from isolation.kube.writes import Outcome, PodRef
from isolation.node import memory
from isolation.node.bound import bound_of
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from isolation.kube.access import Access
    from isolation.kube.writes import Writer
    from isolation.node.world import Bound

log = logging.getLogger(__name__)
_PODS: Final = "/api/v1/pods"
_SILENT_SECONDS: Final = 100.0
"""Bookmarks come each minute; a watch that is silent for longer is no longer believed to run."""
_QUIET_SECONDS: Final = 600.0
"""Of a kind in which nothing happens an API server sends no bookmarks either; it ends the watch before this."""
_WRITE_SECONDS: Final = 5.0
_GET_SECONDS: Final = 2.0


class Sight:
    """The last word about each pod, and whoever waits for a new one. A sink for `follow`."""

    def __init__(self) -> None:
        self._pods: dict[str, Bound] = {}
        self._essences: dict[str, dict[str, Any]] = {}
        """The same pods, as they are kept over a restart."""
        self.unsaved = False
        self._told: tuple[Bound, ...] | None = None
        self.exempt: frozenset[str] = frozenset()
        """Namespaces of system software."""
        self._news = asyncio.Event()

    def put(self, raw: msgspec.Raw) -> str:
        """A pod as it is now; MalformedError where it cannot be read: what was known of it stays."""
        uid = identity_of(raw).uid
        if not uid:
            raise MalformedError("pod has no UID")
        try:
            thing: Any = msgspec.json.decode(raw)
            pod = bound_of(thing)
        except (CodecError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise MalformedError(f"pod {uid[:64]}: {exc}") from None
        if self._pods.get(uid) != pod:
            if pod.wanted:
                # In its old place: pods stand in the order of their binding, in which a kubelet admits them.
                self._pods[uid], self._essences[uid] = pod, memory.essence(thing)
            else:
                self._forget(uid)
            self.touch()
        return uid

    def drop(self, raw: msgspec.Raw) -> None:
        """A pod that has ended, or is gone."""
        if self._forget(identity_of(raw).uid):
            self.touch()

    def only(self, keys: frozenset[str]) -> None:
        """Every pod but these is gone."""
        for uid in self._pods.keys() - keys:
            self._forget(uid)
        self.touch()

    def _forget(self, uid: str) -> bool:
        self._essences.pop(uid, None)
        return self._pods.pop(uid, None) is not None

    def recall(self, file: Path) -> None:
        """Pods as they were told before a restart; the server's first word takes their place."""
        for uid, (pod, thing) in memory.load(file).items():
            self._pods[uid], self._essences[uid] = pod, thing

    async def keep(self, file: Path) -> None:
        """Write them down where they have changed; in a thread, for a disk may take its time."""
        if self.unsaved:
            self.unsaved = False
            try:
                await asyncio.to_thread(memory.save, file, dict(self._essences))
            except OSError as exc:
                self.unsaved = True
                log.warning("cannot write %s: %s", file, exc.strerror)

    def all(self) -> tuple[Bound, ...]:
        """Every pod that asks for shares."""
        if self._told is None:
            self._told = tuple(replace(pod, exempt=pod.namespace in self.exempt) for pod in self._pods.values())
        return self._told

    def touch(self) -> None:
        """Wake whoever waits."""
        self._told = None
        self.unsaved = True
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self, seconds: float) -> None:
        """Until something new is told, at most that long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)


class _Namespaces:
    """Names of exempt namespaces, as another sink."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def put(self, raw: msgspec.Raw) -> str:
        name = identity_of(raw).name
        self._now(self._sight.exempt | {name})
        return name

    def drop(self, raw: msgspec.Raw) -> None:
        self._now(self._sight.exempt - {identity_of(raw).name})

    def only(self, keys: frozenset[str]) -> None:
        self._now(keys)

    def _now(self, names: frozenset[str]) -> None:
        if names != self._sight.exempt:
            self._sight.exempt = names
            self._sight.touch()


class NodePods:
    """Pods of one node; fulfils `world.Pods` while somebody runs the `followers`."""

    def __init__(self, access: Access, writer: Writer, node: str) -> None:
        self._access, self._writer = access, writer
        self.sight = Sight()
        self._what = Selection(_PODS, fields=f"{NOT_ENDED},spec.nodeName={node}")
        self.follower = Reflector(access, self._what, self.sight)
        exempt = Selection("/api/v1/namespaces", labels=f"{EXEMPT}=true")
        namespaces = Reflector(access, exempt, _Namespaces(self.sight), WatchOptions(idle_seconds=_QUIET_SECONDS))
        self.followers: Mapping[str, Reflector] = {"watch-pods": self.follower, "watch-namespaces": namespaces}
        """By name of the task that runs each."""

    def bound(self) -> Iterable[Bound]:
        """See `world.Pods`."""
        return self.sight.all()

    def synced(self) -> bool:
        """See `world.Pods`."""
        heard = self.follower.heard
        return self.follower.synced.is_set() and heard is not None and time.monotonic() - heard < _SILENT_SECONDS

    async def changed(self, seconds: float) -> None:
        """See `world.Pods`."""
        await self.sight.changed(seconds)

    async def fetch(self, seconds: float) -> Iterable[Bound]:
        """See `world.Pods`; a pod that cannot be read is left out, as if it had no record."""
        try:
            async with asyncio.timeout(seconds):
                page = page_of(await self._access.page(self._what.path, self._what.query()))
        except TimeoutError:
            raise UnreachableError(f"the API server did not answer within {seconds:.2f} s") from None
        except ClusterError as exc:
            raise UnreachableError(str(exc)) from None
        found = (self._read(raw) for raw in page.items or ())
        return tuple(pod for pod in found if pod is not None and pod.wanted)

    async def get(self, namespace: str, name: str) -> Bound | None:
        """See `world.Pods`."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        try:
            text = await self._access.send("GET", path, seconds=_GET_SECONDS)
        except NotFoundError:
            return None
        except ClusterError as exc:
            raise UnreachableError(str(exc)) from None
        found = self._read(text)
        if found is None:
            raise UnreachableError(f"the API server's answer for {namespace}/{name} is not a pod")
        return found

    async def delete(self, pod: Bound, reason: str) -> None:
        """See `world.Pods`. The Event comes first: afterwards there is nothing to read it at."""
        target = PodRef(pod.namespace, pod.name, pod.uid)
        with contextlib.suppress(ClusterError):  # a pod that must go does not stay for want of an Event
            await self._writer.event(target, "WrongDevices", reason, warning=True)
        try:
            answer = await self._writer.delete(target, _WRITE_SECONDS)
        except ClusterError as exc:
            raise UnreachableError(str(exc)) from None
        # Another UID under that name (409): the pod that was meant is gone.
        if answer.outcome is Outcome.BLOCKED or (
            answer.outcome is Outcome.REFUSED and "recondition" not in answer.said
        ):
            raise UnreachableError(f"cannot delete {pod.key}: {answer.said}")

    def _read(self, raw: msgspec.Raw | bytes) -> Bound | None:
        try:
            thing: Any = json.loads(bytes(raw))
            pod = bound_of(thing)
        except (CodecError, ValueError, RecursionError):
            return None
        return replace(pod, exempt=pod.namespace in self.sight.exempt)
