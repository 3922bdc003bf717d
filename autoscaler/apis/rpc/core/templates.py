# SPDX-License-Identifier: Apache-2.0
"""
What a fresh node of a pool looks like to cluster-autoscaler, which simulates with sums.

Turns a node of the model into a node of Kubernetes, the cards as capacity and, for those who count card by
card, as our annotation. Drops what belongs to one node only. Decides nothing about size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.apis.rpc.core.wire.core import node_bytes
from autoscaler.core.pools import card_uuid
from isolation.contract.codec.node import encode_cards
from isolation.contract.model import FULL_CORE, SHARED_MODES, Mode
from isolation.contract.names import ACK, CARD_COUNT, CARD_UNITS, CARDS, MIG_PREFIX, POOL, WHOLE_CARDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from autoscaler.apis.rpc.core.node_groups import NodeGroup
    from isolation.contract.model import Node
    from isolation.contract.names import Dialect

_ONE_NODES: Final = "kubernetes.io/hostname"


def encode_template(group: NodeGroup, dialect: Dialect = ACK) -> bytes | None:
    """The group's template as v1.Node; None where nothing is known of it."""
    if group.template is None:
        return None
    return node_bytes(build_template(group.template, group.name, group.others, dialect))


def build_template(node: Node, pool: str, others: Mapping[str, str], dialect: Dialect = ACK) -> dict[str, Any]:
    """The same as JSON; ready, without the name of any one node."""
    name = f"{pool}-template"
    labels = {**node.labels, POOL: pool, _ONE_NODES: name}
    annotations = {}
    if node.mode in SHARED_MODES and node.cards:
        # what admission turned into node affinity of the pods: without them no pod would match the template
        labels |= {CARD_UNITS: str(_largest(node)), CARD_COUNT: str(len(node.cards))}
        annotations = {CARDS: encode_cards(replace(card, uuid=card_uuid(name, card.index)) for card in node.cards)}
    if node.mode is Mode.EXCLUSIVE and node.cards:
        labels[WHOLE_CARDS] = node.cards[0].model or "unknown"
    amounts = {
        "cpu": f"{node.cpu_milli}m",
        "memory": str(node.memory_bytes),
        "pods": str(node.pods),
        **others,
        **_on_cards(node, dialect),
    }
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in node.taints]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Template"}],
        },
    }


def _on_cards(node: Node, dialect: Dialect) -> dict[str, str]:
    """The extended resources that the node agent, or the vendor's plugin, will state."""
    sound = [card for card in node.cards if card.healthy]
    if not sound or node.mode is Mode.NONE:
        return {}
    if node.mode is Mode.EXCLUSIVE:
        profiles = Counter(card.instance.profile if card.instance is not None else "" for card in sound)
        return {MIG_PREFIX + profile if profile else dialect.whole: str(n) for profile, n in profiles.items()}
    units = sum(card.allocatable_bytes // card.unit_bytes for card in sound)
    found = {dialect.memory: str(units), dialect.card_count: str(len(sound))}
    if node.mode in {Mode.CORE_MEM, Mode.MPS}:
        found[dialect.compute] = str(FULL_CORE * sum(card.instance is None for card in sound))
    return found


def _largest(node: Node) -> int:
    return max(card.allocatable_bytes // card.unit_bytes for card in node.cards)
