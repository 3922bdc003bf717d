# SPDX-License-Identifier: Apache-2.0
"""
The objects behind a `/scale` pool: the Scale, the machines or nodes that belong to it, and how they are written.

Decides how answers are read and errors understood; which number is written is `scale`'s business. Names are those
of autoscaling/v1 Scale and of the Cluster API book (Machine: `spec.providerID`, `status.nodeRef`, `status.phase`,
annotation `cluster.x-k8s.io/delete-machine`, which every delete policy puts first).
"""

from __future__ import annotations

import contextlib
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from autoscaler.providers.base import (
    ChangedError,
    DeniedError,
    InstanceState,
    ProviderInstance,
    ProviderUnreachableError,
)
from autoscaler.providers.core.stock import is_out_of_stock, shorten_error
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.names import AUTOSCALER
from isolation.kube.core.errors import ClusterError, ConflictError, RefusedError, ServerError, TooManyRequestsError
from isolation.kube.paging import list_objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from isolation.kube.access import Access

DELETE_MACHINE: Final = "cluster.x-k8s.io/delete-machine"
_MAX_MEMBERS: Final = 20_000
_MAX_REPLICAS: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ScaledKind:
    """A resource of the API server; namespace empty: cluster-scoped."""

    group: str
    version: str
    resource: str
    namespace: str = ""

    @property
    def path(self) -> str:
        """Of the collection."""
        root = f"/apis/{_safe(self.group)}" if self.group else "/api"
        inside = f"/namespaces/{_safe(self.namespace)}" if self.namespace else ""
        return f"{root}/{_safe(self.version)}{inside}/{_safe(self.resource)}"

    def one(self, name: str) -> str:
        """Of one object."""
        return f"{self.path}/{_safe(name)}"


NODES: Final = ScaledKind("", "v1", "nodes")


@dataclass(frozen=True, slots=True)
class ScaleStatus:
    """The wish as it stands in the store."""

    version: str
    replicas: int
    selector: str
    """Of the members, as the object itself says; empty where it does not."""


@dataclass(frozen=True, slots=True)
class ScaledMember:
    """One machine, or one node, of a pool."""

    object: str
    uid: str
    version: str
    instance: ProviderInstance
    marked: str = ""
    """Who marked it to go first; empty: nobody."""
    short: str = ""
    """What is said about why it does not come, where that means that there is none."""

    @property
    def live(self) -> bool:
        """Whether it counts: not on its way out yet."""
        return self.instance.state is not InstanceState.LEAVING

    @property
    def ours(self) -> bool:
        """Whether we have marked it."""
        return self.marked == AUTOSCALER

    def called(self, names: frozenset[str]) -> bool:
        """Whether it is meant by one of these: its node, its ID or the object itself."""
        return not names.isdisjoint({self.instance.id, self.instance.node or self.instance.id, self.object})


class ScaleClient:
    """Reads and writes of one pool, each with a deadline and with errors as providers have them."""

    def __init__(self, access: Access, target: ScaledKind, name: str) -> None:
        self._access, self._path = access, f"{target.one(name)}/scale"
        self._target, self._name = target, name

    async def parent(self) -> At:
        """The scaled object itself."""
        async with _translated(self._target.one(self._name)):
            return _decoded(await self._access.send("GET", self._target.one(self._name)))

    async def scale(self) -> ScaleStatus:
        """The wish."""
        async with _translated(self._path):
            return _scale(_decoded(await self._access.send("GET", self._path)))

    async def put(self, before: ScaleStatus, replicas: int) -> bool:
        """Write another wish over exactly this one; False where it is not the newest any more."""
        meta = {"name": self._name, "resourceVersion": before.version}
        if self._target.namespace:
            meta["namespace"] = self._target.namespace
        body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": meta, "spec": {"replicas": replicas}}
        async with _translated(self._path):
            try:
                await self._access.send("PUT", self._path, body)
            except ConflictError:
                return False
        return True

    async def members(self, kind: ScaledKind, selector: str, mark: str) -> list[ScaledMember]:
        """All of them; an unreadable one fails the look, because numbers follow from their count."""
        found: list[ScaledMember] = []
        read = _node if kind == NODES else _machine
        listed = list_objects(self._access, kind.path, {"labelSelector": selector})
        async with _translated(kind.path), aclosing(listed) as objects:
            async for raw in objects:
                found.append(read(_decoded(raw), mark))
                if len(found) > _MAX_MEMBERS:
                    raise DeniedError(f"{kind.path}: selector {selector!r} matches more than {_MAX_MEMBERS} members")
        return found

    async def mark(self, kind: ScaledKind, member: ScaledMember, key: str, value: str | None) -> None:
        """Annotate one member, if it is still the same object."""
        body = {"metadata": {"uid": member.uid, "annotations": {key: value}}}
        path = kind.one(member.object)
        async with _translated(path):
            await self._access.send("PATCH", path, body, "merge-patch")


