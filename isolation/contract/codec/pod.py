# SPDX-License-Identifier: Apache-2.0
"""
A Kubernetes pod as the model sees it: who it is, what it asked for, where it is.

Decides what of a pod's own words is believed: cards from a record only on a pod that is bound,
amounts from the spec (which the API server keeps) rather than from an annotation, unless the record
says that our scheduler has resized the pod. Whether the pod may stay where it is, is decided elsewhere.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.allocation import decode_allocation, decode_classic, decode_vendor
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.request import controller_of, goes_with_its_node, request_of
from isolation.contract.model import Ask, Phase, Placement, Pod, Refusal, Request, Resize, Slice
from isolation.contract.names import (
    ACK,
    ALLOCATION,
    CLASSIC_CARD,
    EVICT,
    MIRROR,
    PROVISIONING_REQUEST,
    RESERVATION,
    RESIZE,
    RESIZE_STATUS,
    SAFE_TO_EVICT,
    USER_SAFE_TO_EVICT,
    Dialect,
)
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Node

_PHASES: Final = {"Succeeded": Phase.DONE, "Failed": Phase.DONE, "Running": Phase.RUNNING, "Unknown": Phase.RUNNING}
# RFC 3339 as the API server writes it: always UTC.
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)


def pod_of(
    pod: object,
    nodes: Mapping[str, Node] | None = None,
    *,
    dialect: Dialect = ACK,
    unit_bytes: int = GIB,
    request: Request | Refusal | None = None,
) -> Pod | Refusal:
    """
    One pod; `nodes` give the vendor's card indices their UUIDs.

    `request` is what `request_of` said of this pod's metadata and spec, where the caller has
    it already from a replica: reading it is most of the work.

    A pod that holds cards by a readable record is a Pod even where its request makes no sense
    to us: it holds them. Any other senseless request is the Refusal. Wrong JSON: CodecError.
    """
    at = At(pod)
    metadata, spec, status = at["metadata"], at["spec"], at["status"]
    node, annotations = spec.text_at("nodeName"), metadata["annotations"].texts()
    controller, owner_uid = controller_of(metadata.value)
    if request is None:
        request = request_of(metadata.value, spec.value, dialect=dialect, unit_bytes=unit_bytes)
    slices, resize = _recorded(annotations, node, nodes or {}, dialect, unit_bytes) if node else ((), None)
    if node and not slices and isinstance(request, Request) and CLASSIC_CARD in annotations:
        # Anybody may write these: they place a pod that asks for as much, and give none anything.
        slices = _classic(annotations, node, nodes or {}, unit_bytes)
    if isinstance(request, Refusal):
        if not slices:
            return request
        request = _as_recorded(slices, controller)
    elif request.cards != len(slices):
        slices, resize = (), None
    elif request.shared and resize is None:
        size, core = request.card_bytes, request.card_core
        slices = tuple(Slice(part.uuid, part.index, size, core) for part in slices)
    return Pod(
        uid=metadata.text_at("uid"),
        name=metadata["name"].name(),
        namespace=metadata["namespace"].label_name("default"),
        request=request,
        placement=Placement(node, slices) if node else None,
        phase=_PHASES.get(status.text_at("phase"), Phase.PENDING),
        created=seconds_of(metadata["creationTimestamp"]),
        priority=spec["priority"].integer(0),
        labels=metadata["labels"].texts(),
        evictable=_evictable(controller, annotations),
        deleting=bool(metadata["deletionTimestamp"]),
        owner_uid=owner_uid,
        reservation=annotations.get(RESERVATION, "") if node else "",
        provisioning_request=annotations.get(PROVISIONING_REQUEST, ""),
        static=MIRROR in annotations,
        preempts=spec.text_at("preemptionPolicy") != "Never",
        resize=resize if slices and request.shared else None,
        wanted_resize=annotations.get(RESIZE, "") if node else "",
        resize_status=annotations.get(RESIZE_STATUS, "") if node else "",
    )


def safe_to_evict(annotations: Mapping[str, str]) -> bool | None:
    """
    What the pod's owner says of evicting it by cluster-autoscaler's annotation; None: nothing.

    The only reader of it. Whoever sets that annotation in the owner's place moves the owner's own value (an empty one
    where there is none) to `USER_SAFE_TO_EVICT`: where that stands, it alone is the owner's word. As for
    cluster-autoscaler every other value says nothing.
    """
    said = annotations.get(USER_SAFE_TO_EVICT, annotations.get(SAFE_TO_EVICT))
    return {"true": True, "false": False}.get(said or "")


def seconds_of(at: At) -> float:
    """Seconds since 1970 of a Kubernetes time; 0 where none is given."""
    if not at:
        return 0.0
    text = at.text()
    try:
        # fromisoformat alone would take other spellings of ISO 8601 too, and local times.
        if _TIME.fullmatch(text):
            return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:  # no such day, or no such hour
        pass
    raise at.wrong("expected a time such as 2026-01-31T12:00:00Z")


def time_of(seconds: float) -> str:
    """Seconds since 1970 as Kubernetes writes a time, cut to whole ones: the inverse of `seconds_of`."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).replace(tzinfo=None).isoformat() + "Z"


def _recorded(
    annotations: Mapping[str, str], node: str, nodes: Mapping[str, Node], dialect: Dialect, unit_bytes: int
) -> tuple[tuple[Slice, ...], Resize | None]:
    """The cards that a record names, ours before the vendor's, and its resize; none where no record can be read."""
    try:
        if ALLOCATION in annotations:
            found = decode_allocation(annotations[ALLOCATION])
            return found.slices, found.resize
        if dialect.allocation_annotation in annotations:
            record = annotations[dialect.allocation_annotation]
            return decode_vendor(record, _uuids(node, nodes), node, unit_bytes=unit_bytes), None
    except CodecError:
        pass
    return (), None


def _classic(
    annotations: Mapping[str, str], node: str, nodes: Mapping[str, Node], unit_bytes: int
) -> tuple[Slice, ...]:
    """The card that the classic extender chose; none where that cannot be read."""
    try:
        return decode_classic(annotations, _uuids(node, nodes), node, unit_bytes=unit_bytes)
    except CodecError:
        return ()


def _uuids(node: str, nodes: Mapping[str, Node]) -> dict[int, str]:
    """Of the node's cards, by index."""
    return {card.index: card.uuid for card in nodes[node].cards} if node in nodes else {}


def _as_recorded(slices: tuple[Slice, ...], owner: str) -> Request:
    """A request that amounts to what the record holds: the largest part on every card."""
    each, core = max(part.bytes for part in slices), max(part.core for part in slices)
    ask = Ask("", each * len(slices), core * len(slices))
    return Request(cards=len(slices), card_bytes=each, card_core=core, owner=owner, asks=(ask,))


def _evictable(controller: str, annotations: Mapping[str, str]) -> bool:
    """Whether something makes the pod again elsewhere, and nobody said no."""
    remade = bool(controller) and not goes_with_its_node(controller)
    return remade and MIRROR not in annotations and annotations.get(EVICT) != "false"
