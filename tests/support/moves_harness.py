# SPDX-License-Identifier: Apache-2.0
"""A full pool in which one move would make room, and what is decided about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from support.builders import ask, node
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.state import AutoscalerState

if TYPE_CHECKING:
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Step
    from isolation.contract.model import Node, Pod

NOW = 10_000.0
LIMITS = ScalingLimits(min_replicas=1, pod_restart_seconds=30)
FULL = pool(max_nodes=0)


def two_nodes(*, small: int = 4, free: int = 4) -> tuple[tuple[Node, Node], Pod, list[Pod]]:
    """One card with `small` + 8 taken of 15, another with `free` left."""
    left, right = node("left", 1, 15, pool="p"), node("right", 1, 15, pool="p")
    mover = pod(ask(small, owner="R/mover"), "mover", on=on_card(left, 0, small))
    rest = [
        pod(ask(8, owner="R/stays"), on=on_card(left, 0, 8), evictable=False),
        pod(ask(15 - free, owner="R/other"), on=on_card(right, 0, 15 - free), evictable=False),
    ]
    return (left, right), mover, rest


def steps_of(
    observation: Observation, limits: ScalingLimits = LIMITS, memory: AutoscalerState | None = None
) -> tuple[Step, ...]:
    """What is decided."""
    return decide(observation, limits, memory or AutoscalerState())[0].steps


def waiting_for_six(**rest: Any) -> tuple[Observation, Pod]:
    """A pod of 6 GiB that fits if the mover, of 4, goes to the other node."""
    nodes, mover, others = two_nodes()
    mover = replace(mover, **rest)
    return seen([FULL], [mover, *others, pod(ask(6), "waits", created=NOW)], list(nodes), at=NOW), mover
