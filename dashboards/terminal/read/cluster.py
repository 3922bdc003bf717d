# SPDX-License-Identifier: Apache-2.0
"""
The cluster of `isolation.kube.store` as a fleet: what `top` and `inspect` show of its nodes and pods.

Decides what belongs to a fleet: nodes with cards, and pods that use cards or cannot be served. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dashboards.terminal.read.fleet import CardRequest, FleetNode, FleetPod
from isolation.contract.model import Mode, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Node, Pod, Slice
    from isolation.kube.store import RefusedPod, StoreView


def fleet_nodes(view: StoreView) -> list[FleetNode]:
    """Nodes that serve cards."""
    return [_node(node) for node in view.cluster.nodes if node.mode is not Mode.NONE and node.cards]


def fleet_pods(view: StoreView) -> list[FleetPod]:
    """Pods that use cards or wait for some, and pods with an invalid request; not those that have ended."""
    nodes = {node.name: node for node in view.cluster.nodes}
    pods = [_pod(pod, nodes) for pod in view.cluster.pods if pod.request.cards and pod.phase is not Phase.DONE]
    return pods + [_refused_pod(uid, refused) for uid, refused in view.refused.items()]


def _node(node: Node) -> FleetNode:
    return FleetNode(
        node.name,
        node.mode,
        node.cards,
        node.ready,
        node.cordoned,
        node.serving,
        node.pool,
        node.address,
        node.draining,
    )


def _pod(pod: Pod, nodes: Mapping[str, Node]) -> FleetPod:
    request, placement = pod.request, pod.placement
    wanted = CardRequest(request.cards, request.card_bytes, request.card_core, request.whole)
    if placement is None:
        return FleetPod(pod.namespace, pod.name, pod.uid, "", wanted)
    slices = _name_cards(placement.slices, nodes.get(placement.node))
    return FleetPod(pod.namespace, pod.name, pod.uid, placement.node, wanted, slices, reservation=pod.reservation)


def _name_cards(slices: tuple[Slice, ...], node: Node | None) -> tuple[Slice, ...]:
    """A record from before the agent named the node's cards has `<node>/<index>`: the card of that index."""
    if node is None or all("/" not in part.uuid for part in slices):
        return slices
    uuids = {f"{node.name}/{card.index}": card.uuid for card in node.cards}
    return tuple(replace(part, uuid=uuids.get(part.uuid, part.uuid)) for part in slices)


def _refused_pod(uid: str, refused: RefusedPod) -> FleetPod:
    namespace, _, name = refused.key.partition("/")
    return FleetPod(namespace, name, uid, refused.node, CardRequest(), fault=refused.refusal.reason)
