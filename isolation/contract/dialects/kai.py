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
from functools import lru_cache
from typing import Final

from isolation.contract.codec.cursor import Unacceptable, show
from isolation.contract.dialects.system import (
    ForeignContainer,
    ForeignPod,
    System,
    Want,
    Words,
    amount_bytes,
    whole_number,
)
from isolation.contract.model import Mode
from isolation.contract.names import ACK
from isolation.contract.quantity import MIB

FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
_PREFIX: Final = "nvidia.com/container."
_REQUEST: Final = ".gpu-memory.request"
_LIMIT: Final = ".gpu-memory.limit"
_COMPUTE: Final = ".gpu-compute.mode"
_DEVICES: Final = ".gpus.devices"
_LIMITS: Final = "gpushare promises no memory that it might have to take back"
_COMPUTE_LIMIT: Final = "the annotation gpushare.dev/core-limit and the node pool's compute policy decide"
_NO_EFFECT: Final = {
    "gpu-fraction.limit": _LIMITS,
    "gpu-memory.limit": _LIMITS,
    "gpu-sm-percentage": _COMPUTE_LIMIT,
    "gpu-sm-cores": _COMPUTE_LIMIT,
    "mps": "nvidia.com/container.NAME.gpu-compute.mode: sm-sharing asks for MPS",
}
_SM_SHARING: Final = "sm-sharing"
"""KAI's word for MPS."""
QUEUE: Final = "kai.scheduler/queue"
_FRACTION_TEXT: Final = re.compile(r"0?\.[0-9]{1,9}|1(\.0{1,9})?")
_COUNT_TEXT: Final = re.compile(r"[1-9][0-9]{0,8}")


def _read(pod: ForeignPod) -> dict[str, Want]:
    if queue := pod.labels.get(QUEUE):
        pod.warnings.append(
            f"label {QUEUE} {show(queue)} has no effect: gpushare has no queues; a namespace's quota is its annotation "
            "gpushare.dev/gpu-memory-quota"
        )
    if pod.says(_NO_EFFECT.keys()):
        pod.warn(_NO_EFFECT)
    by_container: dict[str, Want] = {}
    for one in pod.containers:
        want = _container(pod, one)
        if want is not None:
            by_container[one.name] = want
    legacy = _legacy(pod)
    if by_container and legacy:
        raise Unacceptable("annotations of the pod and of its containers both ask for GPU memory; keep one form")
    return by_container or legacy


def _legacy(pod: ForeignPod) -> dict[str, Want]:
    fraction, size = pod.annotation(FRACTION), pod.annotation(MEMORY)
    if not fraction and not size:
        _check_absent(pod)
        return {}
    if fraction and size:
        raise Unacceptable(f"annotations {FRACTION} and {MEMORY} are both set; keep one")
    named = pod.annotation(CONTAINER)
    if named and all(named != one.name for one in pod.containers):
        raise Unacceptable(f"annotation {CONTAINER} is {show(named)}, which is no container of the pod; correct it")
    count = pod.annotation(DEVICES)
    if count and not _COUNT_TEXT.fullmatch(count):
        raise Unacceptable(f"annotation {DEVICES} is {show(count)}; write a whole number of 1 or more in quotes")
    if fraction:
        part = _part(fraction)
        if part is None:
            raise Unacceptable(
                f"annotation {FRACTION} is {show(fraction)}; write a number above 0 and up to 1 in quotes"
            )
        want = Want(int(count or 1), part=part)
    else:
        if not _COUNT_TEXT.fullmatch(size):
            raise Unacceptable(f"annotation {MEMORY} is {show(size)}; write a whole number of MiB in quotes")
        want = Want(int(count or 1), int(size) * MIB)
    for one in pod.containers:
        if one.name == named or (not named and one.kind == "containers"):
            return {one.name: want}
    return {}


def _check_absent(pod: ForeignPod) -> None:
    for key in (FRACTION, MEMORY):
        if key in pod.written:
            raise Unacceptable(f"annotation {key} is empty; write an amount, or remove it")
    if DEVICES in pod.written:
        raise Unacceptable(f"annotation {DEVICES} needs {FRACTION} or {MEMORY}; write one of them, or remove it")


@lru_cache(maxsize=1024)
def _part(text: str) -> Fraction | None:
    """Of a card, more than 0; None: it is none."""
    return Fraction(text) or None if _FRACTION_TEXT.fullmatch(text) else None


def _container(pod: ForeignPod, container: ForeignContainer) -> Want | None:
    start, written = _PREFIX + container.name, pod.written
    if written.get(devices := start + _DEVICES) is not None:
        raise Unacceptable(f"annotation {devices} is the scheduler's to write; remove it")
    request, limit = start + _REQUEST, start + _LIMIT
    booked = request if written.get(request) is not None else limit
    if written.get(booked) is None:
        return None
    mode = start + _COMPUTE
    if pod.annotation(mode) == _SM_SHARING:
        pod.selector[ACK.mode_label] = Mode.MPS.value
    elif pod.annotation(mode) not in {"", "time-slicing"}:
        raise Unacceptable(f"annotation {mode} is {show(written[mode])}; use time-slicing or {_SM_SHARING}")
    size = _bytes(pod, booked)
    if booked == request and written.get(limit) is not None:
        most = _bytes(pod, limit)
        if most < size:
            raise Unacceptable(f"annotation {limit} is less than the request; raise it")
        if most > size:
            pod.warnings.append(f"container {show(container.name)} gets its memory request as its limit: {_LIMITS}")
    return Want(bytes=size)


def _bytes(pod: ForeignPod, key: str) -> int:
    known = whole_number(pod.written[key])
    return known if known is not None and known >= MIB else amount_bytes(pod.metadata["annotations"][key], key)


SYSTEM: Final = System(
    name="kai",
    title="KAI",
    read=_read,
    words=Words(f"annotation {MEMORY}", MIB, count=f"annotation {DEVICES}"),
    better=f"annotation {MEMORY} (MiB)",
    annotations=(FRACTION, MEMORY, DEVICES),
    container_annotations=(f"{_PREFIX}{{}}{_REQUEST}", f"{_PREFIX}{{}}{_LIMIT}"),
    also_removed=(CONTAINER,),
    schedulers=("kai-scheduler",),
    webhooks=("kai.scheduler", "run.ai"),
    programs=("kai-scheduler",),
)
