# SPDX-License-Identifier: Apache-2.0
"""
A fleet whose cards are fragmented as churn leaves them: every card was full, then the larger pods left.

Half of the cards have a whole-card pod each; each of the others has one small pod, where three would have room.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from e2e.autoscaler_harness import pool, pool_node, quick, stage
from e2e.sharing import PODS, cards_of, our_pod, untainted, workload

from autoscaler.core.decide import decide
from autoscaler.core.plan import Move
from autoscaler.core.reconcile import reconcile
from autoscaler.kube.state import decode, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from e2e.apiclient import ApiClient
    from e2e.autoscaler_harness import Stage
    from e2e.plane import ControlPlane

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan
    from autoscaler.core.state import AutoscalerState

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NODES, CARDS, GIB_EACH, SMALL = 8, 4, 15, 4
WHOLE = NODES * CARDS // 2


def four_cards(name: str, of: str) -> dict[str, Any]:
    """A node of the pool."""
    return pool_node(name, of, cards=CARDS, gib=GIB_EACH)


async def scaled(client: ApiClient, name: str, count: int) -> None:
    """A Deployment has so many running, and nobody else of it is left."""
    await client.merge(f"{DEPLOYMENTS}/{name}/scale", {"spec": {"replicas": count}})
    await client.until(
        lambda pods: [pod["status"].get("phase") for pod in pods["items"]] == ["Running"] * count,
        PODS,
        labelSelector=f"app={name}",
    )


async def deployed(client: ApiClient, name: str, count: int, units: int, **annotations: str) -> None:
    """A Deployment of so many such pods, all running."""
    thing = workload("Deployment", name, 0, our_pod("x", units))
    thing["spec"]["template"]["metadata"]["annotations"] = annotations
    await client.create(thing)
    await scaled(client, name, count)


@dataclass
class Fragments:
    """The fleet, the loop over it, and what it said."""

    stage: Stage
    said: dict[str, Move] = field(default_factory=dict)
    """The latest word about each pod that was to move, by UID: also of turns that were cut off."""
    plans: list[Plan] = field(default_factory=list)

    async def reconcile(self) -> None:
        """One turn; what was decided is noted before any of it is done."""
        s = self.stage
        _, s.memory = await reconcile(s.world, s.limits, s.memory, self._decided)

    def _decided(
        self, seen: Observation, limits: ScalingLimits, memory: AutoscalerState
    ) -> tuple[Plan, AutoscalerState]:
        plan, memory = decide(seen, limits, memory)
        self.plans.append(plan)
        self.said |= {step.pod: step for step in plan.steps if isinstance(step, Move)}
        return plan, memory

    def reborn(self) -> None:
        """Killed and back: what the last whole turn left is read again, as the process does it."""
        s = self.stage
        stored = decode(encode(replace(s.world.state, memory=s.memory, epoch=1)), s.now())
        s.reborn()
        s.memory = stored.memory

    async def free(self) -> set[str]:
        """UUIDs of the cards on which nobody is, by what the pods' records say."""
        pods = (await self.stage.client.get(PODS))["items"]
        taken = {uuid for pod in pods if pod["spec"].get("nodeName") for uuid in cards_of(pod)}
        nodes = await self.stage.machines.settled("gpu-a")
        return {f"GPU-{node}-{index}" for node in nodes for index in range(CARDS)} - taken


@contextlib.asynccontextmanager
async def fragmented(
    plane: ControlPlane, folder: Path, small: dict[str, dict[str, str]], **limits: Any
) -> AsyncIterator[Fragments]:
    """`small` Deployments (with their annotations) share the small pods, one to each card that has no whole pod."""
    each = (NODES * CARDS - WHOLE) // len(small)
    config = pool("gpu-a", max_nodes=NODES, min_nodes=NODES)
    wish = quick(**({"move_cooldown_seconds": 3600.0} | limits))
    async with stage(plane, folder, config, start={"gpu-a": NODES}, node_of=four_cards, limits=wish) as s:
        await untainted(s.client)
        await deployed(s.client, "whole", WHOLE, GIB_EACH)
        await deployed(s.client, "filling", NODES * CARDS - WHOLE, GIB_EACH - SMALL)
        for name, annotations in small.items():
            await deployed(s.client, name, each, SMALL, **annotations)
        await scaled(s.client, "filling", 0)
        yield Fragments(s)
