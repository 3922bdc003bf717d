# SPDX-License-Identifier: Apache-2.0
"""
Which pods may not be moved and so keep their node: cluster-autoscaler's rules, and where this autoscaler is stricter.

Decides from what a pod and its owner's annotations say; two rules are switched by pool, as cluster-autoscaler's flags
of the same names do it for all. What a disruption budget allows, and whether there is room elsewhere, is
decided elsewhere (`disruption_budget`, `kube.observe.pods`). Pure. The comparison with cluster-autoscaler's own rules
is in docs/autoscaler.md.

Source: kubernetes/autoscaler, cluster-autoscaler/FAQ.md ("What types of pods can prevent CA from removing a node?") and
simulator/drainability/rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REMADE: Final = ("ReplicaSet/", "StatefulSet/", "ReplicationController/")
"""Controllers that make an evicted pod again, whatever it was doing."""


@dataclass(frozen=True, slots=True)
class DrainRules:
    """What keeps a pool's nodes; names and defaults are those of cluster-autoscaler's flags."""

    skip_nodes_with_local_storage: bool = True
    """A pod with a hostPath volume, or an emptyDir that is not in memory, stays."""
    skip_nodes_with_custom_controller_pods: bool = True
    """A pod of a controller that Kubernetes does not know stays."""


class DrainRule(StrEnum):
    """Which rule keeps a pod where it is."""

    NOT_SAFE = "not_safe_to_evict"
    CONTROLLER = "custom_controller"
    JOB = "job"
    LOCAL_STORAGE = "local_storage"


@dataclass(frozen=True, slots=True)
class DrainHints:
    """What a pod's annotations and volumes say about moving it."""

    safe: bool | None = None
    """`contract.codec.pod.safe_to_evict`."""
    asks: bool = False
    """`gpushare.dev/evict: "true"`: whoever made it, it may be moved."""
    local_volumes: tuple[str, ...] = ()
    """Names of its volumes on the node's disk, less those that may be lost."""


@dataclass(frozen=True, slots=True)
class DrainBlock:
    """One rule against moving a pod."""

    rule: DrainRule
    why: str


def find_blocks(owner: str, said: DrainHints) -> tuple[DrainBlock, ...]:
    """Every rule against moving a pod of this controller (`Kind/namespace/name`), where all of them are in force."""
    if said.safe is False:
        return (DrainBlock(DrainRule.NOT_SAFE, 'it is annotated safe-to-evict: "false"'),)
    if said.safe:
        return ()
    found = []
    if not said.asks and not owner.startswith(REMADE):
        kind = owner.partition("/")[0]
        rule = DrainRule.JOB if kind == "Job" else DrainRule.CONTROLLER
        found.append(DrainBlock(rule, f"its controller, a {kind}, may not make it again"))
    if said.local_volumes:
        names = ", ".join(said.local_volumes[:3])
        found.append(DrainBlock(DrainRule.LOCAL_STORAGE, f"it has local storage (volumes: {names})"))
    return tuple(found)


def explain_block(blocks: Iterable[DrainBlock], rules: DrainRules) -> str:
    """The first of these that is in force under a pool's rules; empty: the pod may be moved."""
    off = set()
    if not rules.skip_nodes_with_local_storage:
        off.add(DrainRule.LOCAL_STORAGE)
    if not rules.skip_nodes_with_custom_controller_pods:
        off.add(DrainRule.CONTROLLER)
    return next((block.why for block in blocks if block.rule not in off), "")
