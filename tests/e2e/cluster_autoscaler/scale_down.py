# SPDX-License-Identifier: Apache-2.0
"""
Which nodes cluster-autoscaler would take away, and whom it would evict for it.

Rules as it documents them (FAQ, simulator/drainability/rules): a node is unneeded while CPU and memory requested of it
are below the threshold and all its pods could go elsewhere by sums; a pod that nobody would make again, of kube-system
without a budget, with local storage, `safe-to-evict: "false"` or a budget of 0 blocks its node; pods of DaemonSets and
mirror pods count for nothing. Pure; what is remembered from loop to loop is a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from e2e.cluster_autoscaler.objects import (
    SAFE_LOCAL_VOLUMES,
    SAFE_TO_EVICT,
    SCALE_DOWN_DISABLED,
    gone_long_ago,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from e2e.cluster_autoscaler.objects import Budget, Node, Pod
    from e2e.cluster_autoscaler.options import Options
    from e2e.cluster_autoscaler.scale_up import Group
    from e2e.cluster_autoscaler.snapshot import Snapshot

_KNOWN_CONTROLLERS = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "Job", "DaemonSet"})


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when a node is unneeded, and until when one is not tried again."""

    unneeded: Mapping[str, float] = field(default_factory=dict)
    unremovable: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Situation:
    """One loop's view."""

    snapshot: Snapshot
    groups: Mapping[str, Group]
    of: Mapping[str, str]
    """A node's group; absent: it is of no group."""
    budgets: Sequence[Budget] = ()
    deleting: Collection[str] = ()
    """Nodes that this autoscaler is deleting."""
    upcoming: Collection[str] = ()
    """Nodes that are not there yet: nobody is moved to them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What came of it; why a node stays is for whoever reads a failed test."""

    removable: tuple[str, ...] = ()
    moves: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


def blocked(pod: Pod, budgets: Sequence[Budget], options: Options, now: float) -> str | None:
    """Why the pod keeps its node, empty where it may be evicted; None: it neither moves nor counts."""
    if pod.mirror or gone_long_ago(pod, now) or pod.owner == "DaemonSet":
        return None
    if pod.annotations.get(SAFE_TO_EVICT) == "true":
        return ""
    mine = [budget for budget in budgets if budget.covers(pod)]
    if not pod.owner:
        return "not replicated"
    if options.skip_nodes_with_custom_controller_pods and pod.owner not in _KNOWN_CONTROLLERS:
        return "custom controller"
    if options.skip_nodes_with_system_pods and pod.namespace == "kube-system" and not mine:
        return "kube-system"
    if pod.annotations.get(SAFE_TO_EVICT) == "false":
        return "not safe to evict"
    if options.skip_nodes_with_local_storage and _local(pod):
        return "local storage"
    return "budget" if any(budget.allowed < 1 for budget in mine) else ""


def utilization(node: Node, pods: Sequence[Pod], now: float) -> float:
    """The larger of the ratios of CPU and memory requested; cards are not looked at."""
    counted = [pod for pod in pods if not gone_long_ago(pod, now)]
    ratios = []
    for resource in ("cpu", "memory"):
        there = float(node.allocatable.get(resource, 0))
        asked = sum(float(pod.requests.get(resource, 0)) for pod in counted)
        ratios.append(asked / there if there else 0.0)
    return max(ratios)


def find(situation: Situation, memory: Memory, options: Options, now: float) -> tuple[Findings, Memory]:
    """Nodes that are unneeded now, emptiest first, each with whom it would cost."""
    trial = situation.snapshot.copy()
    gone: set[str] = set()
    kept: dict[str, str] = {}
    moves: dict[str, tuple[Pod, ...]] = {}
    again = {name: until for name, until in memory.unremovable.items() if until > now and name in trial.nodes}
    tried = 0
    for name in sorted(
        _candidates(situation, kept), key=lambda name: (len(_moving(situation, name, options, now)), name)
    ):
        node, pods = trial.nodes[name], situation.snapshot.pods[name]
        if name in again:
            kept[name] = "recently unremovable"
        elif node.being_deleted or node.annotations.get(SCALE_DOWN_DISABLED) == "true":
            kept[name] = "being deleted" if node.being_deleted else "scale-down disabled"
        elif utilization(node, pods, now) >= options.scale_down_utilization_threshold:
            kept[name] = "not underutilized"
        elif tried >= options.scale_down_non_empty_candidates_count:
            kept[name] = "later"
        else:
            moving = tuple(_moving(situation, name, options, now))
            tried += bool(moving)
            stays = [
                f"{pod.namespace}/{pod.name}: {why}"
                for pod in moving
                if (why := blocked(pod, situation.budgets, options, now))
            ]
            why = stays[0] if stays else _move(moving, trial, {name, *gone, *situation.deleting, *situation.upcoming})
            if why:
                kept[name], again[name] = why, now + options.unremovable_node_recheck_timeout
            else:
                gone.add(name)
                moves[name] = moving
    unneeded = {name: memory.unneeded.get(name, now) for name in moves}
    return Findings(tuple(moves), moves, kept), Memory(unneeded, again)


def due(findings: Findings, memory: Memory, situation: Situation, options: Options, now: float) -> tuple[str, ...]:
    """Who goes now: empty nodes side by side, nodes with pods one at a time."""
    draining = any(situation.snapshot.pods.get(name) for name in situation.deleting)
    sizes = {name: group.target for name, group in situation.groups.items()}
    for name in situation.deleting:
        if name in situation.of:
            sizes[situation.of[name]] -= 1
    found: list[str] = []
    for name in sorted(findings.removable, key=lambda name: bool(findings.moves[name])):
        node, group = situation.snapshot.nodes[name], situation.of[name]
        needed = options.scale_down_unneeded_time if node.ready else options.scale_down_unready_time
        if now - memory.unneeded[name] <= needed or sizes[group] <= situation.groups[group].min_size:
            continue
        if len(found) + len(situation.deleting) >= options.max_scale_down_parallelism:
            break
        if findings.moves[name]:
            if draining or options.max_drain_parallelism < 1:
                continue
            draining = True
        sizes[group] -= 1
        found.append(name)
    return tuple(found)


def _candidates(situation: Situation, kept: dict[str, str]) -> list[str]:
    found = []
    for name in situation.snapshot.nodes:
        group = situation.groups.get(situation.of.get(name, ""))
        if group is None or name in situation.upcoming or name in situation.deleting:
            continue
        if group.target <= group.min_size:
            kept[name] = "group at its minimum"
            continue
        found.append(name)
    return found


def _moving(situation: Situation, name: str, options: Options, now: float) -> list[Pod]:
    pods = situation.snapshot.pods[name]
    return [pod for pod in pods if blocked(pod, situation.budgets, options, now) is not None]


def _move(moving: Sequence[Pod], trial: Snapshot, closed: Collection[str]) -> str:
    """Put the pods on other nodes of the trial; or why not, and then nobody has moved."""
    attempt = trial.copy()
    open_ = [name for name, node in attempt.nodes.items() if name not in closed and not node.being_deleted]
    for pod in moving:
        if not attempt.place(pod, open_):
            return f"{pod.namespace}/{pod.name}: no place elsewhere"
    trial.become(attempt)
    return ""


def _local(pod: Pod) -> bool:
    safe = {name.strip() for name in pod.annotations.get(SAFE_LOCAL_VOLUMES, "").split(",")}
    return any(
        volume["name"] not in safe
        for volume in pod.spec.get("volumes") or ()
        if "hostPath" in volume or ("emptyDir" in volume and (volume["emptyDir"] or {}).get("medium") != "Memory")
    )
