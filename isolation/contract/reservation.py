# SPDX-License-Identifier: Apache-2.0
"""
A reservation: room on named cards that is kept for one pod, or for the next pod of one controller.

Rebalancer, pre-emption and scheduler are different processes; this stored object is how one of them tells
the others. It takes room like a pod until a pod for whom it is made names it in its binding
(`gpushare.dev/consumed-reservation`), or until it expires. JSON and values only: who makes one, and who may, is
decided elsewhere.

    apiVersion: gpushare.dev/v1alpha1
    kind: Reservation                      # cluster-scoped: tenants have no say in it
    metadata: {name: move-7f3a}
    spec:
      holder: <UID of the pod or of its controller>
      namespace: ml                        # whose quota it counts against
      node: n3
      cards: [{uuid: GPU-..., index: 0, bytes: 2147483648, core: 0}]
      expires: "2026-11-21T12:00:00Z"
      reason: preemption                   # a word for people and metrics

A purchase is a reservation whose node is not there yet. It names the pool that grows in place of a node, and by their
position the cards that it was counted on (no UUIDs). The scheduler chooses the node: the first of the pool that comes
up with room for all reservations with the same `plannedNode`, which were counted on one node. Until then it takes no
room.

    spec:
      ...
      pool: gpu-a10
      plannedNode: gpu-a10-18f3c
      cards: [{index: 0, bytes: 2147483648, core: 0}]
      reason: purchase

For a ProvisioningRequest there is one for each of its pods, and its pods carry the request's name:

    spec:
      ...
      holder: <UID of the ProvisioningRequest>
      provisioningRequest: job-train-cards-1
      reason: gang
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from isolation.contract.codec.allocation import slices_of
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of, time_of
from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.model import Placement, Pod, Slice
from isolation.contract.names import API_VERSION, GROUP, RESERVATIONS

KIND: Final = "Reservation"
RESERVATIONS_PATH: Final = f"/apis/{GROUP}/{API_VERSION}/{RESERVATIONS}"
LONGEST_SECONDS: Final = 3600.0
"""From its making until it expires: room that nobody uses is wasted."""
PURCHASE: Final = "purchase"
"""Reason of a reservation on a node that was bought for its pod."""
GANG: Final = "gang"
"""Reason of a reservation for one of the pods of a ProvisioningRequest."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """See the module."""

    name: str
    holder: str
    """UID of a pod, or of the controller whose next pod it is for."""
    placement: Placement
    expires: float
    """Seconds since the epoch."""
    namespace: str = ""
    reason: str = ""
    uid: str = ""
    """Of the object; empty before it is stored."""
    pool: str = ""
    """Of the node to come, where none is named; the cards of `placement` have positions and no UUIDs then."""
    planned_node: str = ""
    """Reservations of one pool that share it are meant for one node."""
    provisioning_request: str = ""
    """Name of the ProvisioningRequest in `namespace` for one of whose pods it is; empty: for the holder's."""

    def serves(self, pod: Pod) -> bool:
        """Whether it was made for this pod, and for as many cards with as much of each."""
        request, slices = pod.request, self.placement.slices
        if self.provisioning_request:
            # Exactly as much: a smaller pod of the same job must not take what a larger one needs.
            return (pod.namespace, pod.provisioning_request) == (self.namespace, self.provisioning_request) and (
                request.cards == len(slices)
                and all((part.bytes, part.core) == (request.card_bytes, request.card_core) for part in slices)
            )
        return (
            self.holder in {pod.uid, pod.owner_uid}
            and request.cards == len(slices)
            and all(part.bytes >= request.card_bytes and part.core >= request.card_core for part in slices)
        )


def reservation_of(thing: object) -> Reservation:
    """A stored object; CodecError where it is not one of ours."""
    at = At(thing)
    metadata, spec = at["metadata"], at["spec"]
    holder, node, pool = spec["holder"].text(), spec["node"].text(), spec["pool"].text()
    if not holder or not spec["expires"] or bool(node) == bool(pool):
        raise spec.wrong("holder, expires and either node or pool are required")
    return Reservation(
        name=metadata["name"].name(),
        holder=holder,
        placement=Placement(node, slices_of(spec["cards"], named=bool(node))),
        expires=seconds_of(spec["expires"]),
        namespace=spec["namespace"].text(),
        reason=spec["reason"].text(),
        uid=metadata["uid"].text(),
        pool=pool,
        planned_node=spec["plannedNode"].text(),
        provisioning_request=spec["provisioningRequest"].text(),
    )


