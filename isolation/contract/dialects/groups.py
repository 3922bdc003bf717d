# SPDX-License-Identifier: Apache-2.0
"""
Whether a pod belongs to a group that must start together; such a pod is refused: no reservation serves groups yet.

Sources: Volcano ed72c7c, vendor apis/pkg/apis/scheduling/v1beta1/labels.go and batch/v1alpha1/labels.go; Koordinator
apis/extension/coscheduling.go; scheduler-plugins' PodGroup label; KAI's docs on pod groups; Kubernetes' Workload API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import show

if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUPS: Final = (
    *(("annotations", key) for key in ("scheduling.k8s.io/group-name", "volcano.sh/job-name", "pod-group-name")),
    *(("annotations", key) for key in ("gang.scheduling.koordinator.sh/name", "scheduling.volcano.sh/group-name")),
    *(("labels", key) for key in ("pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name")),
    *(("labels", key) for key in ("scheduling.x-k8s.io/pod-group", "volcano.sh/job-name")),
)
"""Each names a pod's group."""
_SIZES: Final = (
    ("annotations", "gang.scheduling.koordinator.sh/min-available"),
    ("annotations", "volcano.sh/group-min-member"),
    ("annotations", "scheduling.volcano.sh/group-min-member"),
    ("labels", "pod-group.scheduling.sigs.k8s.io/min-available"),
)
"""Each says how many of a group must start together; a group of one is none."""

_NAMES: Final = frozenset(key for _, key in (*_GROUPS, *_SIZES))
_FIELDS: Final = frozenset({"workloadRef", "schedulingGroup"})


def explain_group(
    annotations: Mapping[str, object], labels: Mapping[str, object], spec: Mapping[str, object]
) -> str | None:
    """Why the pod cannot be served alone, or None."""
    if annotations.keys().isdisjoint(_NAMES) and labels.keys().isdisjoint(_NAMES) and spec.keys().isdisjoint(_FIELDS):
        return None
    said = {"annotations": annotations, "labels": labels}
    found = next((f"{what[:-1]} {key}" for what, key in _GROUPS if said[what].get(key)), "")
    sizes = [str(said[what][key]) for what, key in _SIZES if said[what].get(key)]
    if not found:
        found = next((f"spec.{key}" for key in sorted(_FIELDS) if spec.get(key)), "")
    if sizes and all(size == "1" for size in sizes):
        return None
    if not found and not sizes:
        return None
    size = f" of at least {show(sizes[0])}" if sizes else ""
    return (
        f"the pod belongs to a group{size} that starts together ({found or 'its size is given'}); gpushare places "
        "pods one by one: create it without the group, or leave its namespace to the system that it was written for"
    )
