# SPDX-License-Identifier: Apache-2.0
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

import os
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
    """Node label: what the node serves: share, cgpu, core_mem or default."""
    choice_label: str
    """Node label: how cards of the node are chosen: binpack (default) or spread."""
    model_labels: tuple[str, ...]
    """Node label: name of the card model; the first one that is present counts."""
    memory_labels: tuple[str, ...]
    """Node label: memory of a card in MiB; the first one that is readable counts."""
    allocation_annotation: str
    """Pod annotation: the vendor's own allocation record."""
    env_visible: str
    """Container variable: UUIDs of the container's cards, or `void`."""
    env_container_memory: str
    """Container variable: memory of one card that the container has, in GiB."""
    env_card_memory: str
    """Container variable: memory of one card, in GiB."""


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


CLASSIC_CARD: Final = "ALIYUN_COM_GPU_MEM_IDX"
"""Pod annotation of the classic gpushare-scheduler-extender: index of its card; read, never written."""
CLASSIC_UNITS: Final = "ALIYUN_COM_GPU_MEM_POD"
"""Pod annotation of the classic gpushare-scheduler-extender: units of that card; read, never written."""
QGPU_POLICY_LABEL: Final = "tke.cloud.tencent.com/qgpu-schedule-policy"
"""Node label of Tencent's qGPU: how compute is shared (TKE documentation, 457/65734)."""
CGPU_WEIGHT_ENV: Final = "ALIYUN_COM_GPU_SCHD_WEIGHT"
"""Container variable of Alibaba's cGPU: the weight; admission writes it down as `WEIGHT`."""
CGPU_DISABLE_ENV: Final = "CGPU_DISABLE"
"""Container variable of Alibaba's cGPU: "true" switches the isolation of the container off; admission refuses it."""

