# SPDX-License-Identifier: Apache-2.0
"""
What a run says at its end about the real processes of this machine: for programs, and in words.

Pure.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isolation.contract.stack import FIRING

if TYPE_CHECKING:
    from autoscaler.demo.stack.addresses import Addresses
    from isolation.contract.reading import ContainerReading
    from isolation.contract.stack import Stack, StackWorkload


def document(stack: Stack, where: Addresses) -> dict[str, Any]:
    """As JSON takes it; what cannot be told is null."""
    return {
        "addresses": asdict(where),
        "tenants": [_tenant(player, measured(stack, player)) for player in stack.players],
        "cards": [asdict(card) for card in stack.node.cards] if stack.node is not None else None,
        "processes": [asdict(part) for part in stack.parts],
        "alerts": None if stack.alerts is None else [asdict(alert) for alert in stack.alerts],
        "remarks": list(stack.remarks),
        "happened": list(stack.happened),
    }


def measured(stack: Stack, player: StackWorkload) -> ContainerReading | None:
    """What the exporter tells of this tenant: a run's pod is its name."""
    found = stack.node.containers if stack.node is not None else ()
    return next((one for one in found if one.pod == player.name), None)


def _tenant(player: StackWorkload, one: ContainerReading | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": player.name,
        "does": player.does,
        "enforced": player.enforced,
        "promised_bytes": player.promised_bytes,
        "promised_core_ratio": player.promised_core_ratio,
        "state": player.part.state,
        "restarts": player.part.restarts,
        "remark": player.part.remark,
    }
    names = ("promise", "index", "used_bytes", "used_core_ratio", "denied", "over_limit_seconds")
    told |= {name: None if one is None else getattr(one, name) for name in names}
    used = None if one is None else one.used_bytes
    return {**told, "over_bytes": None if used is None else max(0, used - player.promised_bytes)}


def words(stack: Stack) -> str:
    """Two lines for people."""
    found = [(player, measured(stack, player)) for player in stack.players]
    refused = sum(one.denied or 0 for _, one in found if one is not None)
    over = [p.name for p, one in found if one is not None and (one.used_bytes or 0) > p.promised_bytes]
    firing = sorted({f"{one.name} {one.subject}".strip() for one in stack.alerts or () if one.state == FIRING})
    told = f"this machine: {refused:,} allocations beyond a promise refused; over promise: {', '.join(over) or 'none'}"
    return told if stack.alerts is None else f"{told}; firing alerts: {', '.join(firing) or 'none'}"