def _safe(part: str) -> str:
    return quote(part, safe="")


def _decoded(text: bytes | msgspec.Raw) -> At:
    try:
        return At(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise CodecError((), "response is not JSON") from None


def _scale(at: At) -> ScaleStatus:
    version = at["metadata"]["resourceVersion"].text()
    if not version:
        raise at["metadata"].wrong("Scale has no resourceVersion")
    replicas = at["spec"]["replicas"].integer(0, 0, _MAX_REPLICAS)
    return ScaleStatus(version, replicas, at["status"]["selector"].text())


def _machine(at: At, mark: str) -> ScaledMember:
    meta, status = at["metadata"], at["status"]
    name, node = meta["name"].name(), status["nodeRef"]["name"].text()
    why = shorten_error(status["failureMessage"].text() or _trouble(status["conditions"]))
    phase = status["phase"].text()
    if meta["deletionTimestamp"]:
        state = InstanceState.LEAVING
    elif phase == "Failed":
        state = InstanceState.FAILED
    else:
        state = InstanceState.RUNNING if node else InstanceState.COMING
    ident = at["spec"]["providerID"].text() or f"{meta['namespace'].text()}/{name}"
    note = why or phase
    short = why if not node and is_out_of_stock(why) else ""
    return _member(meta, mark, ProviderInstance(ident, node, state, note), short)


def _node(at: At, mark: str) -> ScaledMember:
    meta = at["metadata"]
    name = meta["name"].name()
    state = InstanceState.LEAVING if meta["deletionTimestamp"] else InstanceState.RUNNING
    return _member(meta, mark, ProviderInstance(at["spec"]["providerID"].text() or name, name, state), "")


def _member(meta: At, mark: str, instance: ProviderInstance, short: str) -> ScaledMember:
    marked = meta["annotations"][mark].text() if mark else ""
    return ScaledMember(
        meta["name"].name(), meta["uid"].text(), meta["resourceVersion"].text(), instance, marked, short
    )


def _trouble(conditions: At) -> str:
    """What keeps the infrastructure of a machine from being there."""
    wrong = [c for c in conditions.items() if c["status"].text() == "False"]
    words = [f"{c['reason'].text()}: {c['message'].text()}" for c in wrong]
    main = (text for c, text in zip(wrong, words, strict=True) if c["type"].text() == "InfrastructureReady")
    return next(filter(is_out_of_stock, words), "") or next(main, "")


@contextlib.asynccontextmanager
async def _translated(path: str) -> AsyncIterator[None]:
    """Errors of the API server as a provider's."""
    try:
        yield
    except (TooManyRequestsError, ServerError) as exc:
        raise ProviderUnreachableError(f"{path}: {exc}") from exc
    except ConflictError as exc:
        raise ChangedError(f"{path}: {exc.message or exc.reason}") from exc
    except RefusedError as exc:
        raise DeniedError(f"{path}: {exc}") from exc
    except CodecError as exc:
        raise ProviderUnreachableError(f"cannot read {path}: {exc}") from exc
    except ClusterError as exc:
        raise ProviderUnreachableError(f"{path}: {exc}") from exc
