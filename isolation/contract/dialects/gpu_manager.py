# SPDX-License-Identifier: Apache-2.0
"""
gpu-manager (GaiaGPU, vCUDA): `tencent.com/vcuda-core` in percent of a card and `tencent.com/vcuda-memory` in 256 MiB.

Below 100 it is a share of one card, and memory is needed; a multiple of 100 is that many whole cards.

Source: gpu-manager 8cd842e, pkg/types/types.go, pkg/utils/utils.go (IsGPURequiredPod).
"""

from __future__ import annotations

from typing import Final

from isolation.contract.codec.cursor import Unacceptable
from isolation.contract.dialects.system import ForeignPod, System, Want, Words
from isolation.contract.model import FULL_CORE
from isolation.contract.names import CORE_LIMIT
from isolation.contract.quantity import MIB

CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
LIMIT: Final = "tencent.com/vcuda-core-limit"
_UNIT: Final = 256 * MIB


def _read(pod: ForeignPod) -> dict[str, Want]:
    wants: dict[str, Want] = {}
    for container in pod.containers:
        core, size = container.amount(CORE), container.size(MEMORY, _UNIT)
        if not core and not size:
            continue
        if not core:
            raise Unacceptable(f"{container.where}: {MEMORY} needs {CORE}; set it to the percent of a card's compute")
        if core >= FULL_CORE:
            wants[container.name] = whole_cards(container.where, CORE, core)
        elif not size:
            raise Unacceptable(f"{container.where}: {CORE} {core} needs {MEMORY}; set it, in units of 256 MiB")
        else:
            wants[container.name] = Want(bytes=size, core=core)
    if any(not want.whole for want in wants.values()):
        pod.copy({LIMIT: CORE_LIMIT})
    return wants


def whole_cards(where: str, name: str, core: int) -> Want:
    """Whole cards, as a multiple of 100 percent."""
    if core % FULL_CORE:
        below, above = core // FULL_CORE * FULL_CORE, -(-core // FULL_CORE) * FULL_CORE
        raise Unacceptable(
            f"{where}: {name} is {core}; above 100 it counts whole cards: request {below} or {above}, or less than 100"
        )
    return Want(core // FULL_CORE, whole=True)


SYSTEM: Final = System(
    name="gpu-manager",
    title="gpu-manager",
    read=_read,
    words=Words(MEMORY, _UNIT, CORE),
    better=f"{MEMORY} (units of 256 MiB)",
    resources=(CORE, MEMORY),
    node_resources=(CORE,),
    programs=("gpu-manager", "gpu-admission", "gpu-quota-admission"),
)
