# SPDX-License-Identifier: Apache-2.0
"""
Live resize: what to do next about the amounts that are wanted of a bound pod.

What is in force is the sum of the records. A pod that grows is booked with more at once, on the same cards; its node
raises the limits afterwards. A pod that shrinks stays booked with what it had until its node has said that the smaller
limits are in force and that the kubelet counts the difference as free; of what is reserved for it nothing becomes free,
so it can have that back at once. Each step is one write of the record, so any leader can take the next one. Pure; time
does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.resize import (
    ResizeCondition,
    ResizeReason,
    ResizeStatus,
    Target,
    decode_status,
    target_of,
)
from isolation.contract.model import FULL_CORE, Placement, Refusal, Resize, parts_of
from isolation.contract.names import ACK
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from isolation.contract.model import Node, Pod
    from isolation.scheduler.core.capacity import Capacity


@dataclass(frozen=True, slots=True)
class RecordChange:
    """What a record is to say."""

    booked: Placement
    resize: Resize

    @property
    def final(self) -> bool:
        """Whether no more is booked than the pod is to have."""
        return not _beyond(self.booked, self.resize)


@dataclass(frozen=True, slots=True)
class ResizeStep:
    """What is to be written."""

    change: RecordChange | None = None
    """None: the record stays."""
    status: ResizeStatus | None = None
    """None: nothing is pending."""
    grows_bytes: int = 0
    """By so much more is booked than now, over all cards."""
    done: bool = False
    """What was wanted is in force."""


def is_open(pod: Pod) -> bool:
    """Whether there may be something to do."""
    return bool(pod.wanted_resize or pod.resize_status or pod.resize)


def next_step(pod: Pod, node: Node | None, capacity: Capacity, unit_bytes: int) -> ResizeStep:
    """The next step for this pod, whose booking stands in `capacity`."""
    placement, resize = pod.placement, pod.resize
    if placement is None or not placement.slices or not pod.request.shared:
        return ResizeStep()
    applied = None if node is None or node.applied is None else node.applied.get(pod.uid)
    settled = resize is None or (applied is not None and applied.generation >= resize.generation)
    if resize is not None and settled and _beyond(placement, resize):
        smaller = _amounts(placement, resize.card_bytes, resize.card_core)
        return ResizeStep(RecordChange(smaller, resize), _waiting(pod, ""))
    wanted = pod.wanted_resize
    if not wanted:
        return (
            ResizeStep(done=settled)
            if settled
            else ResizeStep(status=_waiting(pod, applied.message if applied else ""))
        )
    now = resize.parts if resize is not None else parts_of(pod.request, placement)
    target = target_of(wanted, pod.request, now, dialect=ACK, unit_bytes=unit_bytes)
    if isinstance(target, Refusal):
        return ResizeStep(status=ResizeStatus(ResizeCondition.PENDING, ResizeReason.INFEASIBLE, target.reason, wanted))
    if target.parts(placement.slices) == tuple(now) and _is_booked(pod, placement, target):
        if settled:
            return ResizeStep(done=True)
        return ResizeStep(status=_waiting(pod, applied.message if applied else ""))
    return _change(pod, placement, node, capacity, target)


def _change(pod: Pod, placement: Placement, node: Node | None, capacity: Capacity, target: Target) -> ResizeStep:
    """Another target than that of the record."""
    refusal = _no_room(pod, placement, node, capacity, target)
    if refusal is not None:
        return ResizeStep(status=ResizeStatus(ResizeCondition.PENDING, *refusal, pod.wanted_resize))
    held = placement.slices[0]
    each, core = max(held.bytes, target.card_bytes), max(held.core, target.card_core)
    generation = (pod.resize.generation if pod.resize is not None else 0) + 1
    resize = Resize(generation, target.card_bytes, target.card_core, target.parts(placement.slices))
    change = RecordChange(_amounts(placement, each, core), resize)
    status = ResizeStatus(ResizeCondition.IN_PROGRESS, ResizeReason.NONE, "", pod.wanted_resize)
    return ResizeStep(change, status, (each - held.bytes) * len(placement.slices))


def _no_room(
    pod: Pod, placement: Placement, node: Node | None, capacity: Capacity, target: Target
) -> tuple[ResizeReason, str] | None:
    """Why the target cannot be booked; None: it can."""
    if node is None or node.name not in capacity.engine.nodes:
        return ResizeReason.DEFERRED, f"node {placement.node} is not known, or serves no shares now"
    if node.applied is None:
        return ResizeReason.DEFERRED, f"the node agent of {node.name} does not support resizing yet; update it"
    if not node.serving:
        return ResizeReason.DEFERRED, f"the node agent of {node.name} is not ready"
    room = dict(zip((c.uuid for c in node.cards), capacity.engine.room(node.name), strict=True))
    cards = {card.uuid: card for card in node.cards}
    more = 0
    for part in placement.slices:
        card = cards.get(part.uuid)
        if card is None:
            return ResizeReason.DEFERRED, f"card {part.uuid} of the pod is not on node {node.name} any more"
        if target.card_bytes > card.allocatable_bytes or target.card_core > FULL_CORE:
            most = show_bytes(card.allocatable_bytes)
            return (
                ResizeReason.INFEASIBLE,
                f"card {part.uuid} offers {most} in all; {show_bytes(target.card_bytes)} are wanted",
            )
        grows, core = target.card_bytes - part.bytes, target.card_core - part.core
        free, free_core = room[part.uuid]
        if grows > max(0, free) and grows > 0:
            said = f"card {part.uuid} has {show_bytes(max(0, free))} free; {show_bytes(grows)} more are wanted"
            return ResizeReason.DEFERRED, said + _elsewhere(pod, capacity, target)
        if core > max(0, free_core) and core > 0:
            return (
                ResizeReason.DEFERRED,
                f"card {part.uuid} has {max(0, free_core)} percent of compute free; {core} more are wanted",
            )
        more += max(0, grows)
    models = {cards[part.uuid].model for part in placement.slices}
    over = capacity.quota.explain_refusal(pod.namespace, models, more) if more else ""
    return (ResizeReason.DEFERRED, over) if over else None


def _elsewhere(pod: Pod, capacity: Capacity, target: Target) -> str:
    """Where the pod would have the room, if anywhere: nobody is moved for a resize unasked."""
    request = replace(pod.request, card_bytes=target.card_bytes, card_core=target.card_core)
    with capacity.without([pod.uid]):
        found = capacity.engine.place(capacity.strip_request(request))
    if isinstance(found, Refusal):
        return "; no other card has the room either"
    cards = ", ".join(part.uuid for part in found.slices)
    move = "evict the pod to move it, and request the amount in its template"
    return f"; there is room on {cards} of node {found.node}: {move}"


def _waiting(pod: Pod, message: str) -> ResizeStatus:
    """Booked, and not in force yet."""
    wanted = pod.wanted_resize
    if not wanted:
        try:
            wanted = decode_status(pod.resize_status).wanted
        except CodecError:
            wanted = "{}"
    return ResizeStatus(
        ResizeCondition.IN_PROGRESS, ResizeReason.ERROR if message else ResizeReason.NONE, message, wanted
    )


def _is_booked(pod: Pod, placement: Placement, target: Target) -> bool:
    """Whether the record books what is to stay booked; its parts are those of the target."""
    if pod.resize is not None:
        return pod.resize.card_bytes == target.card_bytes
    return target.card_bytes <= placement.slices[0].bytes


def _beyond(placement: Placement, resize: Resize) -> bool:
    """Whether more is booked than the target."""
    return any(part.bytes > resize.card_bytes or part.core > resize.card_core for part in placement.slices)


def _amounts(placement: Placement, each: int, core: int) -> Placement:
    """The same cards with these amounts each."""
    return Placement(placement.node, tuple(replace(part, bytes=each, core=core) for part in placement.slices))
