# SPDX-License-Identifier: Apache-2.0
"""
Volcano: `volcano.sh/vgpu-number` vGPUs, with memory (MiB or percent) and compute for each; and its older GPU sharing.

Source: Volcano ed72c7c, pkg/scheduler/api/devices/config/vgpu.go, devices/nvidia/vgpu/type.go, devices/nvidia/gpushare.
"""

from __future__ import annotations

from typing import Final

from isolation.contract.codec.cursor import Unacceptable
from isolation.contract.dialects.hami import check_mode
from isolation.contract.dialects.system import ForeignPod, System, Want, Words, vgpus
from isolation.contract.names import AVOID_MODELS, AVOID_UUIDS, USE_MODELS, USE_UUIDS
from isolation.contract.quantity import MIB

COUNT: Final = "volcano.sh/vgpu-number"
MEMORY: Final = "volcano.sh/vgpu-memory"
PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
CORES: Final = "volcano.sh/vgpu-cores"
OLD_MEMORY: Final = "volcano.sh/gpu-memory"
OLD_COUNT: Final = "volcano.sh/gpu-number"
_CARDS: Final = {
    "nvidia.com/use-gputype": USE_MODELS,
    "nvidia.com/nouse-gputype": AVOID_MODELS,
    "volcano.sh/vgpu-use-gpuuuid": USE_UUIDS,
    "volcano.sh/vgpu-nouse-gpuuuid": AVOID_UUIDS,
}


_MODE: Final = "volcano.sh/vgpu-mode"
_ANNOTATIONS: Final = frozenset((*_CARDS, _MODE))


def _read(pod: ForeignPod) -> dict[str, Want]:
    if pod.says(_ANNOTATIONS):
        check_mode(pod, _MODE)
        pod.copy(_CARDS)
    wants = vgpus(pod, (COUNT, MEMORY, PERCENT, CORES))
    for container in pod.containers:
        size, count = container.size(OLD_MEMORY, MIB), container.amount(OLD_COUNT)
        if not size and not count:
            continue
        if container.name in wants or (size and count):
            raise Unacceptable(
                f"{container.where}: {OLD_MEMORY if size else OLD_COUNT} and another of Volcano's requests for GPUs "
                "are set; keep one"
            )
        wants[container.name] = Want(bytes=size) if size else Want(count or 1, whole=True)
    return wants


SYSTEM: Final = System(
    name="volcano",
    title="Volcano",
    read=_read,
    words=Words(MEMORY, MIB, CORES, COUNT),
    better=f"{MEMORY} (MiB)",
    resources=(COUNT, MEMORY, PERCENT, CORES, OLD_MEMORY, OLD_COUNT),
    schedulers=("volcano",),
    webhooks=("volcano.sh",),
    node_resources=(COUNT, OLD_MEMORY),
    programs=("vc-scheduler", "volcano-vgpu-device-plugin"),
)