# Ours, the same in every dialect.
GROUP: Final = "gpushare.dev"
"""API group of our own objects, and prefix of our labels and annotations."""
ALLOCATION: Final = f"{GROUP}/allocation"
"""Pod annotation: versioned JSON, containers by name, cards by UUID, bytes, compute, promise id."""
RESERVATION: Final = f"{GROUP}/consumed-reservation"
"""Pod annotation, written with the binding: the reservation that the pod has used up."""
RIGHT_SIZE: Final = f"{GROUP}/right-size"
"""Pod annotation: what is done with recommendations for it: off, recommend (default), initial or live."""
RIGHT_SIZE_LEAST: Final = f"{GROUP}/right-size-min"
"""Pod annotation: least units of memory of one card that right-sizing gives a container."""
RIGHT_SIZE_MOST: Final = f"{GROUP}/right-size-max"
"""Pod annotation: most units of memory of one card that right-sizing gives a container."""
RIGHT_SIZED: Final = f"{GROUP}/right-sized"
"""Pod annotation, by admission: JSON, by container, what was asked for, what it got instead and why."""
RESIZE: Final = f"{GROUP}/resize"
"""Pod annotation, by those who may resize: JSON, by container, the amounts that it is to have."""
PROMISES: Final = "promises"
"""RBAC resource: of our group, which no server serves; who has the verb resize on it may write `RESIZE`."""
RESIZE_STATUS: Final = f"{GROUP}/resize-status"
"""Pod annotation, by our scheduler: JSON, what became of `RESIZE`; none: nothing is pending."""
SHARED: Final = f"{GROUP}/shared"
"""Pod label "true", set by admission on pods that ask for shares: all of gpushare watches these only."""
CARDS: Final = f"{GROUP}/cards"
"""Node annotation by our agent: {"version": 1, "cards": [{uuid, index, model, total, reserved, unit, healthy}]}."""
AGENT: Final = f"{GROUP}/agent"
"""Node annotation by our agent: "ready", or "stopping" while it ends: nothing is bound to a node it leaves."""
TIME_SLICE: Final = f"{GROUP}/time-slice"
"""Node label: how long a process has a card while others wait: default, short, medium or long."""
UNHEALTHY_CARDS: Final = f"{GROUP}/unhealthy-cards"
"""Node annotation by our agent, for people: which cards get no new pods, and why."""
ISOLATION: Final = f"{GROUP}/isolation"
"""Node annotation by our agent: JSON {version, backend, memory, compute, counts, faults, text}: what it enforces by."""
CARD_UNITS: Final = f"{GROUP}/card-units"
"""Node label by our agent: units that its largest card offers. Admission turns it into node affinity (Gt)."""
CARD_COUNT: Final = f"{GROUP}/card-count"
"""Node label by our agent: number of its cards. Admission turns it into node affinity (Gt)."""
RESIZED: Final = f"{GROUP}/resized"
"""Node annotation by our agent: JSON, by pod UID, which resize of its record is in force."""
AGENT_LABELS: Final = (CARD_UNITS, CARD_COUNT, ACK.model_labels[0], ACK.memory_labels[0])
AGENT_ANNOTATIONS: Final = (CARDS, AGENT, UNHEALTHY_CARDS, ISOLATION, RESIZED)
AGENT_RESOURCES: Final = (ACK.card_count, ACK.compute)
"""All that our agent writes on its Node; an admission policy refuses it everything else."""
MPS_ENDED: Final = "MPSServerEnded"
"""Reason of the Event about a pod whose container ended with its card's MPS server."""
AGENT_EVENTS: Final = (MPS_ENDED,)
"""Reasons of all Events by our agent; an admission policy refuses it others."""
COMPUTE_POLICY: Final = f"{GROUP}/compute-policy"
"""Node label: how compute is shared there: fixed (default), burst, weight, priority or none."""
ONLINE: Final = f"{GROUP}/online"
"""Pod annotation: "false" makes the pod offline: no compute is guaranteed to it; it uses what others leave."""
WEIGHT: Final = f"{GROUP}/weight"
"""Pod annotation: weight of the pod's compute against that of its neighbours, a whole number from 1 to 100."""
CORE_LIMIT: Final = f"{GROUP}/core-limit"
"""Pod annotation: most percent of each card's compute that the pod ever gets, from 1 to 100."""
COMPUTE_ANNOTATIONS: Final = (ONLINE, WEIGHT, CORE_LIMIT)
"""What of compute a pod says beside the amount; the allocation record has what was made of it."""
BACKEND: Final = f"{GROUP}/backend"
"""Node label: what enforces promises there; absent: the best that works."""
TRUST_GROUP: Final = f"{GROUP}/trust-group"
"""Pod annotation, by admission from the operator's list: the group of namespaces of which pods may share a card under
MPS; absent: the pod's namespace."""
POOL: Final = f"{GROUP}/pool"
"""Node label: the pool that the node belongs to."""
EVICT: Final = f"{GROUP}/evict"
"""Pod annotation: "false" keeps the autoscaler from moving the pod."""
USER_SAFE_TO_EVICT: Final = f"{GROUP}/safe-to-evict"
"""Pod annotation: what its owner wrote as `SAFE_TO_EVICT`, where that one is now ours; empty: nothing."""
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Pod annotation: "false" keeps the pod where it is, "true" says that it may be moved whatever it is."""
SCALE_UP_DELAY: Final = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
"""Pod annotation: cluster-autoscaler passes by the pending pod until it is this old, a Go duration."""
USER_SCALE_UP_DELAY: Final = f"{GROUP}/pod-scale-up-delay"
"""Pod annotation: what its owner wrote as `SCALE_UP_DELAY`, where that one is now ours; empty: nothing."""
SAFE_TO_EVICT_LOCAL_VOLUMES: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Pod annotation: names of local volumes that may be lost, with commas between them."""
QUOTA: Final = f"{GROUP}/gpu-memory-quota"
"""Namespace annotation: JSON, most units of shared memory by card model, e.g. {"Tesla-T4": 64}."""
EXEMPT: Final = f"{GROUP}/exempt"
"""Namespace label "true": system software that may see every card (exporters, drivers); admission passes it by."""
UNISOLATED: Final = f"{GROUP}/unisolated"
"""Namespace label "true", by an administrator: pods with shares may run without a seccomp profile there."""
RESERVATIONS: Final = "reservations"
"""Plural of our kind `Reservation` (cluster-scoped)."""
WOKEN: Final = f"{GROUP}/requeued"
"""Pod annotation, by our scheduler: when the pending pod was last requeued because room became free."""
ROLE: Final = f"{GROUP}/role"
"""Pod label on our own scheduler's pods: `LEADER` on the one that binds."""
LEADER: Final = "leader"
DIALECT: Final = f"{GROUP}/dialect"
"""Pod annotation, by admission: the system in whose words the pod was written."""
ASKED: Final = f"{GROUP}/asked"
"""Pod annotation, by admission: JSON, for people: the words that were translated."""
USE_MODELS: Final = f"{GROUP}/use-card-models"
"""Pod annotation: parts of the names of card models with commas between them; any case, one must be in the name."""
AVOID_MODELS: Final = f"{GROUP}/avoid-card-models"
"""Pod annotation: parts of the names of card models with commas between them; none may be in the name."""
USE_UUIDS: Final = f"{GROUP}/use-card-uuids"
"""Pod annotation: UUIDs of cards with commas between them; only these are used."""
AVOID_UUIDS: Final = f"{GROUP}/avoid-card-uuids"
"""Pod annotation: UUIDs of cards with commas between them; none of these is used."""
TIME_SLICES: Final = f"{GROUP}/time-slices"
"""Node label: into how many slices plain `nvidia.com/gpu` divides a card there; pods name it in nodeSelector."""
WARNS_ONLY: Final = "gpushare-dialects-off"
"""Beginning of the names of admission policies that warn of pods in dialects that are off, and refuse nothing."""
CORE_STEPS: Final = MappingProxyType(
    {
        ACK.name: 5,
        "qgpu": 5,
        "time-slices": 5,
        "hami": 1,
        "volcano": 1,
        "gpu-manager": 1,
        "kai": 1,
        "koordinator": 1,
        "vgpu-manager": 1,
    }
)
"""Every dialect that pods may be written in, with the percent of which compute on a card is a multiple there."""
API_VERSION: Final = "v1alpha1"
SYSTEM_NAMESPACE: Final = os.environ.get("GPUSHARE_NAMESPACE") or "gpushare-system"
"""Where our own processes run: one for the life of a process, as every other name here."""
SYSTEM_NAMESPACES: Final = frozenset({"kube-system", SYSTEM_NAMESPACE})
"""Admission judges nothing there, and no pod is evicted from there."""
SCHEDULER: Final = "gpushare-scheduler"
"""`schedulerName` of pods that ask for shares; also the scheduler's Service, account and Lease."""
KUBE_SCHEDULER: Final = "gpushare-kube-scheduler"
"""Account of the stock kube-scheduler beside our scheduler."""
KUBE_TOKEN: Final = f"{KUBE_SCHEDULER}-token"
"""Secret: token of the kube-scheduler in our scheduler's pod."""
KUBE_LEASE: Final = f"{SCHEDULER}-kube"
"""The Lease of that kube-scheduler, in our namespace."""
NODE_AGENT: Final = "gpushare-node"
"""The node agent's account."""
AUTOSCALER: Final = "gpushare-autoscaler"
"""The autoscaler's account."""
AUTOSCALER_CLIENT: Final = "gpushare-cluster-autoscaler"
"""Secret: certificate by which cluster-autoscaler asks us, in its own namespace too; it reads it at its start."""
AUTOSCALER_STATE: Final = f"{AUTOSCALER}-state"
"""ConfigMap, by the autoscaler: its state, kept over restarts."""
POOLS: Final = "gpushare-pools"
"""ConfigMap, by the autoscaler: its pools, for the scheduler and admission."""
RIGHT_SIZING: Final = "gpushare-right-sizing"
"""ConfigMap, by the autoscaler: recommendations for promises, and what they follow from."""
EXPORTER: Final = "gpushare-exporter"
"""The exporter's account, which has no rights."""
MIG_PREFIX: Final = f"{ACK.whole.partition('/')[0]}/mig-"
"""Extended resource: whole MIG instances of the vendor's plugin; their profile follows."""
WHOLE_CARDS: Final = f"{GROUP}/whole-cards"
"""Node label on nodes of whole cards alone, its value the card's model: cluster-autoscaler's GPU label."""
DRAIN: Final = f"{GROUP}/drain"
"""Node taint and annotation, by the autoscaler: NoSchedule on a node that it empties; JSON {since, why}."""
MOVED: Final = f"{GROUP}/moved"
"""Reservation annotation: UID of the pod that moves, for whose successor the reservation is."""
PROVISIONING_GROUP: Final = "autoscaling.x-k8s.io"
"""API group of cluster-autoscaler's ProvisioningRequest, by which Kueue asks for room for a whole job."""
PROVISIONING_REQUESTS: Final = "provisioningrequests"
"""Plural of that kind."""
PROVISIONING_CLASS: Final = f"cards.{GROUP}"
"""`provisioningClassName` of the requests that our scheduler answers: cards for all pods of a job, or for none."""
PROVISIONING_REQUEST: Final = f"{PROVISIONING_GROUP}/consume-provisioning-request"
"""Pod annotation, by Kueue: name of the ProvisioningRequest whose reservations are for the pod."""

