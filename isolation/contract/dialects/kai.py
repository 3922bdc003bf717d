# SPDX-License-Identifier: Apache-2.0
"""
KAI Scheduler: GPU sharing by annotation, of one container: a fraction, MiB, or container memory annotations.

There is no resource in the pod: its form is found by looking keys up, never by walking over annotations. Memory above a
container's request may be taken back by ending it in KAI; nothing here is taken back, so a higher limit is not granted.

Source: KAI-Scheduler docs/gpu-sharing; kai-gpu-fractioning README 0249ece.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from isolation.contract.codec.cursor import Unacceptable, show
from isolation.contract.dialects.system import ForeignContainer, ForeignPod, System, Want, Words, amount_bytes
from isolation.contract.quantity import MIB

FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
_REQUEST: Final = "nvidia.com/container.{}.gpu-memory.request"
_LIMIT: Final = "nvidia.com/container.{}.gpu-memory.limit"
_COMPUTE: Final = "nvidia.com/container.{}.gpu-compute.mode"
_DEVICES: Final = "nvidia.com/container.{}.gpus.devices"
QUEUE: Final = "kai.scheduler/queue"
_FRACTION_TEXT: Final = re.compile(r"0?\.[0-9]{1,9}|1(\.0{1,9})?")
_COUNT_TEXT: Final = re.compile(r"[1-9][0-9]{0,8}")


def _read(pod: ForeignPod) -> dict[str, Want]:
    if queue := pod.metadata["labels"].mapping().get(QUEUE):
        pod.warnings.append(
            f"label {QUEUE} {show(queue)} has no effect: gpushare has no queues; a namespace's quota is its annotation "
            "gpushare.dev/gpu-memory-quota"
        )
    by_container = {one.name: want for one in pod.containers if (want := _container(pod, one)) is not None}
    legacy = _legacy(pod)
    if by_container and legacy:
        raise Unacceptable("annotations of the pod and of its containers both ask for GPU memory; keep one form")
    return by_container or legacy


def _legacy(pod: ForeignPod) -> dict[str, Want]:
    fraction, size = pod.annotation(FRACTION), pod.annotation(MEMORY)
    if not fraction and not size:
        for key in (FRACTION, MEMORY):
            if key in pod.written:
                raise Unacceptable(f"annotation {key} is empty; write an amount, or remove it")
        return {}
    if fraction and size:
        raise Unacceptable(f"annotations {FRACTION} and {MEMORY} are both set; keep one")
    named = pod.annotation(CONTAINER)
    apps = [one.name for one in pod.containers[len(pod.spec["initContainers"].items()) :]]
    if named and named not in {one.name for one in pod.containers}:
        raise Unacceptable(f"annotation {CONTAINER} is {show(named)}, which is no container of the pod; correct it")
    count = pod.annotation(DEVICES) or "1"
    if not _COUNT_TEXT.fullmatch(count):
        raise Unacceptable(f"annotation {DEVICES} is {show(count)}; write a whole number of 1 or more in quotes")
    if fraction:
        if not _FRACTION_TEXT.fullmatch(fraction) or not Fraction(fraction):
            raise Unacceptable(
                f"annotation {FRACTION} is {show(fraction)}; write a number above 0 and up to 1 in quotes"
            )
        want = Want(int(count), part=Fraction(fraction))
    else:
        if not _COUNT_TEXT.fullmatch(size):
            raise Unacceptable(f"annotation {MEMORY} is {show(size)}; write a whole number of MiB in quotes")
        want = Want(int(count), int(size) * MIB)
    return {named or apps[0]: want}


def _container(pod: ForeignPod, container: ForeignContainer) -> Want | None:
    if not any(key.format(container.name) in pod.written for key in (_REQUEST, _LIMIT, _DEVICES)):
        return None
    request, limit, mode, devices = (
        pod.metadata["annotations"][key.format(container.name)] for key in (_REQUEST, _LIMIT, _COMPUTE, _DEVICES)
    )
    if devices:
        raise Unacceptable(f"annotation {_DEVICES.format(container.name)} is the scheduler's to write; remove it")
    if not request and not limit:
        return None
    if mode and mode.text() != "time-slicing":
        raise Unacceptable(
            f"annotation {_COMPUTE.format(container.name)} is {show(mode.text())}; gpushare serves time-slicing alone"
        )
    booked = request or limit
    size = amount_bytes(booked, _REQUEST.format(container.name))
    if request and limit:
        most = amount_bytes(limit, _LIMIT.format(container.name))
        if most < size:
            raise Unacceptable(f"annotation {_LIMIT.format(container.name)} is less than the request; raise it")
        if most > size:
            pod.warnings.append(
                f"container {show(container.name)} gets its memory request as its limit: gpushare promises no memory "
                "that it might have to take back"
            )
    return Want(bytes=size)


SYSTEM: Final = System(
    name="kai",
    title="KAI",
    read=_read,
    words=Words(f"annotation {MEMORY}", MIB, count=f"annotation {DEVICES}"),
    better=f"annotation {MEMORY} (MiB)",
    annotations=(FRACTION, MEMORY),
    container_annotations=(_REQUEST, _LIMIT),
    also_removed=(DEVICES, CONTAINER),
    schedulers=("kai-scheduler",),
    webhooks=("kai.scheduler", "run.ai"),
)
