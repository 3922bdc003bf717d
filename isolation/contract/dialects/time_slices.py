# SPDX-License-Identifier: Apache-2.0
"""
Plain `nvidia.com/gpu` as time slices, for pods that are tied to such a pool; every other one is a whole card.

A node of the pool has mode `share` and label `gpushare.dev/time-slices: "4"`: one `nvidia.com/gpu` is a fourth of a
card's units there. A pod is tied by that label in its nodeSelector, or by its namespace. N slices are of one card:
they are booked, so that no card is given away twice, and nothing is enforced.

Source: NVIDIA k8s-device-plugin, README, "Shared access to GPUs", "With CUDA Time-Slicing".
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from isolation.contract.codec.cursor import Unacceptable, show
from isolation.contract.dialects.system import ForeignPod, System, Want, Words
from isolation.contract.names import TIME_SLICES
from isolation.contract.quantity import GIB

COUNT: Final = "nvidia.com/gpu"
_REPLICAS: Final = re.compile(r"[1-9][0-9]{0,2}")


def _read(pod: ForeignPod) -> dict[str, Want]:
    text = pod.spec["nodeSelector"][TIME_SLICES].text() or pod.slices
    if not _REPLICAS.fullmatch(text):
        raise Unacceptable(
            f"nodeSelector {TIME_SLICES} is {show(text)}; write the number of slices of a card in quotes, as the "
            "label of the nodes has it"
        )
    wants: dict[str, Want] = {}
    for container in pod.containers:
        count = container.amount(COUNT)
        if count and count > int(text):
            raise Unacceptable(f"{container.where}: {COUNT} is {count}, but a card has {text} slices; request fewer")
        if count:
            wants[container.name] = Want(part=Fraction(count, int(text)))
    if wants:
        pod.selector[TIME_SLICES] = text
        pod.warnings.append("time slices are booked and not enforced: a program may use more memory and compute")
    return wants


SYSTEM: Final = System(
    name="time-slices",
    title="time slices",
    read=_read,
    words=Words("aliyun.com/gpu-mem", GIB),
    better="aliyun.com/gpu-mem (GiB)",
    implied=(COUNT,),
    selector=TIME_SLICES,
    selected=(COUNT,),
)