# On a node, the same on every machine.
RUN_DIR: Final = "/var/lib/gpushare"
"""Host: `alloc/<pod UID>.<container>/`, `lib/<sha256>/`, `bin/`; in-container paths do not show it."""
MARKS_DIR: Final = "/run/gpushare/marks"
"""Host, in memory: `<container id>`, by which the guard knows that the agent prepared the container."""
CDI_DIR: Final = "/var/run/cdi"
"""Host: where container runtimes look for CDI specs (containerd and CRI-O, besides /etc/cdi)."""
CARD_KIND: Final = f"{GROUP}/card"
"""A CDI device is `gpushare.dev/card=<UUID>`: device nodes and driver of one card."""
GATE_KIND: Final = f"{GROUP}/gate"
GATE_DEVICE: Final = f"{GATE_KIND}=closed"
"""CDI device of every container that asks for shares: it does not start unless the node agent prepared it."""
START_NONCE: Final = f"{GROUP}/start-nonce"
"""OCI annotation, by the node agent: of a container that may start; the guard compares it with its mark."""
IN_CONTAINER: Final = "/run/gpushare"
"""Container: `limits/limits`, `limits/feed` read-only, `region/region`, `lib/libgpushare.so`."""
PRELOAD: Final = "/etc/ld.so.preload"
LIMITS_ENV: Final = "GPUSHARE_LIMITS"
"""Container variable: the file with the container's limits. One that is named and missing means no memory."""
FEED_ENV: Final = "GPUSHARE_FEED"
"""Container variable: the file by which the host tells what the driver measures."""
REGION_ENV: Final = "GPUSHARE_REGION"
"""Container variable: the file in which the library counts."""
VISIBLE_ENV: Final = "GPUSHARE_VISIBLE_DEVICES"
"""Container variable: UUIDs of its cards, since NVIDIA_VISIBLE_DEVICES is `void` where NVIDIA's runtimes read it."""

# Kubernetes' own.
DEFAULT_SCHEDULER: Final = "default-scheduler"
CONTROL_PLANE: Final = frozenset({"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"})
"""Node labels of the control plane's machines; the second is that of old clusters."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror: nobody can move such a pod."""
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""Pod annotation: what it costs to end this replica rather than another; a whole number."""
