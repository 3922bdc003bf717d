# SPDX-License-Identifier: Apache-2.0
"""Pods in the words of other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.admission_pods import WHOLE, Pod, annotated, beside, main_of, plain, spec

from isolation.contract.names import TIME_SLICES

if TYPE_CHECKING:
    from collections.abc import Callable


def asking(amounts: dict[str, Any], *changes: Callable[[Pod], object]) -> Pod:
    """A pod whose first container has these amounts, as the API server shows it: under requests too."""
    made = plain()
    main_of(made)["resources"] = {"limits": dict(amounts), "requests": dict(amounts)}
    for change in changes:
        change(made)
    return made


def hami(*changes: Callable[[Pod], object], **amounts: str | None) -> Pod:
    """A pod of HAMi: 3000 MiB and 30 percent of one card, unless other amounts are given; None: not named."""
    named = {"gpu": "1", "gpumem": "3000", "gpucores": "30"} | amounts
    return asking({f"nvidia.com/{key}": value for key, value in named.items() if value is not None}, *changes)


def kai(**notes: str) -> Pod:
    """A pod of KAI with these annotations."""
    return plain(*(annotated(key, value) for key, value in notes.items()), spec(schedulerName="kai-scheduler"))


QGPU = "tke.cloud.tencent.com/qgpu-"
KOORD = "koordinator.sh/gpu"
CASES = {
    "hami": (hami(), (1, 3, 30, False)),
    "hami-two": (hami(gpu="2"), (2, 3, 30, False)),
    "hami-odd-step": (hami(gpucores="7"), (1, 3, 7, False)),
    "hami-memory-alone": (hami(gpu=None, gpucores=None), (1, 3, 0, False)),
    "hami-cores-alone": (hami(gpumem=None), (1, 15, 30, False)),
    "hami-percent": (hami(**{"gpumem": None, "gpumem-percentage": "50"}), (1, 7, 30, False)),
    "hami-both": (hami(**{"gpumem-percentage": "50"}), (1, 3, 30, False)),
    "hami-shortened": (hami(gpumem="3k"), (1, 3, 30, False)),
    "hami-init": (
        hami(beside("initContainers", resources={"limits": {"nvidia.com/gpumem": "4096"}})),
        (1, 4, 30, False),
    ),
    "volcano": (
        asking({"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "2048", "volcano.sh/vgpu-cores": "25"}),
        (2, 2, 25, False),
    ),
    "volcano-number-alone": (asking({"volcano.sh/vgpu-number": "1"}), (1, 15, 0, False)),
    "volcano-percent": (
        asking({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory-percentage": "20"}),
        (1, 3, 0, False),
    ),
    "volcano-old": (asking({"volcano.sh/gpu-memory": "1024"}), (1, 1, 0, False)),
    "volcano-old-whole": (asking({"volcano.sh/gpu-number": "2"}), (2, 0, 0, True)),
    "gpu-manager": (asking({"tencent.com/vcuda-core": "33", "tencent.com/vcuda-memory": "20"}), (1, 5, 33, False)),
    "gpu-manager-whole": (asking({"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "60"}), (2, 0, 0, True)),
    "qgpu": (asking({f"{QGPU}core": "30", f"{QGPU}memory": "4"}), (1, 4, 30, False)),
    "qgpu-memory": (asking({f"{QGPU}memory": "4"}), (1, 4, 0, False)),
    "qgpu-whole": (asking({f"{QGPU}core": "200"}), (2, 0, 0, True)),
    "qgpu-offline": (
        asking(
            {f"{QGPU}core-greedy": "50", f"{QGPU}memory": "4"}, annotated("tke.cloud.tencent.com/app-class", "offline")
        ),
        (1, 4, 0, False),
    ),
    "kai-fraction": (kai(**{"gpu-fraction": "0.5"}), (1, 7, 0, False)),
    "kai-memory": (kai(**{"gpu-memory": "2000"}), (1, 2, 0, False)),
    "kai-devices": (kai(**{"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}), (2, 7, 0, False)),
    "kai-container": (kai(**{"nvidia.com/container.main.gpu-memory.request": "4Gi"}), (1, 4, 0, False)),
    "kai-container-limit": (
        kai(
            **{
                "nvidia.com/container.main.gpu-memory.request": "4Gi",
                "nvidia.com/container.main.gpu-memory.limit": "8Gi",
            }
        ),
        (1, 4, 0, False),
    ),
    "koordinator": (
        asking({f"{KOORD}.shared": "2", f"{KOORD}-core": "100", f"{KOORD}-memory": "8Gi"}),
        (2, 4, 50, False),
    ),
    "koordinator-ratio": (asking({f"{KOORD}-core": "50", f"{KOORD}-memory-ratio": "50"}), (1, 7, 50, False)),
    "koordinator-both": (asking({KOORD: "50"}), (1, 7, 50, False)),
    "koordinator-whole": (asking({KOORD: "200"}), (2, 0, 0, True)),
    "vgpu-manager": (
        asking({"nvidia.com/vgpu-number": "2", "nvidia.com/vgpu-memory": "1024", "nvidia.com/vgpu-cores": "11"}),
        (2, 1, 11, False),
    ),
    "time-slices": (asking({WHOLE: "2"}, spec(nodeSelector={TIME_SLICES: "4"})), (1, 7, 0, False)),
}
"""Pods of every dialect, and what they ask on cards of 15 GiB: cards, GiB and percent of each, whether whole."""
