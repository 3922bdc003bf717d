# SPDX-License-Identifier: Apache-2.0
"""
Cards for all pods of a ProvisioningRequest, or for none of them.

Decides which card of which node each pod gets, one pod after another, the largest first, with the placement engine:
what it chose for one counts as taken for the next. Where one pod finds no place, none keeps any. It is not a search
over all arrangements: it may refuse a gang of several shapes, or of several cards a pod, that another order would
place. CPU and host memory are kube-scheduler's business and are not counted. Pure, except that it takes holds in the
given `Capacity`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.model import Placement, Refusal, Request, Why
from isolation.contract.provisioning_request import MAX_PODS
from isolation.contract.reservation import GANG
from isolation.placement.explain import describe_request
from isolation.placement.node_rules import find_barrier, needs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.model import Node, Rules
    from isolation.contract.provisioning_request import ProvisioningRequest
    from isolation.contract.reservation import Reservation
    from isolation.scheduler.core.capacity import Capacity

BOOKED_SECONDS: Final = 600.0
"""For so long cards are kept for pods that have not started: cluster-autoscaler's own time."""
SPARE_SECONDS: Final = 30.0
"""A reservation outlives the booking by so much: whoever reads that it holds has some time to act."""
MAX_SHAPES: Final = 8
"""Different requests in one gang: for each, every node is looked at while the scheduler answers nobody."""

Member = tuple[str, Request]
"""The template of one pod, and what it asks for."""


def reservation_names(asked: ProvisioningRequest, pods: int) -> list[str]:
    """One name for each pod; the same for whoever leads, so that two leaders cannot both reserve for one pod."""
    return [f"{GANG}-{asked.uid}-{at}" for at in range(pods)]


def refuse_early(members: Sequence[Member]) -> Refusal | None:
    """What no cluster could serve, or requests whose pods could not be matched to their reservations."""
    if not members:
        return Refusal(Why.INVALID, "no pod set requests shares of cards: leave it out of the check's managedResources")
    if len(members) > MAX_PODS:
        return Refusal(Why.INVALID, f"{len(members)} pods: at most {MAX_PODS} start together")
    rules: dict[tuple[int, int, int], tuple[object, str]] = {}
    for template, request in members:
        shape = request.cards, request.card_bytes, request.card_core
        known, other = rules.setdefault(shape, (request.rules, template))
        if known != request.rules:
            why = f"templates {other} and {template} ask for equal shares on different nodes or cards"
            return Refusal(Why.INVALID, f"{why}: give them the same rules, or different amounts")
    if len(rules) > MAX_SHAPES:
        return Refusal(Why.INVALID, f"{len(rules)} different requests: at most {MAX_SHAPES} in one gang")
    return None


def place_gang(
    capacity: Capacity, namespace: str, members: Sequence[Member], keys: Sequence[str]
) -> list[Placement] | Refusal:
    """Cards for each pod, in the order of `members`, held under its key; or why not, and nothing is held."""
    found: dict[int, Placement] = {}
    nodes: dict[tuple[Request, Rules], list[str]] = {}
    for at in sorted(range(len(members)), key=lambda at: _largest_first(members[at][1])):
        template, request = members[at]
        stripped = capacity.strip_request(request)
        kind = stripped, request.rules
        if kind not in nodes:
            nodes[kind] = [name for name, node in capacity.nodes.items() if _may_use(capacity, request, node)]
        place = _place(capacity, namespace, request, nodes[kind])
        if isinstance(place, Refusal):
            for other in found:
                capacity.free(keys[other])
            some = f"{len(found)} of {len(members)} pods fit; a pod of template {template} does not: "
            return Refusal(place.why, (some if len(members) > 1 else "") + place.reason)
        found[at] = place
        capacity.hold(keys[at], namespace, stripped, place)
    return [found[at] for at in range(len(members))]


def has_place(capacity: Capacity, made: Reservation, key: str) -> bool:
    """Whether a pod could start on the reserved cards now."""
    node, slices = capacity.nodes.get(made.placement.node), made.placement.slices
    if node is None or not _serves(node):
        return False
    request = Request(cards=len(slices), card_bytes=slices[0].bytes, card_core=slices[0].core)
    with capacity.without([key]):
        return capacity.place_exactly(request, made.namespace, made.placement) is not None


def _serves(node: Node) -> bool:
    return node.serving and node.ready and not node.cordoned


def _may_use(capacity: Capacity, request: Request, node: Node) -> bool:
    return _serves(node) and node.name in capacity.engine.nodes and find_barrier(needs_of(request), node) is None


def _place(capacity: Capacity, namespace: str, request: Request, nodes: Sequence[str]) -> Placement | Refusal:
    """The best node that takes the pod; a quota by card model may exclude some."""
    stripped = capacity.strip_request(request)
    scores = capacity.engine.rate(stripped, nodes)[0]
    refused: Refusal | None = None
    for row in np.argsort(scores, kind="stable").tolist():
        if not np.isfinite(scores[row]):
            break
        place = capacity.place_on(request, namespace, nodes[row])
        if isinstance(place, Placement):
            return place
        refused = place
    return refused or _explain(capacity, request)


def _explain(capacity: Capacity, request: Request) -> Refusal:
    """In the words of `explain`, where no card has room; else what keeps the pod off the node whose cards have."""
    found = capacity.engine.place(capacity.strip_request(request))
    if isinstance(found, Refusal):
        return found
    node = capacity.nodes[found.node]
    why, barrier = find_barrier(needs_of(request), node) or (Why.NOT_READY, "it is not ready, or cordoned")
    room = f"{describe_request(request)}: node {found.node} has room, but the pod cannot use it"
    return Refusal(why, f"{room}: {barrier}")


def _largest_first(request: Request) -> tuple[int, int, int]:
    return -request.card_bytes * request.cards, -request.card_core, -request.cards
