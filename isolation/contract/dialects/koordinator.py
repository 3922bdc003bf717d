# SPDX-License-Identifier: Apache-2.0
"""
Koordinator: amounts of the pod's container over all its cards together, which `koordinator.sh/gpu.shared` counts.

Without that count, up to 100 percent is a share of one card and a multiple of 100 that many whole cards.

Source: Koordinator, apis/extension/device_share.go; docs "Device Scheduling - GPU Share".
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.cursor import Unacceptable
from isolation.contract.dialects.gpu_manager import whole_cards
from isolation.contract.dialects.system import ForeignPod, System, Want, Words
from isolation.contract.model import FULL_CORE
from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from isolation.contract.dialects.system import ForeignContainer

SHARED: Final = "koordinator.sh/gpu.shared"
BOTH: Final = "koordinator.sh/gpu"
CORE: Final = "koordinator.sh/gpu-core"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
MEMORY: Final = "koordinator.sh/gpu-memory"


_NO_EFFECT: Final = {
    "scheduling.koordinator.sh/device-allocate-hint": "a card is chosen by the node's label and by memory",
    "scheduling.koordinator.sh/device-joint-allocate": "gpushare gives cards, and no other devices with them",
    "scheduling.koordinator.sh/gpu-partition-spec": "the links between cards are not considered",
}


def _read(pod: ForeignPod) -> dict[str, Want]:
    pod.warn(_NO_EFFECT)
    return {one.name: want for one in pod.containers if (want := _container(one)) is not None}


def _container(container: ForeignContainer) -> Want | None:
    # An amount of 0 is as good as none.
    both, core, ratio, size, shared = [container.amount(name) or None for name in (BOTH, CORE, RATIO, MEMORY, SHARED)]
    if (both, core, ratio, size, shared) == (None,) * 5:
        return None
    if both is not None:
        if core is not None or ratio is not None or size is not None:
            raise Unacceptable(f"{container.where}: {BOTH} is compute and memory together; remove the other amounts")
        core = ratio = both
    whole = shared is None and (ratio or 0) >= FULL_CORE and (core == FULL_CORE or (ratio or 0) > FULL_CORE)
    if ratio is not None and whole:
        return whole_cards(container.where, BOTH if both is not None else RATIO, ratio)
    memory, part = _memory(container, ratio, size, shared or 1)
    return Want(shared or 1, memory, part, core=_compute(container, core or 0, shared or 1))


def _memory(
    container: ForeignContainer, ratio: int | None, size: int | None, cards: int
) -> tuple[int, Fraction | None]:
    """Bytes, or a part, of each card."""
    if ratio is not None and size is not None:
        raise Unacceptable(f"{container.where}: {RATIO} and {MEMORY} are both set; keep one")
    if size is not None:
        if size < MIB:
            raise Unacceptable(f"{container.where}: {MEMORY} is less than a MiB; write a quantity such as 8Gi")
        return -(-size // cards), None
    if ratio is None:
        raise Unacceptable(f"{container.where}: memory is missing; set {MEMORY}, such as 8Gi, or {RATIO}")
    if ratio > FULL_CORE * cards:
        raise Unacceptable(f"{container.where}: {RATIO} {ratio} is more than {cards} cards have; request less")
    return 0, Fraction(ratio, FULL_CORE * cards)


def _compute(container: ForeignContainer, core: int, cards: int) -> int:
    """Percent of each card."""
    if core % cards:
        raise Unacceptable(f"{container.where}: {CORE} {core} over {cards} cards; request a multiple of {cards}")
    if core > FULL_CORE * cards:
        raise Unacceptable(f"{container.where}: {CORE} {core} is more than 100 on each of {cards} cards; request less")
    return core // cards


SYSTEM: Final = System(
    name="koordinator",
    title="Koordinator",
    read=_read,
    words=Words(MEMORY, 1, CORE, SHARED, total=True),
    better=f"{MEMORY} (a quantity such as 8Gi)",
    resources=(SHARED, BOTH, CORE, RATIO, MEMORY),
    schedulers=("koord-scheduler",),
    webhooks=("koordinator.sh",),
    node_resources=(CORE,),
    programs=("koord-scheduler", "koord-manager"),
)
