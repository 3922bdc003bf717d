# SPDX-License-Identifier: Apache-2.0
"""
qGPU of TKE: `qgpu-core` in percent (a multiple of 100: whole cards), `qgpu-memory` in GiB, and offline pods.

Above 100 and no multiple of it, both amounts are split evenly over as few cards as have that much, rounded down.
Offline (`qgpu-core-greedy` and `app-class: offline`): memory is booked, compute is what others leave.

Source: Tencent Cloud TKE documents 457/65734 (2026-01), 457/81034 (2025-09) and 457/127667 (several cards).
"""

from __future__ import annotations

from typing import Final

from isolation.contract.codec.cursor import Unacceptable, show
from isolation.contract.dialects.gpu_manager import whole_cards
from isolation.contract.dialects.system import ForeignPod, System, Want, Words
from isolation.contract.model import FULL_CORE
from isolation.contract.names import ONLINE
from isolation.contract.quantity import GIB

CORE: Final = "tke.cloud.tencent.com/qgpu-core"
MEMORY: Final = "tke.cloud.tencent.com/qgpu-memory"
GREEDY: Final = "tke.cloud.tencent.com/qgpu-core-greedy"
CLASS: Final = "tke.cloud.tencent.com/app-class"
_CLASSES: Final = {"online": "true", "offline": "false"}


def _read(pod: ForeignPod) -> dict[str, Want]:
    kind = pod.annotation(CLASS)
    if kind and kind not in _CLASSES:
        raise Unacceptable(f"annotation {CLASS} is {show(kind)}; write online or offline")
    if kind:
        pod.annotations[ONLINE] = _CLASSES[kind]
    wants: dict[str, Want] = {}
    for container in pod.containers:
        core, size, greedy = container.amount(CORE), container.size(MEMORY, GIB), container.amount(GREEDY)
        if not core and not size and not greedy:
            continue
        if bool(greedy) != (kind == "offline"):
            raise Unacceptable(
                f"{container.where}: {GREEDY} and annotation {CLASS}: offline belong together; set both, or {CORE}"
            )
        if core and greedy:
            raise Unacceptable(f"{container.where}: {CORE} and {GREEDY} are both set; an offline pod has {GREEDY}")
        if core and not core % FULL_CORE and (core > FULL_CORE or not size):
            wants[container.name] = whole_cards(container.where, CORE, core)
        elif not size:
            raise Unacceptable(f"{container.where}: {MEMORY} is missing; set it, in GiB")
        else:
            cards = max(1, -(-(core or 0) // FULL_CORE))
            units = size // GIB
            if units < cards:
                raise Unacceptable(f"{container.where}: {MEMORY} {units} over {cards} cards; set {cards} or more")
            wants[container.name] = Want(cards, units // cards * GIB, core=(core or 0) // cards)
    return wants


SYSTEM: Final = System(
    name="qgpu",
    title="qGPU",
    read=_read,
    words=Words(MEMORY, GIB, CORE),
    better=f"{MEMORY} (GiB)",
    resources=(CORE, MEMORY, GREEDY),
    node_resources=(CORE,),
    programs=("qgpu-manager", "qgpu-scheduler", "elastic-gpu-scheduler"),
)
