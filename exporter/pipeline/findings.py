# SPDX-License-Identifier: Apache-2.0
"""
What goes against the promises on a node in one sample.

Pure. Memory over the limit is what NVML measures. What the container's own library says (denied allocations,
who has a slot in the region) is labelled so: a tenant may write there what it likes, about itself only. A
process without a claim is wrong where somebody hands the cards out: on a Kubernetes node, or on a card of which
something is promised; a display server and an MPS server of the host's are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exporter.pipeline.incidents import MOST_PIDS, BreachKind, Finding
from exporter.pipeline.process_binding import MPS_SERVER, Stay, Verdict, View
from isolation.contract.abi import Breach as Reported
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from exporter.pipeline.allocations import Claim, Key
    from exporter.pipeline.attribution import Attribution
    from exporter.pipeline.breaches import Excess, Track
    from isolation.contract.reading import ContainerReading

DENIED_SECONDS: Final = 60.0
"""Denials that come again within this time are one breach."""
MOST_TEXT: Final = 200


def findings(found: Attribution, tracks: Mapping[Key, Track], now: float) -> Iterator[Finding]:
    """Everything that is wrong now; each once per owner and card."""
    of: dict[Key, list[Stay]] = {}
    for stay in found.stays:
        if stay.claim is not None:
            of.setdefault(stay.claim.key, []).append(stay)
    for claim, one in zip(found.placed, found.reading.containers, strict=True):
        track = tracks[claim.key]
        yield from _over(claim, one, track.excess)
        yield from _denied(claim, track, now)
        if found.views.get(claim.uuid) is View.CLEAR:
            yield from _uninstrumented(claim, of.get(claim.key, ()), slotted=track.slotted)
        if claim.region is not None and claim.region.reading is None:
            text = f"cannot read the region of the container's isolation library: {claim.region.error}"
            yield _finding(BreachKind.UNREADABLE_REGION, claim, "library", text)
        if claim.limits_error:
            text = f"the isolation library does not have the promised limits: {claim.limits_error}"
            yield _finding(BreachKind.WRONG_LIMITS, claim, "limits", text)
    yield from _unallocated(found)


def slots(claim: Claim) -> tuple[int, ...] | None:
    """Pids, in the container's own counting, of living processes in its region; None: it cannot be read."""
    if claim.region is None or claim.region.reading is None:
        return None
    return tuple(slot.pid for slot in claim.region.reading.slots if not slot.ghost)


def _finding(kind: BreachKind, claim: Claim, source: str, text: str, **more: object) -> Finding:
    fields: dict[str, object] = {
        "kind": kind,
        "uuid": claim.uuid,
        "card": claim.index,
        "namespace": claim.namespace,
        "pod": claim.pod,
        "container": claim.container,
        "promise": claim.promise,
        "source": source,
        "text": text[:MOST_TEXT],
        "allocated_bytes": claim.bytes,
    }
    return Finding(**(fields | more))  # type: ignore[arg-type] # the fields' types are checked where they are made


def _over(claim: Claim, one: ContainerReading, excess: Excess) -> Iterator[Finding]:
    if claim.bytes is None or not (excess.over or excess.spiked):
        return
    spike = excess.spiked and not excess.over
    most = excess.spike_bytes if spike else one.used_bytes
    verb = "used" if spike else "uses"
    amount = "more memory" if most is None else show_bytes(most)
    text = f"the container {verb} {amount} of the card; promised: {show_bytes(claim.bytes)}"
    yield _finding(BreachKind.OVER_LIMIT, claim, "accounting" if spike else "nvml", text, used_bytes=most)


def _denied(claim: Claim, track: Track, now: float) -> Iterator[Finding]:
    if track.denied_at is None or now - track.denied_at > DENIED_SECONDS:
        return
    records = claim.region.breaches if claim.region else ()
    asked = max((one.requested for one in records if one.kind is Reported.DENIED), default=None)
    wanted = "" if asked is None else f", the largest of {show_bytes(asked)}"
    text = f"the isolation library denied allocations beyond the promise{wanted}"
    yield _finding(BreachKind.DENIED, claim, "library", text, times=track.fresh_denied)


def _uninstrumented(claim: Claim, mine: Sequence[Stay], *, slotted: bool) -> Iterator[Finding]:
    """Processes on the card that have no slot in their container's region."""
    booked = slots(claim)
    if booked is None or not mine:
        return
    if not booked and not slotted:
        text = f"{_processes(len(mine))} on the card; none was ever registered with the isolation library"
        yield _measured(BreachKind.MISSING_LIBRARY, claim, mine, text)
        return
    pids = {stay.owner.namespace_pid for stay in mine if stay.owner is not None}
    if None in pids:
        strange = mine[: max(0, len(mine) - len(booked))]
        named = False
    else:
        strange = [stay for stay in mine if stay.owner is not None and stay.owner.namespace_pid not in booked]
        named = True
    if strange:
        text = f"{_processes(len(strange))} on the card not registered with the isolation library"
        yield _measured(BreachKind.UNINSTRUMENTED, claim, strange if named else (), text)


def _measured(kind: BreachKind, claim: Claim, stays: Iterable[Stay], text: str) -> Finding:
    found = tuple(stays)
    return _finding(kind, claim, "nvml", text, pids=_pids(found), used_bytes=_bytes(found))


def _unallocated(found: Attribution) -> Iterator[Finding]:
    """Processes on a card of which nothing was promised to them, by container or, on the host, by name."""
    promised = {claim.uuid for claim in found.placed}
    groups: dict[tuple[str, ...], list[Stay]] = {}
    for stay in found.stays:
        owner = stay.owner
        if stay.verdict is not Verdict.NOBODY or owner is None:
            continue
        if (owner.namespace, owner.pod, owner.container) in found.claims.unplaced:
            continue
        if owner.in_pod:
            names = (owner.namespace, owner.pod or owner.pod_uid, owner.container, "")
        elif stay.process.kind == "graphics" or owner.name.startswith(MPS_SERVER):
            continue
        elif found.claims.kubernetes or stay.uuid in promised:
            names = ("", "", "", owner.name)
        else:
            continue
        groups.setdefault((stay.uuid, *names), []).append(stay)
    for (uuid, namespace, pod, container, process), stays in groups.items():
        who = "a host process" if process else "a container"
        yield Finding(
            kind=BreachKind.UNALLOCATED,
            uuid=uuid,
            card=stays[0].index,
            namespace=namespace,
            pod=pod,
            container=container,
            promise="",
            source="nvml",
            text=f"{who} without a promise uses the card: {_processes(len(stays))}",
            process=process,
            pids=_pids(stays),
            used_bytes=_bytes(stays),
        )


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _pids(stays: Iterable[Stay]) -> tuple[int, ...]:
    return tuple(sorted(stay.process.pid for stay in stays))[:MOST_PIDS]


def _bytes(stays: Sequence[Stay]) -> int | None:
    known = [stay.process.bytes for stay in stays if stay.process.bytes is not None]
    return sum(known) if stays and len(known) == len(stays) else None
