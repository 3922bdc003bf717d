# SPDX-License-Identifier: Apache-2.0
"""
What the scheduler knows of the cluster: five watches that keep its books up to date.

Decides what is watched (every node, the pods that carry our label, reservations, namespaces, the autoscaler's pools)
and when the picture is whole. What an object means for the room on a card is the books' business. A cluster
without the reservation kind has no reservations; the watch begins once the kind is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.contract.codec import CodecError
from isolation.contract.codec.pools import KEY, decode_pools
from isolation.contract.names import API_VERSION, EXEMPT, GROUP, POOLS, QUOTA, RESERVATIONS, SHARED, SYSTEM_NAMESPACE
from isolation.contract.reservation import Reservation, reservation_of
from isolation.kube.core.backoff import Pace
from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import identity_of
from isolation.kube.informer import Informer, PodSelection
from isolation.kube.listwatch import Reflector, Selection, WatchOptions
from isolation.kube.optional_kind import OptionalKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from isolation.contract.codec.pools import PublishedPool
    from isolation.kube.listwatch import Source
    from isolation.kube.store import ClusterChange, Store
    from isolation.scheduler.core.cache import Books

log = logging.getLogger(__name__)
_POOLS: Final = "pools"
RESERVATIONS_PATH: Final = f"/apis/{GROUP}/{API_VERSION}/{RESERVATIONS}"
HABITS: Final = WatchOptions(pace=Pace(longest=5.0))
"""There are few of us: nobody waits half a minute for a scheduler that does not look whether the server is back."""
QUIET: Final = replace(HABITS, watch_seconds=60.0, idle_seconds=120.0)
"""Kinds of which minutes may tell nothing, not even a bookmark: the server ends the watch before silence is trouble."""


class Picture:
    """The books' eyes; one loop reads and writes them."""

    def __init__(self, source: Source, books: Books, store: Store, namespace: str = SYSTEM_NAMESPACE) -> None:
        self.books, self.store = books, store
        self.live = Informer(source, PodSelection(labels=f"{SHARED}=true"), store, HABITS)
        self.reservations = _Reservations(books)
        self.namespaces = _Namespaces(books)
        self.pools = _Pools()
        self.followers = {
            "nodes": self.live.nodes,
            "pods": self.live.pods,
            "reservations": Reflector(OptionalKind(source), Selection(RESERVATIONS_PATH), self.reservations, QUIET),
            "namespaces": Reflector(source, Selection("/api/v1/namespaces"), self.namespaces, QUIET),
            _POOLS: Reflector(
                source,
                Selection(f"/api/v1/namespaces/{namespace}/configmaps", fields=f"metadata.name={POOLS}"),
                self.pools,
                QUIET,
            ),
        }
        self._freed: list[Callable[[], None]] = []
        store.listen(self._take)
        books.on_freed(self._say_freed)
        self.namespaces.freed = self._say_freed

    def on_freed(self, listener: Callable[[], None]) -> None:
        """Call this whenever some room may have become free."""
        self._freed.append(listener)

    def missing(self) -> str:
        """What has not been read yet; empty when the picture is whole. Nothing rests on the pools."""
        unread = (name for name, follower in self.followers.items() if not follower.synced.is_set())
        return ", ".join(name for name in unread if name != _POOLS)

    def ages(self) -> Mapping[str, float]:
        """Seconds since the server last said anything, by watch; a watch that never heard anything is left out."""
        now = time.monotonic()
        return {name: now - f.heard for name, f in self.followers.items() if f.heard is not None}

    async def synced(self) -> None:
        """Wait for the first whole picture."""
        for name, follower in self.followers.items():
            if name != _POOLS:
                await follower.synced.wait()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in self.followers.values():
                group.create_task(follower.run())

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Picture]:
        """Follow in the background of the block."""
        running = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _take(self, change: ClusterChange) -> None:
        """One change into the books; a node may bring room that nobody held before."""
        if change.node is not None:
            self.books.node_is(change.node)
            self._say_freed()
        elif change.node_before is not None:
            self.books.node_gone(change.node_before.name)
        elif change.pod is not None:
            self.books.pod_is(change.pod)
        elif change.pod_before is not None:
            self.books.pod_gone(change.pod_before.uid)

    def _say_freed(self) -> None:
        for listener in self._freed:
            listener()