def manifest_of(made: Reservation) -> dict[str, Any]:
    """The object to be stored."""
    if not made.placement.slices:
        raise CodecError(("spec", "cards"), "at least one card is required")
    spec: dict[str, Any] = {"holder": made.holder, "cards": [_card_of(part) for part in made.placement.slices]}
    spec["expires"] = time_of(made.expires)
    more = {
        "namespace": made.namespace,
        "node": made.placement.node,
        "pool": made.pool,
        "plannedNode": made.planned_node,
        "provisioningRequest": made.provisioning_request,
    }
    spec |= {key: value for key, value in (more | {"reason": made.reason}).items() if value}
    return {
        "apiVersion": f"{GROUP}/{API_VERSION}",
        "kind": KIND,
        "metadata": {"name": made.name},
        "spec": spec,
    }


def _card_of(part: Slice) -> dict[str, Any]:
    return ({"uuid": part.uuid} if part.uuid else {}) | {"index": part.index, "bytes": part.bytes, "core": part.core}


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    count = {"type": "integer", "format": "int64", "minimum": 0}
    card = {
        "type": "object",
        "required": ["index", "bytes"],
        "properties": {
            "uuid": {"type": "string", "minLength": 1, "description": "UUID of the card; none where `pool` is set."},
            "index": {**count, "description": "Index of the card on its node."},
            "bytes": {**count, "description": "Memory of the card that is kept."},
            "core": {**count, "description": "Percent of the card's compute that is kept."},
        },
    }
    spec = {
        "type": "object",
        "required": ["holder", "cards", "expires"],
        "properties": {
            "holder": {
                "type": "string",
                "minLength": 1,
                "maxLength": 128,
                "description": "UID of the pod that the room is for, of its controller, or of its ProvisioningRequest.",
            },
            "namespace": {"type": "string", "maxLength": 63, "description": "Namespace whose quota it counts against."},
            "node": {
                "type": "string",
                "minLength": 1,
                "maxLength": 253,
                "description": "Node with the cards. Either this or `pool`.",
            },
            "pool": {
                "type": "string",
                "minLength": 1,
                "maxLength": 253,
                "description": "Pool that grows for it, while the node does not exist yet.",
            },
            "plannedNode": {
                "type": "string",
                "maxLength": 253,
                "description": "Reservations of one pool with the same value are for one node.",
            },
            "provisioningRequest": {
                "type": "string",
                "maxLength": 253,
                "description": "ProvisioningRequest in `namespace` that it was made for; its pods use it up.",
            },
            "cards": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_CARDS,
                "items": card,
                "description": "What is kept of each card.",
            },
            "expires": {"type": "string", "format": "date-time", "description": "When the room is free again."},
            "reason": {"type": "string", "maxLength": 63, "description": "A word for people and metrics."},
        },
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "spec is immutable; delete the reservation and create a new one"},
            {"rule": "has(self.node) != has(self.pool)", "message": "either node or pool is required"},
            {
                "rule": "has(self.pool) || self.cards.all(card, has(card.uuid))",
                "message": "cards of a node are named by uuid",
            },
        ],
    }
    columns = (
        ("Node", "spec.node", "string"),
        ("Pool", "spec.pool", "string"),
        ("Holder", "spec.holder", "string"),
        ("Reason", "spec.reason", "string"),
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{RESERVATIONS}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"plural": RESERVATIONS, "singular": KIND.lower(), "kind": KIND, "shortNames": ["gpures"]},
            "versions": [
                {
                    "name": API_VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {"spec": spec}}
                    },
                    "additionalPrinterColumns": [
                        *({"name": name, "type": kind, "jsonPath": f".{path}"} for name, path, kind in columns),
                        {"name": "Expires", "type": "date", "jsonPath": ".spec.expires"},
                    ],
                }
            ],
        },
    }
