# SPDX-License-Identifier: Apache-2.0
"""
What would be lost with a machine, asked of the API server itself right before the machine is given back.

Decides which pods would be lost: all but those that have ended, that go with their node (a DaemonSet's, the kubelet's
own) or that should have ended long ago. A list without a resourceVersion is consistent: it shows every bind
that was carried out before it was asked for, however late our watch is.

Source: Kubernetes, "API concepts: resource versions" (unset: most recent).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of
from isolation.contract.codec.request import goes_with_its_node, owner_of
from isolation.contract.names import MIRROR
from isolation.kube.core.wire import page_of
from isolation.kube.informer import NOT_ENDED
from isolation.kube.paging import list_objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.kube.paging import PageSource

LONG_TERMINATING_SECONDS: Final = 30.0
"""A pod that has not ended so long after its grace counts as gone (PodLongTerminatingExtraThreshold)."""
GRACE_SECONDS: Final = 30.0
"""Kubernetes' own terminationGracePeriodSeconds, where a pod names none."""


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    annotations: Any = None
    ownerReferences: Any = None  # noqa: N815 (Kubernetes' spelling, here and below)
    deletionTimestamp: Any = None  # noqa: N815


class _Spec(msgspec.Struct):
    terminationGracePeriodSeconds: Any = None  # noqa: N815
    providerID: Any = None  # noqa: N815


class _Thing(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


_THING: Final = msgspec.json.Decoder(_Thing)


async def lost_with(lists: PageSource, node: str, now: float) -> list[str]:
    """Keys of the pods on a node that would be lost with it; `now`: seconds since the epoch. Raises ClusterError."""
    if "/" in node:
        return []  # the ID of a machine that never had a node: nobody can be bound to it
    page = page_of(await lists.page("/api/v1/pods", {"fieldSelector": f"{NOT_ENDED},spec.nodeName={node}"}))
    return sorted(key for raw in page.items or () if (key := _lost(raw, now)))


async def find_node(lists: PageSource, machine: str) -> str:
    """The node of a machine, by its name or its provider's ID, as stored at this moment; empty: none. ClusterError."""
    async with aclosing(list_objects(lists, "/api/v1/nodes")) as nodes:
        async for raw in nodes:
            thing = _THING.decode(raw)
            if machine in (thing.metadata.name, thing.spec.providerID):
                return thing.metadata.name
    return ""


class Occupants:
    """Pods that a removal by cluster-autoscaler would end; see `autoscaler.apis.rpc.provider_groups.Occupied`."""

    def __init__(self, lists: PageSource, wall: Callable[[], float]) -> None:
        self._lists, self._wall = lists, wall

    async def __call__(self, machine: str, node: str) -> str:
        """Key of a pod; empty: nobody. By the machine's ID, where its node is not known. Raises ClusterError."""
        node = node or await find_node(self._lists, machine)
        return next(iter(await lost_with(self._lists, node, self._wall())), "") if node else ""


def gone_at(deletion: object, grace: object) -> float:
    """From when a pod that ends no longer counts, in seconds since the epoch; 0 while it does not end. CodecError."""
    if not deletion:
        return 0.0
    longest = At(grace).integer(int(GRACE_SECONDS), 0, 1 << 40)
    return seconds_of(At(deletion)) + longest + LONG_TERMINATING_SECONDS


def _lost(raw: msgspec.Raw, now: float) -> str:
    """The pod's key; empty: it is none that would be lost. What cannot be read would be."""
    key = "a pod that cannot be read"
    try:
        thing = _THING.decode(raw)
        meta = thing.metadata
        key = f"{meta.namespace}/{meta.name}"
        mirror = MIRROR in At(meta.annotations).texts()
        owner = owner_of({"ownerReferences": meta.ownerReferences, "namespace": meta.namespace})
        gone = gone_at(meta.deletionTimestamp, thing.spec.terminationGracePeriodSeconds)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, CodecError):
        return key
    return "" if mirror or goes_with_its_node(owner) or 0.0 < gone < now else key