class _Reservations:
    """Stored reservations by name; an unreadable one is counted and keeps nothing."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.known: dict[str, Reservation] = {}

    def add(self, made: Reservation) -> None:
        """One that is about to be stored, ahead of the watch."""
        self.known[made.name] = made
        self._books.reservation_is(made)

    def withdraw(self, made: Reservation) -> None:
        """It could not be stored, as far as is known; one that the watch has told of meanwhile stays."""
        if self.known.get(made.name) is made:
            self._forget(made.name)

    def put(self, raw: msgspec.Raw) -> str:
        name = identity_of(raw).name
        if not name:
            raise MalformedError("reservation has no name")
        try:
            made = reservation_of(msgspec.json.decode(raw))
        except (CodecError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            self._forget(name)
            log.warning("cannot read reservation %s, ignoring it: %s", name, exc)
            return name
        if self.known.get(name) != made:
            self.add(made)
        return name

    def drop(self, raw: msgspec.Raw) -> None:
        self._forget(identity_of(raw).name)

    def only(self, keys: frozenset[str]) -> None:
        for name in self.known.keys() - keys:
            self._forget(name)

    def _forget(self, name: str) -> None:
        if self.known.pop(name, None) is not None:
            self._books.reservation_gone(name)


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


_CONFIG_MAP: Final = msgspec.json.Decoder(_ConfigMap)


class _Pools:
    """What the autoscaler has published; as if there were nothing where that cannot be read."""

    def __init__(self) -> None:
        self.text = ""
        self.known: tuple[PublishedPool, ...] = ()
        self.unreadable = False

    def put(self, raw: msgspec.Raw) -> str:
        try:
            text = (_CONFIG_MAP.decode(raw).data or {}).get(KEY, "")
            self.text, self.known, self.unreadable = text, decode_pools(text).pools, False
        except (CodecError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            self.text, self.known, self.unreadable = "", (), True
            log.warning("cannot read ConfigMap %s, ignoring it: %s", POOLS, exc)
        return identity_of(raw).name

    def drop(self, raw: msgspec.Raw) -> None:
        del raw
        self._forget()

    def only(self, keys: frozenset[str]) -> None:
        if not keys:
            self._forget()

    def _forget(self) -> None:
        self.text, self.known, self.unreadable = "", (), False


class _NamespaceMeta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Namespace(msgspec.Struct):
    metadata: _NamespaceMeta


_NAMESPACE: Final = msgspec.json.Decoder(_Namespace)
_UNITS: Final = msgspec.json.Decoder(dict[str, int])


class _Namespaces:
    """Which namespaces are exempt, and each one's quota; one that cannot be read stays as it was."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.freed: Callable[[], None] = lambda: None
        self.exempt: dict[str, bool] = {}
        self._quotas: dict[str, str] = {}

    def put(self, raw: msgspec.Raw) -> str:
        try:
            meta = _NAMESPACE.decode(raw).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise MalformedError(f"invalid Namespace: {exc}") from None
        self.exempt[meta.name] = (meta.labels or {}).get(EXEMPT) == "true"
        text = (meta.annotations or {}).get(QUOTA, "")
        if text != self._quotas.get(meta.name, ""):
            self._quotas[meta.name] = text
            self._limit(meta.name, text)
        return meta.name

    def _limit(self, name: str, text: str) -> None:
        try:
            units = _UNITS.decode(text) if text else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            log.error("cannot read quota of namespace %s from %s, keeping the last one: %s", name, QUOTA, exc)  # noqa: TRY400 (the input is at fault)
            return
        self._books.quota_is(name, units)
        self.freed()

    def drop(self, raw: msgspec.Raw) -> None:
        self._forget(identity_of(raw).name)

    def only(self, keys: frozenset[str]) -> None:
        for name in self.exempt.keys() - keys:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.exempt.pop(name, None)
        if self._quotas.pop(name, ""):
            self._books.quota_is(name, None)
            self.freed()
