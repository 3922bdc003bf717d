# SPDX-License-Identifier: Apache-2.0
"""
The scheduler's informers: the watches that keep its cache up to date.

Decides what is watched (all nodes, pods with the shared label, reservations, namespaces, ProvisioningRequests, what
the autoscaler publishes) and when the informers are synced. What an object means for the cards is the cache's
business. A cluster without a kind that is not Kubernetes' own has none of it; its watch begins once the kind is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from isolation.contract.codec import CodecError, pools, recommendations
from isolation.contract.names import EXEMPT, POOLS, QUOTA, RIGHT_SIZING, SHARED, SYSTEM_NAMESPACE
from isolation.contract.provisioning_request import PROVISIONING_PATH, provisioning_request_of
from isolation.contract.reservation import RESERVATIONS_PATH, Reservation, reservation_of
from isolation.kube.core.backoff import Pace
from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import identity_of
from isolation.kube.informer import Informer, PodSelection
from isolation.kube.listwatch import Reflector, Selection, WatchOptions
from isolation.kube.optional_kind import OptionalKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from isolation.contract.provisioning_request import ProvisioningRequest
    from isolation.kube.listwatch import Source
    from isolation.kube.store import ClusterChange, Store
    from isolation.scheduler.core.cache import SchedulerCache

log = logging.getLogger(__name__)
_POOLS: Final = "pools"
_RIGHT_SIZING: Final = "right-sizing"
_PROVISIONING: Final = "provisioning-requests"
_OPTIONAL: Final = frozenset({_POOLS, _RIGHT_SIZING, _PROVISIONING})
"""What the autoscaler publishes and what queues ask for: no decision about a pod waits for it."""
HABITS: Final = WatchOptions(pace=Pace(longest=5.0))
"""A shorter back-off than usual: there are few replicas, and all pods with shares wait for them."""
QUIET: Final = replace(HABITS, watch_seconds=60.0, idle_seconds=120.0)
"""For kinds that can be quiet for minutes, without a bookmark: the server ends the watch before it counts as dead."""


class Informers:
    """See the module; one event loop reads and writes them."""

    def __init__(self, source: Source, cache: SchedulerCache, store: Store, namespace: str = SYSTEM_NAMESPACE) -> None:
        self.cache, self.store = cache, store
        self.live = Informer(source, PodSelection(labels=f"{SHARED}=true"), store, HABITS)
        self.reservations = _ReservationHandler(cache)
        self.namespaces = _NamespaceHandler(cache)
        self.provisioning = _ProvisioningHandler()
        self.pools = _PublishedHandler(POOLS, pools.KEY, pools.decode_pools, pools.PublishedPools())
        self.right_sizing = _PublishedHandler(
            RIGHT_SIZING,
            recommendations.KEY,
            recommendations.decode_recommendations,
            recommendations.Recommendations(),
        )
        self.followers = {
            "nodes": self.live.nodes,
            "pods": self.live.pods,
            "reservations": Reflector(OptionalKind(source), Selection(RESERVATIONS_PATH), self.reservations, QUIET),
            "namespaces": Reflector(source, Selection("/api/v1/namespaces"), self.namespaces, QUIET),
            _PROVISIONING: Reflector(OptionalKind(source), Selection(PROVISIONING_PATH), self.provisioning, QUIET),
            _POOLS: Reflector(
                source,
                Selection(f"/api/v1/namespaces/{namespace}/configmaps", fields=f"metadata.name={POOLS}"),
                self.pools,
                QUIET,
            ),
            _RIGHT_SIZING: Reflector(
                source,
                Selection(f"/api/v1/namespaces/{namespace}/configmaps", fields=f"metadata.name={RIGHT_SIZING}"),
                self.right_sizing,
                QUIET,
            ),
        }
        self.adopted = asyncio.Event()
        """Whether pods without our label that hold cards are known; cleared by whoever looks for them."""
        self.adopted.set()
        self._freed: list[Callable[[], None]] = []
        store.listen(self._apply)
        cache.on_capacity_freed(self._notify_freed)
        self.namespaces.freed = self._notify_freed

    def on_capacity_freed(self, listener: Callable[[], None]) -> None:
        """Call this whenever some cards may have become free."""
        self._freed.append(listener)

    def missing(self) -> str:
        """Which informers are not synced yet; empty: all are. What the autoscaler publishes does not count."""
        unread = [
            name for name, follower in self.followers.items() if not follower.synced.is_set() and name not in _OPTIONAL
        ]
        return ", ".join(unread if self.adopted.is_set() else [*unread, "pods of other schedulers"])

    def knows_gangs(self) -> bool:
        """Whether the ProvisioningRequests are known."""
        return self.followers[_PROVISIONING].synced.is_set()

    def ages(self) -> Mapping[str, float]:
        """Seconds since the server last said anything, by watch; a watch that never heard anything is left out."""
        now = time.monotonic()
        return {name: now - f.heard for name, f in self.followers.items() if f.heard is not None}

    async def synced(self) -> None:
        """Wait until all are synced."""
        for name, follower in self.followers.items():
            if name not in _OPTIONAL:
                await follower.synced.wait()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in self.followers.values():
                group.create_task(follower.run())

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Informers]:
        """Follow in the background of the block."""
        running = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _apply(self, change: ClusterChange) -> None:
        """Put one change into the cache; a node may bring free cards."""
        if change.node is not None:
            self.cache.set_node(change.node)
            self._notify_freed()
        elif change.node_before is not None:
            self.cache.remove_node(change.node_before.name)
        elif change.pod is not None:
            self.cache.set_pod(change.pod)
        elif change.pod_before is not None:
            self.cache.remove_pod(change.pod_before.uid)

    def _notify_freed(self) -> None:
        for listener in self._freed:
            listener()


class _ReservationHandler:
    """Stored reservations by name; an unreadable one is ignored."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self.known: dict[str, Reservation] = {}

    def add(self, made: Reservation) -> None:
        """Add one that is about to be created, ahead of the watch."""
        self.known[made.name] = made
        self._cache.set_reservation(made)

    def withdraw(self, made: Reservation) -> None:
        """Remove one that was not created, as far as is known; one that the watch has shown meanwhile stays."""
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
            log.warning("cannot read reservation, ignoring it: %s: reservation=%s", exc, name)
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
            self._cache.remove_reservation(name)


