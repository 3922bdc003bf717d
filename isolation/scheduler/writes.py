# SPDX-License-Identifier: Apache-2.0
"""
The scheduler's writes besides bindings: reservations, the mark on a pod that is to be tried again, its own role.

Decides how a wish becomes one request, each safe to repeat; what to wish is decided elsewhere. A refusal
by the cluster is a value, `UnreachableError` means that nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from isolation.contract.names import LEADER, ROLE, WOKEN
from isolation.contract.reservation import manifest_of
from isolation.kube.core.errors import ConflictError, InvalidError, NotFoundError, RefusedError
from isolation.scheduler.informers import RESERVATIONS_PATH

if TYPE_CHECKING:
    from isolation.contract.reservation import Reservation
    from isolation.kube.access import Access
    from isolation.kube.writes import PodRef


class Objects:
    """Writes as one identity."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def reserve(self, made: Reservation) -> str:
        """Store it; empty where that was done now, else what the server said."""
        try:
            await self._access.send("POST", RESERVATIONS_PATH, manifest_of(made))
        except RefusedError as exc:
            return exc.message or exc.reason
        return ""

    async def release(self, made: Reservation) -> str:
        """Delete this one and no other of its name; empty where it is no more."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"preconditions": {"uid": made.uid}} if made.uid else {}
        try:
            await self._access.send("DELETE", f"{RESERVATIONS_PATH}/{quote(made.name, safe='')}", body | preconditions)
        except (NotFoundError, ConflictError):
            return ""
        except RefusedError as exc:
            return exc.message or exc.reason
        return ""

    async def wake(self, pod: PodRef, moment: str) -> str:
        """An update of a waiting pod, at which kube-scheduler tries it again."""
        body = {"metadata": {"uid": pod.uid, "annotations": {WOKEN: moment}}}
        return await self._patch(pod.path, body)

    async def role(self, namespace: str, name: str, *, leads: bool) -> str:
        """The label of our own pod by which a Service finds the leader."""
        body = {"metadata": {"labels": {ROLE: LEADER if leads else None}}}
        return await self._patch(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}", body)

    async def _patch(self, path: str, body: object) -> str:
        """Labels and annotations through the status: the right to it does not reach images."""
        try:
            await self._access.send("PATCH", f"{path}/status", body, "merge-patch")
        except (NotFoundError, ConflictError, InvalidError):
            return ""  # a pod of another UID under this name is refused with 409 or 422: ours is gone
        except RefusedError as exc:
            return exc.message or exc.reason
        return ""
