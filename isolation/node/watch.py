# SPDX-License-Identifier: Apache-2.0
"""
The pods of this node by the API server's word, from memory.

Decides which pods are looked at: every one that is bound here and has not ended, and of these the ones that ask for
shares, whether or not admission has labelled them: a pod that got past admission must be known too. What a pod's JSON
means is `bound`'s business.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from isolation.contract.codec import CodecError
from isolation.contract.names import EXEMPT, UNISOLATED
from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import identity_of
from isolation.kube.informer import NOT_ENDED
from isolation.kube.listwatch import Reflector, Selection, WatchOptions
from isolation.node.bound import bound_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.kube.access import Access
    from isolation.node.bound import Bound

_PODS: Final = "/api/v1/pods"
_SILENT_SECONDS: Final = 100.0
"""Bookmarks come each minute; a watch that is silent for longer is no longer believed to run."""
_QUIET_SECONDS: Final = 600.0
"""Of a kind in which nothing happens an API server sends no bookmarks either; it ends the watch before this."""


class _Pods:
    """The last word about each pod, as a sink."""

    def __init__(self) -> None:
        self.known: dict[str, Bound] = {}

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
        if pod.wanted:
            self.known[uid] = pod
        else:
            self.known.pop(uid, None)
        return uid

    def drop(self, raw: msgspec.Raw) -> None:
        """A pod that has ended, or is gone."""
        self.known.pop(identity_of(raw).uid, None)

    def only(self, keys: frozenset[str]) -> None:
        """Every pod but these is gone."""
        self.known = {uid: pod for uid, pod in self.known.items() if uid in keys}


class _Namespaces:
    """Names of namespaces with one label, as another sink."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()

    def put(self, raw: msgspec.Raw) -> str:
        name = identity_of(raw).name
        self.names |= {name}
        return name

    def drop(self, raw: msgspec.Raw) -> None:
        self.names -= {identity_of(raw).name}

    def only(self, keys: frozenset[str]) -> None:
        self.names = keys


class NodePods:
    """Pods of one node; fulfils `containers.Pods` while somebody runs the `followers`."""

    def __init__(self, access: Access, node: str) -> None:
        self._pods, self._namespaces, self._unisolated = _Pods(), _Namespaces(), _Namespaces()
        what = Selection(_PODS, fields=f"{NOT_ENDED},spec.nodeName={node}")
        self.follower = Reflector(access, what, self._pods)
        exempt = Selection("/api/v1/namespaces", labels=f"{EXEMPT}=true")
        self._exempt = Reflector(access, exempt, self._namespaces, WatchOptions(idle_seconds=_QUIET_SECONDS))
        free = Selection("/api/v1/namespaces", labels=f"{UNISOLATED}=true")
        unisolated = Reflector(access, free, self._unisolated, WatchOptions(idle_seconds=_QUIET_SECONDS))
        self.followers: Mapping[str, Reflector] = {
            "watch-pods": self.follower,
            "watch-namespaces": self._exempt,
            "watch-unisolated-namespaces": unisolated,
        }
        """By name of the task that runs each."""

    def get(self, uid: str) -> Bound | None:
        """See `containers.Pods`."""
        return self._pods.known.get(uid)

    def uids(self) -> frozenset[str]:
        """Of all of them."""
        return frozenset(self._pods.known)

    def resized(self) -> tuple[Bound, ...]:
        """Those whose record was changed since they were bound."""
        known = tuple(self._pods.known.values())
        return tuple(pod for pod in known if pod.resize is not None)

    def synced(self) -> bool:
        """See `containers.Pods`."""
        heard = self.follower.heard
        return self.follower.synced.is_set() and heard is not None and time.monotonic() - heard < _SILENT_SECONDS

    def exempt(self) -> frozenset[str] | None:
        """See `containers.Pods`."""
        return self._namespaces.names if self._exempt.synced.is_set() else None

    def unisolated(self) -> frozenset[str]:
        """See `containers.Pods`."""
        return self._unisolated.names
