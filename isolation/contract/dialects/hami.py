# SPDX-License-Identifier: Apache-2.0
"""
HAMi: `nvidia.com/gpu` vGPUs with `gpumem`, `gpumem-percentage` or `gpucores`; without these it is a whole card.

Source: HAMi 4707fb0, pkg/scheduler/config/config.go, pkg/device/nvidia/device.go, pkg/util/types.go.
"""

from __future__ import annotations

from typing import Final

from isolation.contract.codec.cursor import Unacceptable, show
from isolation.contract.dialects.system import ForeignPod, System, Want, Words, vgpus
from isolation.contract.model import Mode
from isolation.contract.names import ACK, AVOID_MODELS, AVOID_UUIDS, ONLINE, USE_MODELS, USE_UUIDS
from isolation.contract.quantity import MIB

COUNT: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
_CARDS: Final = {
    "nvidia.com/use-gputype": USE_MODELS,
    "nvidia.com/nouse-gputype": AVOID_MODELS,
    "nvidia.com/use-gpuuuid": USE_UUIDS,
    "nvidia.com/nouse-gpuuuid": AVOID_UUIDS,
}
_MODE: Final = "nvidia.com/vgpu-mode"
_NO_EFFECT: Final = {
    "nvidia.com/numa-bind": "the node's label decides",
    "hami.io/node-scheduler-policy": "the node's label decides",
    "hami.io/gpu-scheduler-policy": "the node's label decides",
    "hami.io/vulkan": "limits hold for CUDA alone",
}
_INDEXES: Final = {"nvidia.com/use-gpuindexes": "use-gpuuuid", "nvidia.com/nouse-gpuindexes": "nouse-gpuuuid"}
_ANNOTATIONS: Final = frozenset((*_CARDS, *_INDEXES, *_NO_EFFECT, _MODE))
_SWITCH: Final = "CUDA_DISABLE_CONTROL"


def _read(pod: ForeignPod) -> dict[str, Want]:
    pod.refuse_env(_SWITCH)
    if pod.says(_ANNOTATIONS):
        pod.copy(_CARDS)
        check_mode(pod, _MODE)
        for key, instead in _INDEXES.items():
            if pod.annotation(key):
                raise Unacceptable(
                    f"annotation {key} names cards by their index, which differs from node to node; write their UUIDs "
                    f"in nvidia.com/{instead}, or remove it"
                )
        pod.warn(_NO_EFFECT)
    wants = vgpus(pod, (COUNT, MEMORY, PERCENT, CORES), implied=1)
    for container in pod.containers:
        priority = container.amount(PRIORITY)
        if priority is not None and container.name not in wants:
            raise Unacceptable(f"{container.where}: {PRIORITY} needs {COUNT}; set it to the number of cards")
        if priority == 0:
            pod.annotations[ONLINE] = "true"  # 1 is what every pod has: it keeps the compute that it asks for
    return wants


def check_mode(pod: ForeignPod, annotation: str) -> None:
    """MPS is a mode of nodes; refuse a way of sharing that is not ours."""
    mode = pod.annotation(annotation)
    if mode == Mode.MPS:
        pod.selector[ACK.mode_label] = Mode.MPS.value
    elif mode not in ("", "hami-core"):
        raise Unacceptable(
            f"annotation {annotation} is {show(mode)}, which gpushare does not serve; remove it: limits are enforced "
            "by gpushare's library"
        )


SYSTEM: Final = System(
    name="hami",
    title="HAMi",
    read=_read,
    words=Words(MEMORY, MIB, CORES, COUNT),
    better=f"{MEMORY} (MiB)",
    resources=(MEMORY, PERCENT, CORES, PRIORITY),
    implied=(COUNT,),
    schedulers=("hami-scheduler",),
    webhooks=("vgpu.hami.io",),
    programs=("hami",),
)
