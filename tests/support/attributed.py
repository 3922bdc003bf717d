# SPDX-License-Identifier: Apache-2.0
"""What the exporter makes of a node: who uses how much, and what is exposed of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.node_facts import uuid

from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.families import card_families, container_families

if TYPE_CHECKING:
    from support.node_facts import Node

    from exporter.pipeline.attribution import Attribution

PLACE = NodeLabels("n-0")


def look(node: Node, **more: Any) -> Attribution:
    """The attribution of a node."""
    snapshot = node.snapshot(**more)
    return attribute(snapshot, list_allocations(snapshot), PLACE)


def used(found: Attribution) -> dict[str, tuple[int | None, str]]:
    """{pod/container: (used, source)}."""
    return {f"{c.pod}/{c.container}": (c.used_bytes, c.source) for c in found.reading.containers}


def values(found: Attribution) -> dict[str, dict[tuple[str, ...], float]]:
    """{metric without prefix: {labels: value}} of everything that is exposed."""
    families = [*card_families([found.reading]), *container_families([found.reading])]
    return {f.spec.name.removeprefix("gpushare_"): dict(f.samples) for f in families}


def residual(found: Attribution, at: int = 0) -> float | None:
    """Used less containers, unattributed and reserved; None where that is unknown."""
    return values(found)["card_memory_unaccounted_bytes"].get(("n-0", uuid(at), str(at)))
