# SPDX-License-Identifier: Apache-2.0
"""
What gpushare writes into a cluster, each write once, with a deadline, and safe to repeat or sure to be refused.

Decides how a wish becomes a request and what the answer means. A refusal by the cluster is a
value; an `UnreachableError` means that nobody knows, and then `placed` tells by UID. Nothing
here retries: who asked knows whether the wish still stands.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from isolation.kube.core.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RefusedError,
    ServerError,
    TooManyRequestsError,
)
from isolation.kube.core.lease import LeaseRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.kube.access import Access

REQUEST_SECONDS: Final = 60.0
"""
So long may a request whose sender has given up still take effect: kube-apiserver's --request-timeout, 1m0s by default.

https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/
"""
_REPORTER: Final = "gpushare.dev"
_LONGEST_NOTE: Final = 1000  # the API's bound is 1 KiB
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class PodRef:
    """One pod, and no other of its name."""

    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        """Of the object."""
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods/{quote(self.name, safe='')}"


class Outcome(StrEnum):
    """What became of a wish."""

    DONE = "done"
    REFUSED = "refused"
    """The cluster said no; nothing happened."""
    GONE = "gone"
    """There is no such pod (any more)."""
    BLOCKED = "blocked"
    """Not now: a disruption budget or the server's load; ask again later."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome, and what the server said."""

    outcome: Outcome
    said: str = ""
    retry_after: float | None = None

    def __bool__(self) -> bool:
        return self.outcome is Outcome.DONE


@dataclass(frozen=True, slots=True)
class PodLocation:
    """Where a pod is by the server's word."""

    node: str
    """Empty: unbound."""
    annotations: Mapping[str, str]
    ended: bool = False
    """Succeeded or failed: it holds nothing any more."""


class Writer:
    """Writes as one identity."""

    def __init__(self, access: Access, me: str) -> None:
        self._access, self._me = access, me

    async def bind(
        self, pod: PodRef, node: str, annotations: Mapping[str, str], seconds: float | None = None
    ) -> WriteResult:
        """
        Node and records in one write; refused where the UID is another's or the pod is bound already.

        `seconds` is what is left of the caller's right to act.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        return await self._pod_write("POST", f"{pod.path}/binding", body, seconds)

    async def placed(self, pod: PodRef, seconds: float | None = None) -> PodLocation | None:
        """Where the pod is, by UID, asked of the server itself; None where it is no more."""
        try:
            found = decode_object(await self._access.send("GET", pod.path, seconds=seconds))
        except NotFoundError:
            return None
        meta = found.get("metadata") or {}
        if meta.get("uid") != pod.uid:
            return None
        node, phase = (found.get("spec") or {}).get("nodeName") or "", (found.get("status") or {}).get("phase")
        return PodLocation(node, meta.get("annotations") or {}, ended=phase in ("Succeeded", "Failed"))

    async def evict(self, pod: PodRef, seconds: float | None = None) -> WriteResult:
        """Through the Eviction API, which keeps disruption budgets; DONE means that the pod is ending."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        return await self._pod_write("POST", f"{pod.path}/eviction", body, seconds)

    async def delete(self, pod: PodRef, seconds: float | None = None) -> WriteResult:
        """Past disruption budgets, for a pod that must not go on."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        return await self._pod_write("DELETE", pod.path, body, seconds)

    async def state_resources(self, node: str, amounts: Mapping[str, int], seconds: float | None = None) -> WriteResult:
        """Plain amounts of a node's status that no device plugin owns, capacity and allocatable alike."""
        stated = {name: str(amount) for name, amount in amounts.items()}
        body = {"status": {"capacity": stated, "allocatable": stated}}
        path = f"/api/v1/nodes/{quote(node, safe='')}/status"
        return await self._pod_write("PATCH", path, body, seconds, "merge-patch")

    async def label_node(
        self, node: str, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> WriteResult:
        """A node's labels and annotations; None removes one."""
        body = {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}
        return await self._pod_write("PATCH", f"/api/v1/nodes/{quote(node, safe='')}", body, None, "merge-patch")

    async def _pod_write(
        self, method: str, path: str, body: object, seconds: float | None, kind: str = "json"
    ) -> WriteResult:
        try:
            await self._access.send(method, path, body, kind, seconds)
        except RefusedError as exc:
            return _answer(exc)
        return WriteResult(Outcome.DONE)

    async def event(self, about: PodRef, reason: str, note: str, *, warning: bool = False) -> WriteResult:
        """One line in the pod's history. `reason` is one CamelCase word."""
        now = dt.datetime.now(dt.UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{about.name[:_LONGEST_NAME].rstrip('.-')}.{int(now.timestamp() * 1e6):x}",
                "namespace": about.namespace,
            },
            "eventTime": stamp,
            "reportingController": _REPORTER,
            "reportingInstance": self._me[:128],
            "action": reason,
            "reason": reason,
            "note": note.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
            "type": "Warning" if warning else "Normal",
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(about.namespace, safe='')}/events"
        return await self._pod_write("POST", path, body, None)


class LeaseClient:
    """One Lease object, read and written under its version."""

    def __init__(self, access: Access, namespace: str, name: str) -> None:
        self._access, self._name = access, name
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self._one = f"{self._all}/{quote(name, safe='')}"

    async def read(self, seconds: float) -> LeaseRecord | None:
        """The Lease from the server's store, not from a cache; None where there is none."""
        try:
            return _record(decode_object(await self._access.send("GET", self._one, seconds=seconds)))
        except NotFoundError:
            return None

    async def write(self, wish: LeaseRecord, seconds: float) -> LeaseRecord | None:
        """The Lease as it is now; None where somebody else was faster."""
        stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": wish.holder,
            "leaseDurationSeconds": max(1, math.ceil(wish.duration)),
            "leaseTransitions": wish.epoch,
            "renewTime": stamp,
        }
        meta = {"name": self._name} | ({"resourceVersion": wish.version} if wish.version else {})
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        method, path = ("PUT", self._one) if wish.version else ("POST", self._all)
        try:
            return _record(decode_object(await self._access.send(method, path, body, seconds=seconds)))
        except (ConflictError, NotFoundError):
            return None


def _answer(exc: RefusedError) -> WriteResult:
    said = exc.message or exc.reason
    if isinstance(exc, NotFoundError):
        return WriteResult(Outcome.GONE, said)
    if isinstance(exc, TooManyRequestsError | ServerError):
        return WriteResult(Outcome.BLOCKED, said, exc.retry_after)
    return WriteResult(Outcome.REFUSED, said)


def decode_object(text: bytes) -> dict[str, Any]:
    """An answer that is one object; MalformedError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedError("response is not JSON") from None
    if not isinstance(found, dict):
        raise MalformedError("response is not a JSON object")
    return found


def _record(lease: dict[str, Any]) -> LeaseRecord:
    meta, spec = lease.get("metadata") or {}, lease.get("spec") or {}
    version, holder = meta.get("resourceVersion"), spec.get("holderIdentity") or ""
    seconds, epoch = spec.get("leaseDurationSeconds") or 0, spec.get("leaseTransitions") or 0
    if not isinstance(version, str) or not version or not isinstance(holder, str):
        raise MalformedError("Lease has no resourceVersion, or its holderIdentity is not a string")
    if not isinstance(seconds, int) or not isinstance(epoch, int):
        raise MalformedError("Lease has a leaseDurationSeconds or leaseTransitions that is not an integer")
    return LeaseRecord(version, holder, float(seconds), epoch)
