# SPDX-License-Identifier: Apache-2.0
"""
One pod's own JSON, and its Events, as values; and what about it no room on any card would cure.

Pure. A pod's annotations are untrusted: what has the wrong shape is left out or reported, never guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from dashboards.terminal.explain.explanation import ExplainedPod, PodEvent
from isolation.contract.codec import (
    CodecError,
    decode_allocation,
    decode_classic,
    decode_vendor,
    owner_uid_of,
    request_of,
)
from isolation.contract.codec.cursor import At, decoded
from isolation.contract.codec.pod import seconds_of
from isolation.contract.dialects import SYSTEMS, spoken
from isolation.contract.model import Refusal, Request
from isolation.contract.names import (
    ACK,
    ALLOCATION,
    ASKED,
    CLASSIC_CARD,
    DIALECT,
    EXEMPT,
    RESERVATION,
    SCHEDULER,
    SHARED,
)
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.contract.model import Slice

_MAX_EVENTS: Final = 5
_MAX_GATES: Final = 8
_LONGEST_MESSAGE: Final = 500
_NOT_STARTED: Final = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
"""Reasons of a container that has ended without having run: after it the kubelet only says that it waits."""


def parse_pod(pod: Any, uuids: Mapping[int, str], unit_bytes: int) -> ExplainedPod:
    """The pod; `uuids` of its node's cards by index. Raises CodecError for what is no pod."""
    at = At(pod)
    metadata, spec, status = at["metadata"], at["spec"], at["status"]
    annotations, node = metadata["annotations"].texts(), spec["nodeName"].text()
    request = request_of(metadata.value, spec.value, unit_bytes=unit_bytes)
    slices, record, fault, promise = _recorded(annotations, node, uuids, unit_bytes)
    conditions = [c for c in status["conditions"].items() if c["type"].text() == "PodScheduled"]
    return ExplainedPod(
        namespace=metadata["namespace"].label_name("default"),
        name=metadata["name"].name(),
        uid=metadata["uid"].text(),
        node=node,
        phase=status["phase"].text("Pending"),
        created=seconds_of(metadata["creationTimestamp"]),
        scheduler=spec["schedulerName"].text(),
        request=request,
        slices=slices,
        dialect=annotations.get(DIALECT, "") if annotations.get(DIALECT) in SYSTEMS else "",
        foreign=" and ".join(one.title for one in spoken(metadata, spec)),
        asked=_asked(annotations.get(ASKED, "")),
        record=record,
        record_fault=fault,
        promise=promise,
        reservation=annotations.get(RESERVATION, ""),
        marked=metadata["labels"].texts().get(SHARED) == "true",
        gates=tuple(gate["name"].text() for gate in spec["schedulingGates"].items()[:_MAX_GATES]),
        deleting=bool(metadata["deletionTimestamp"]),
        unscheduled=conditions[0]["message"].text() if conditions else "",
        owner_uid=owner_uid_of(metadata.value),
        refused=tuple(_refused((*status["initContainerStatuses"].items(), *status["containerStatuses"].items()))),
    )


def _asked(text: str) -> str:
    """What admission noted of a pod's own words, on one line; anybody may have written it: nothing follows from it."""
    try:
        said = decoded(text) if text else At(None)
        parts = [
            f"container {name}: {', '.join(f'{key} {value}' for key, value in words.texts().items())}"
            for name, words in said["containers"].fields()
        ]
        parts += [f"annotation {key}: {value}" for key, value in said["annotations"].texts().items()]
        return printable("; ".join(parts), _LONGEST_MESSAGE)
    except CodecError:
        return ""


def _refused(statuses: Iterable[At]) -> Iterator[str]:
    """What the kubelet says of containers that could not be created or started."""
    for one in statuses:
        waiting, ended = one["state"]["waiting"], one["lastState"]["terminated"]
        failed = ended if ended["reason"].text() in _NOT_STARTED else waiting
        if waiting and (message := failed["message"].text()):
            yield f"container {one['name'].text()} does not start: {printable(message, _LONGEST_MESSAGE)}"


