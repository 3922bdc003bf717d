# SPDX-License-Identifier: Apache-2.0
"""
vgpu-manager: `nvidia.com/vgpu-number` vGPUs with `vgpu-memory` (MiB) and `vgpu-cores` (percent) for each.

Its domain can be configured; the default one is read. Without a number it is one, as its webhook writes.

Source: coldzerofear/vgpu-manager 00123f5, pkg/util/consts.go and pkg/webhook/pod/mutate.
"""

from __future__ import annotations

from typing import Final

from isolation.contract.codec.cursor import Unacceptable
from isolation.contract.dialects.system import ForeignPod, System, Want, Words, vgpus
from isolation.contract.names import AVOID_MODELS, AVOID_UUIDS, USE_MODELS, USE_UUIDS
from isolation.contract.quantity import MIB

COUNT: Final = "nvidia.com/vgpu-number"
MEMORY: Final = "nvidia.com/vgpu-memory"
CORES: Final = "nvidia.com/vgpu-cores"
_CARDS: Final = {
    "nvidia.com/include-gpu-type": USE_MODELS,
    "nvidia.com/exclude-gpu-type": AVOID_MODELS,
    "nvidia.com/include-gpu-uuid": USE_UUIDS,
    "nvidia.com/exclude-gpu-uuid": AVOID_UUIDS,
}
_POLICY: Final = "nvidia.com/vgpu-compute-policy"
_LABEL: Final = "the node's label decides"
_CHOICES: Final = {
    "nvidia.com/node-scheduler-policy": _LABEL,
    "nvidia.com/device-scheduler-policy": _LABEL,
    "nvidia.com/memory-scheduler-policy": "a pod's memory is memory of its card",
    "nvidia.com/device-topology-mode": "the links between cards are not considered",
    "nvidia.com/cross-pod-topology": "the links between cards are not considered",
}
_STRICT: Final = "nvidia.com/device-topology-mode"
_ACCESS: Final = "nvidia.com/vgpu-access-mode"
_ANNOTATIONS: Final = frozenset((*_CARDS, *_CHOICES, _POLICY, _ACCESS))


def _read(pod: ForeignPod) -> dict[str, Want]:
    pod.refuse_env("DISABLE_VGPU_CONTROL")
    if pod.says(_ANNOTATIONS):
        if pod.annotation(_ACCESS) not in {"", "local"}:
            raise Unacceptable(f"annotation {_ACCESS} asks for a card of another machine; remove it")
        if pod.annotation(_STRICT).endswith("-strict"):
            raise Unacceptable(
                f"annotation {_STRICT} demands links between cards, which gpushare does not consider; remove it"
            )
        if pod.annotation(_POLICY) not in {"", "fixed"}:
            pod.warn({_POLICY: "the node pool's compute policy decides"})
        pod.warn(_CHOICES)
        pod.copy(_CARDS)
    return vgpus(pod, (COUNT, MEMORY, "", CORES), implied=1)


SYSTEM: Final = System(
    name="vgpu-manager",
    title="vgpu-manager",
    read=_read,
    words=Words(MEMORY, MIB, CORES, COUNT),
    better=f"{MEMORY} (MiB)",
    resources=(COUNT, MEMORY, CORES),
    schedulers=("vgpu-scheduler",),
    webhooks=("vgpu-manager.nvidia.com",),
    node_resources=(COUNT,),
    programs=("vgpu-manager",),
)
