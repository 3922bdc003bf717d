# SPDX-License-Identifier: Apache-2.0
"""
The scheduler's writes besides bindings: reservations, the annotation that requeues a pod, labels, conditions.

Each is one request that is safe to repeat. A refusal by the API server is returned as text; `UnreachableError` means
that the outcome is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from isolation.contract.names import LEADER, ROLE, SHARED, WOKEN
from isolation.contract.provisioning_request import provisioning_request_of, status_of
from isolation.contract.reservation import RESERVATIONS_PATH, manifest_of
from isolation.kube.core.errors import ConflictError, InvalidError, NotFoundError, RefusedError
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.provisioning_request import ProvisioningRequest
    from isolation.contract.reservation import Reservation
    from isolation.kube.access import Access
    from isolation.kube.writes import PodRef


class ObjectWriter:
    """See the module."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def create_reservation(self, made: Reservation) -> str:
        """Create the object; empty: done, else the API server's message."""
        try:
            stored = decode_object(await self._access.send("POST", RESERVATIONS_PATH, manifest_of(made)))
        except RefusedError as exc:
            return exc.message or exc.reason
        if made.provisioning_request and "provisioningRequest" not in (stored.get("spec") or {}):
            # The API server drops fields that its definition does not know: no pod could use this one.
            return "the kind Reservation is of an older version: apply its CustomResourceDefinition again"
        return ""

    async def delete_reservation(self, made: Reservation) -> str:
        """Delete this one and no other of its name; empty: it is gone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"preconditions": {"uid": made.uid}} if made.uid else {}
        try:
            await self._access.send("DELETE", f"{RESERVATIONS_PATH}/{quote(made.name, safe='')}", body | preconditions)
        except (NotFoundError, ConflictError):
            return ""
        except RefusedError as exc:
            return exc.message or exc.reason
        return ""

    async def read(self, path: str) -> dict[str, Any] | None:
        """One object as JSON; None: there is none. ClusterError: not known."""
        try:
            return decode_object(await self._access.send("GET", path))
        except NotFoundError:
            return None

    async def set_conditions(
        self, asked: ProvisioningRequest, conditions: Sequence[Mapping[str, Any]]
    ) -> ProvisioningRequest | None:
        """Write the status under the version that was read: the request as it is now; ConflictError: it has changed."""
        text = await self._access.send("PATCH", f"{asked.path}/status", status_of(asked, conditions), "merge-patch")
        return provisioning_request_of(decode_object(text))

    async def requeue(self, pod: PodRef, moment: str) -> str:
        """Update an unschedulable pod: kube-scheduler then retries it."""
        body = {"metadata": {"uid": pod.uid, "annotations": {WOKEN: moment}}}
        return await self._patch(pod.path, body)

    async def label_shared(self, pod: PodRef) -> str:
        """Label a pod that another scheduler placed as one with shares."""
        return await self._patch(pod.path, {"metadata": {"uid": pod.uid, "labels": {SHARED: "true"}}})

    async def set_leader_label(self, namespace: str, name: str, *, leads: bool) -> str:
        """Set or remove the label of this pod by which a Service finds the leader."""
        body = {"metadata": {"labels": {ROLE: LEADER if leads else None}}}
        return await self._patch(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}", body)

    async def _patch(self, path: str, body: object) -> str:
        """Patch labels and annotations through the status: the right to it does not include images."""
        try:
            await self._access.send("PATCH", f"{path}/status", body, "merge-patch")
        except (NotFoundError, ConflictError, InvalidError):
            # a pod of another UID under this name is refused with 409 or 422: the one meant is gone
            return ""  # a pod of another UID under this name is refused with 409 or 422: ours is gone
        except RefusedError as exc:
            return exc.message or exc.reason
        return ""