def _recorded(
    annotations: Mapping[str, str], node: str, uuids: Mapping[int, str], unit_bytes: int
) -> tuple[tuple[Slice, ...], str, str, str]:
    """Slices, which record, why it cannot be read, and the promise id."""
    ours, vendor = annotations.get(ALLOCATION), annotations.get(ACK.allocation_annotation)
    try:
        if ours is not None:
            found = decode_allocation(ours)
            return found.slices, ALLOCATION, "", found.promise
        if vendor is not None:
            slices = decode_vendor(vendor, uuids, node, unit_bytes=unit_bytes)
            return slices, ACK.allocation_annotation, "", ""
        if CLASSIC_CARD in annotations:
            return decode_classic(annotations, uuids, node, unit_bytes=unit_bytes), CLASSIC_CARD, "", ""
    except CodecError as exc:
        where = ALLOCATION if ours is not None else ACK.allocation_annotation if vendor is not None else CLASSIC_CARD
        return (), "", f"{where}: {exc}", ""
    return (), "", "", ""


def _untranslated(pod: ExplainedPod) -> Iterator[str]:
    if pod.foreign and not pod.dialect:
        yield (
            f"it asks for GPUs in the words of {pod.foreign}, and admission did not translate it: it gets none. Its "
            "dialect was off, or the webhook was not called; switch the dialect on and recreate the pod"
        )


def find_faults(pod: ExplainedPod) -> tuple[str, ...]:
    """What keeps the pod waiting, or wrong, whatever room there is; each with what to do."""
    faults: list[str] = []
    if pod.ended:
        return ()
    faults += _untranslated(pod)
    if isinstance(pod.request, Refusal):
        faults.append(f"invalid request: {pod.request.reason}")
    shared = isinstance(pod.request, Request) and pod.request.shared
    if not pod.node:
        if shared and pod.scheduler != SCHEDULER:
            faults.append(
                f"its schedulerName is {pod.scheduler or 'not set'}, not {SCHEDULER}: no scheduler places it on single "
                "cards. Admission did not change it: check that the webhook is installed and that its namespace is not "
                f"labelled {EXEMPT}. Then recreate the pod, or set schedulerName in its template"
            )
        if shared and not pod.marked:
            faults.append(f"it lacks the label {SHARED}=true, which admission sets: the gpushare scheduler ignores it")
        if pod.gates:
            faults.append(f"it has scheduling gates ({', '.join(pod.gates)}): their owner must remove them")
    faults += pod.refused
    if pod.deleting:
        faults.append("it is being deleted")
    if pod.record_fault:
        faults.append(f"its allocation record cannot be read, so no card is counted for it: {pod.record_fault}")
    elif shared and pod.node and not pod.record:
        faults.append("it is bound but has no allocation record: it was not bound by a scheduler that shares cards")
    return tuple(faults)


class _Ref(msgspec.Struct):
    uid: str = ""


class _Series(msgspec.Struct):
    count: int = 1
    lastObservedTime: str | None = None  # noqa: N815 (Kubernetes' spelling, here and below)


class _Source(msgspec.Struct):
    component: str = ""


class _Event(msgspec.Struct):
    involvedObject: _Ref  # noqa: N815
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    lastTimestamp: str | None = None  # noqa: N815
    eventTime: str | None = None  # noqa: N815
    firstTimestamp: str | None = None  # noqa: N815
    series: _Series | None = None
    source: _Source | None = None
    reportingComponent: str | None = None  # noqa: N815


_EVENT: Final = msgspec.json.Decoder(_Event)


def parse_events(items: Iterable[msgspec.Raw], uid: str) -> tuple[PodEvent, ...]:
    """
    The latest Events of this very pod, the latest first; not those of an earlier pod of its name.

    Most times are whole seconds. Within one the order is the list's, by names, which end in nanoseconds (client-go).
    """
    found = []
    for raw in items:
        try:
            event = _EVENT.decode(raw)
            if event.involvedObject.uid in ("", uid):
                found.append(_told(event))
        except (msgspec.MsgspecError, UnicodeDecodeError, CodecError):
            continue
    return tuple(sorted(found, key=lambda one: int(one.at))[::-1][:_MAX_EVENTS])


def _told(event: _Event) -> PodEvent:
    series = event.series or _Series()
    times = (series.lastObservedTime, event.lastTimestamp, event.eventTime, event.firstTimestamp)
    at = next((one for one in times if one), None)
    who = event.reportingComponent or (event.source.component if event.source else "")
    return PodEvent(seconds_of(At(at)), event.type, event.reason, event.message, event.count or series.count, who)