class _ProvisioningHandler:
    """ProvisioningRequests of our class by UID; an unreadable one is ignored."""

    def __init__(self) -> None:
        self.known: dict[str, ProvisioningRequest] = {}

    def update(self, asked: ProvisioningRequest) -> None:
        """Take what the API server has answered; what the watch shows later may be older than that."""
        known = self.known.get(asked.uid)
        if known is None or _number(known.version) <= _number(asked.version):
            self.known[asked.uid] = asked

    def put(self, raw: msgspec.Raw) -> str:
        key = identity_of(raw)
        if not key.uid:
            raise MalformedError("ProvisioningRequest has no UID")
        try:
            asked = provisioning_request_of(msgspec.json.decode(raw))
        except (CodecError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            log.warning("cannot read ProvisioningRequest, ignoring it: %s: name=%s", exc, key.name)
            asked = None
        if asked is None:
            self.known.pop(key.uid, None)
        else:
            self.update(asked)
        return key.uid

    def drop(self, raw: msgspec.Raw) -> None:
        self.known.pop(identity_of(raw).uid, None)

    def only(self, keys: frozenset[str]) -> None:
        for uid in self.known.keys() - keys:
            del self.known[uid]


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdigit() else 0


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


_CONFIG_MAP: Final = msgspec.json.Decoder(_ConfigMap)


_Known = TypeVar("_Known")


class _PublishedHandler(Generic[_Known]):
    """One key of a ConfigMap that the autoscaler publishes; `nothing` where that cannot be read."""

    def __init__(self, name: str, key: str, decode: Callable[[str], _Known], nothing: _Known) -> None:
        self._name, self._key, self._decode, self._nothing = name, key, decode, nothing
        self.text, self.known, self.unreadable = "", nothing, False

    def put(self, raw: msgspec.Raw) -> str:
        try:
            text = (_CONFIG_MAP.decode(raw).data or {}).get(self._key, "")
            self.text, self.known, self.unreadable = text, self._decode(text), False
        except (CodecError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            self.text, self.known, self.unreadable = "", self._nothing, True
            log.warning("cannot read ConfigMap, ignoring it: %s: configmap=%s", exc, self._name)
        return identity_of(raw).name

    def drop(self, raw: msgspec.Raw) -> None:
        del raw
        self._forget()

    def only(self, keys: frozenset[str]) -> None:
        if not keys:
            self._forget()

    def _forget(self) -> None:
        self.text, self.known, self.unreadable = "", self._nothing, False


class _NamespaceMeta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Namespace(msgspec.Struct):
    metadata: _NamespaceMeta


_NAMESPACE: Final = msgspec.json.Decoder(_Namespace)
_UNITS: Final = msgspec.json.Decoder(dict[str, int])


class _NamespaceHandler:
    """Which namespaces are exempt, and the quota of each; a quota that cannot be read stays as it was."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
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
            log.error("cannot read quota, keeping the last one: %s: namespace=%s annotation=%s", exc, name, QUOTA)  # noqa: TRY400 (the input is at fault)
            return
        self._cache.set_quota(name, units)
        self.freed()

    def drop(self, raw: msgspec.Raw) -> None:
        self._forget(identity_of(raw).name)

    def only(self, keys: frozenset[str]) -> None:
        for name in self.exempt.keys() - keys:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.exempt.pop(name, None)
        if self._quotas.pop(name, ""):
            self._cache.set_quota(name, None)
            self.freed()
