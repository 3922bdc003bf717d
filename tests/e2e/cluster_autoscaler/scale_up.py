# SPDX-License-Identifier: Apache-2.0
"""
Which pods cluster-autoscaler would buy for, and how many nodes of which group could serve them.

The order is that of its loop (core/static_autoscaler.go): pods of other schedulers are dropped from the *whole*
list, then whoever fits an existing or coming node by sums is left out, then whoever is too young. What remains is
packed first-fit-decreasing on fresh nodes of each group. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from e2e.cluster_autoscaler.objects import SCALE_UP_DELAY, duration
from e2e.cluster_autoscaler.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from e2e.cluster_autoscaler.objects import Node, Pod
    from e2e.cluster_autoscaler.options import Options

_NEW_SECONDS = 2.0
"""Where all pods are newer than this, more are awaited."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The pods that the autoscaler knows of."""

    allocated: tuple[Pod, ...] = ()
    unschedulable: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """One node group in this loop."""

    name: str
    min_size: int
    max_size: int
    target: int
    template: Node | None = None
    backed_off: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One group that could grow."""

    group: str
    count: int
    pods: tuple[Pod, ...] = field(repr=False)
    template: Node = field(repr=False)


def seen(pods: Iterable[Pod], options: Options) -> Seen:
    """`--allowed-scheduler-names` leaves out pods that run as well as pods that wait."""
    names = options.allowed_scheduler_names
    known = [pod for pod in pods if not names or pod.scheduler in names]
    allocated = tuple(pod for pod in known if pod.node or pod.nominated)
    waiting = tuple(pod for pod in known if not (pod.node or pod.nominated) and pod.unschedulable)
    return Seen(allocated, waiting)


def unserved(waiting: Iterable[Pod], snapshot: Snapshot, drained: Collection[str] = ()) -> list[Pod]:
    """
    Whom no node has room for by sums; everybody else is put into the snapshot and forgotten.

    Pods of nodes that are being drained come back as pods that wait.
    """
    moving = [pod for name in drained for pod in snapshot.pods.get(name, ()) if not pod.stays_with_node]
    order = sorted((*moving, *waiting), key=lambda pod: -(pod.spec.get("priority") or 0))
    open_ = [name for name in snapshot.nodes if name not in drained]
    return [pod for pod in order if not snapshot.place(pod, open_) and not pod.node and pod.owner != "DaemonSet"]


def old_enough(pods: Iterable[Pod], age: Mapping[str, float], options: Options) -> list[Pod]:
    """Without those that are younger than the flag or their annotation says; `age` by UID, in seconds."""
    found = []
    for pod in pods:
        own = duration(pod.annotations.get(SCALE_UP_DELAY, ""))
        delay = max(options.new_pod_scale_up_delay, own or 0.0)
        if age[pod.uid] > delay:
            found.append(pod)
    return found


def all_new(pods: Sequence[Pod], age: Mapping[str, float]) -> bool:
    """Whether more may be on their way."""
    return bool(pods) and max(age[pod.uid] for pod in pods) < _NEW_SECONDS


def options_for(pods: Sequence[Pod], groups: Iterable[Group], options: Options) -> list[Option]:
    """Every group that would help somebody."""
    found = []
    for group in groups:
        room = min(group.max_size - group.target, options.max_nodes_per_scaleup)
        if group.template is None or group.backed_off or room <= 0:
            continue
        count, served = _packed(pods, group.template, room)
        if count:
            found.append(Option(group.name, count, served, group.template))
    return found


def least_waste(options: Sequence[Option]) -> Option | None:
    """The one that leaves the smallest ratio of its CPU and memory unused."""
    return min(options, key=_waste, default=None)


def _waste(option: Option) -> float:
    waste = 0.0
    for resource in ("cpu", "memory"):
        there = float(option.template.allocatable.get(resource, 0)) * option.count
        asked = sum(float(pod.requests.get(resource, 0)) for pod in option.pods)
        waste += (there - asked) / there if there else 0.0
    return waste / 2


def _packed(pods: Sequence[Pod], template: Node, most: int) -> tuple[int, tuple[Pod, ...]]:
    def size(pod: Pod) -> float:
        amounts = ((pod.requests.get(key, 0), template.allocatable.get(key, 0)) for key in ("cpu", "memory"))
        return sum(float(asked) / float(there) for asked, there in amounts if there)

    snapshot, served = Snapshot(()), []
    for pod in sorted(pods, key=size, reverse=True):
        if snapshot.place(pod):
            served.append(pod)
            continue
        if len(snapshot.nodes) == most:
            continue
        trial = Snapshot([template.fresh(f"{template.name}-{len(snapshot.nodes)}")])
        name = next(iter(trial.nodes))
        if trial.fits(pod, name):
            snapshot.join(trial.nodes[name])
            snapshot.add(pod, name)
            served.append(pod)
    return len(snapshot.nodes), tuple(served)
