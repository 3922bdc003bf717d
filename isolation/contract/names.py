"""
Every Kubernetes name gpushare reads or writes, each literal once.

A dialect is a closed table, never a free-form prefix: webhook rules, RBAC, manifests and
dashboards are generated from it, so a name that is not here does not exist for gpushare.
This module knows names only; what the values mean is `quantity`, `model` and `codec`.

Sources: Alibaba ACK, "Labels used by ACK for GPU nodes" and "Use multiple GPU sharing"
(the `aliyun.com/*`, `ack.node.gpu.*` and `scheduler.framework.gpushare.allocation` names);
NVIDIA k8s-device-plugin and gpu-feature-discovery (`nvidia.com/*`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """One vendor's names for the same promise."""

    name: str
    memory: str
    """Extended resource: memory of shared cards, in units (1 GiB unless the cluster says otherwise)."""
    compute: str
    """Extended resource: percent of one card's compute; 100 is a whole card."""
    card_count: str
    """Node resource (capacity) and pod label: number of cards."""
    whole: str
    """Extended resource: whole cards, exclusively."""
    mode_label: str
    """Node label: what the node serves (`isolation.contract.model.Mode`)."""
    choice_label: str
    """Node label: how cards of the node are chosen (`isolation.contract.model.CardChoice`)."""
    model_labels: tuple[str, ...]
    """Node labels that name the card model, the first present one wins."""
    memory_labels: tuple[str, ...]
    """Node labels that tell a card's memory in MiB, the first readable one wins."""
    allocation_annotation: str
    """The vendor's own allocation record on a pod."""
    env_visible: str
    env_container_memory: str
    env_card_memory: str


ACK: Final = Dialect(
    name="ack",
    memory="aliyun.com/gpu-mem",
    compute="aliyun.com/gpu-core.percentage",
    card_count="aliyun.com/gpu-count",
    whole="nvidia.com/gpu",
    mode_label="ack.node.gpu.schedule",
    choice_label="ack.node.gpu.placement",
    model_labels=("aliyun.accelerator/nvidia_name", "nvidia.com/gpu.product"),
    memory_labels=("aliyun.accelerator/nvidia_mem", "nvidia.com/gpu.memory"),
    allocation_annotation="scheduler.framework.gpushare.allocation",
    env_visible="NVIDIA_VISIBLE_DEVICES",
    env_container_memory="ALIYUN_COM_GPU_MEM_CONTAINER",
    env_card_memory="ALIYUN_COM_GPU_MEM_DEV",
)

DIALECTS: Final = MappingProxyType({ACK.name: ACK})

# Ours, the same in every dialect.
ALLOCATION: Final = "gpushare.dev/allocation"
"""Pod annotation: versioned JSON, containers by name, cards by UUID, bytes, compute, promise id."""
CARDS: Final = "gpushare.dev/cards"
"""Node annotation by our agent: {"version": 1, "cards": [{uuid, index, model, total, reserved, unit, healthy}]}."""
POOL: Final = "gpushare.dev/pool"
"""Node label: the pool that the node belongs to."""
EVICT: Final = "gpushare.dev/evict"
"""Pod annotation: "false" keeps the autoscaler from moving the pod."""

# Kubernetes' own.
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror: nobody can move such a pod."""
