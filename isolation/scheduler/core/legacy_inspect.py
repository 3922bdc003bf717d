# SPDX-License-Identifier: Apache-2.0
"""
The inspect answer of the classic gpushare extender, for tools that still ask for it.

Pure. Amounts are units of shared memory, cards go by index, as they always did; a node that is not known
is an answer with an error in it, not an HTTP error. Sources: AliyunContainerService
gpushare-scheduler-extender (`/gpushare-scheduler/inspect[/<node>]`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.scheduler.core.answers import InspectedNode

PREFIX: Final = "/gpushare-scheduler"
_ENCODE: Final = msgspec.json.Encoder()


def encode_inspection(nodes: Iterable[InspectedNode], only: str | None = None) -> bytes:
    """Every node with shared cards, or the one that is asked for."""
    wanted = [node for node in nodes if only is None or node.name == only]
    error = "" if wanted or only is None else f"node {only} is unknown or has no shared cards"
    return _ENCODE.encode({"nodes": [_node(node) for node in wanted], "error": error})


def encode_version(release: str) -> bytes:
    """Which gpushare answers."""
    return _ENCODE.encode({"version": release})


def _node(node: InspectedNode) -> dict[str, Any]:
    devs = [
        {
            "id": card.index,
            "totalGPU": card.total,
            "usedGPU": card.used,
            "pods": [{"name": pod.name, "namespace": pod.namespace, "usedGPU": pod.used} for pod in card.pods],
        }
        for card in node.cards
    ]
    return {"name": node.name, "totalGPU": node.total, "usedGPU": node.used, "devs": devs}
