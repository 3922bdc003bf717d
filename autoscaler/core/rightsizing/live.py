# SPDX-License-Identifier: Apache-2.0
"""
Containers of running pods that may be resized, with what is recommended for each and what it uses.

Decides which pods those are: those whose owner allows it, whose record can change in place, and of whose containers
enough is known. Also what a pod would request that takes the place of one that moves. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autoscaler.core.rightsizing.containers import LivePod
from autoscaler.core.rightsizing.programs import life_of
from autoscaler.core.rightsizing.recommend import Abstention, Bounds, recommend_running
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.recommendations import workload_of
from isolation.contract.codec.resize import ResizeReason, decode_status, reserved_units
from isolation.contract.right_size import RightSize, sized_units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autoscaler.core.rightsizing.history import Life, ProgramHistory, ProgramKey
    from autoscaler.core.rightsizing.recommend import EvidencePolicy
    from isolation.contract.codec.recommendations import Recommended
    from isolation.contract.model import CardAllocation, Pod, Request
    from isolation.contract.right_size import RightSizeWish

    Denied = Mapping[str, int]
    """Requests denied since the container started, by life (`programs.life_of`); not measured is absent."""


@dataclass(frozen=True, slots=True)
class PodWish:
    """A pod to which recommendations are applied: when another one is made, or while it runs too."""

    bounds: RightSizeWish
    restarts: int = 0
    """Of all its containers."""


@dataclass(frozen=True, slots=True)
class LiveReading:
    """What pods that may be resized are judged by."""

    histories: Mapping[ProgramKey, ProgramHistory]
    denied: Denied
    at: float
    policy: EvidencePolicy


def find_live(pods: Mapping[str, Pod], wishes: Mapping[str, PodWish], reading: LiveReading) -> dict[str, LivePod]:
    """By `LivePod.key`; `pods` and `wishes` by UID."""
    lives = {name: (history, life) for history in reading.histories.values() for name, life in history.running.items()}
    found = (
        live
        for uid, wish in wishes.items()
        if wish.bounds.mode is RightSize.LIVE and (pod := pods.get(uid)) is not None and _is_resizable(pod)
        for live in _containers(pod, wish, lives, reading)
    )
    return {live.key: live for live in found}


def _is_resizable(pod: Pod) -> bool:
    """Not what has no shares, or ends; of init containers nobody knows when they run again."""
    shares = pod.request.shared and pod.placement is not None and bool(pod.placement.slices)
    return shares and not pod.deleting and not any(ask.init for ask in pod.request.asks)


def find_successors(
    pods: Mapping[str, Pod], wishes: Mapping[str, PodWish], recommended: Recommended, unit_bytes: int
) -> dict[str, Request]:
    """By UID, what admission would make of the request of a pod's successor, where that is less."""
    found = {}
    for uid, wish in wishes.items():
        pod = pods.get(uid)
        if pod is not None and _is_resizable(pod):
            request = _sized(pod, wish.bounds, recommended, unit_bytes)
            if request.card_bytes < pod.request.card_bytes:
                found[uid] = request
    return found


def _sized(pod: Pod, wish: RightSizeWish, recommended: Recommended, unit: int) -> Request:
    owner, revision = workload_of(pod.request.owner, pod.labels, pod.name)
    cards, asks = max(1, pod.request.cards), []
    for ask in pod.request.asks:
        one = recommended.for_container((pod.namespace, owner, ask.container), revision)
        units = ask.bytes // unit
        asks.append(
            ask if one is None else replace(ask, bytes=sized_units(units, cards, one.next_bytes, wish, unit) * unit)
        )
    less = sum(ask.bytes for ask in pod.request.asks) - sum(ask.bytes for ask in asks)
    return replace(pod.request, card_bytes=pod.request.card_bytes - less // cards, asks=tuple(asks))


def _containers(
    pod: Pod, wish: PodWish, lives: Mapping[str, tuple[ProgramHistory, Life]], reading: LiveReading
) -> Iterator[LivePod]:
    by_container: dict[str, list[CardAllocation]] = {}
    for hold in pod.holds:
        by_container.setdefault(hold.container, []).append(hold)
    cards, unit = max(1, pod.request.cards), reading.policy.unit_bytes
    together = sum(max(hold.bytes for hold in holds) for holds in by_container.values())
    owner, _ = workload_of(pod.request.owner, pod.labels, pod.name)
    for container, holds in by_container.items():
        names = [life_of(pod.uid, container, hold.uuid) for hold in holds]
        known = [lives[name] for name in names if name in lives]
        denied = [reading.denied[name] for name in names if name in reading.denied]
        asked = sum(ask.bytes for ask in pod.request.asks if ask.container == container) // cards
        yield LivePod(
            uid=pod.uid,
            container=container,
            owner=f"{pod.namespace}/{owner}",
            promised_bytes=max(hold.bytes for hold in holds),
            # of a card on which it was not measured nothing is known
            recommended_bytes=_recommend(known, asked, wish.bounds, reading) if len(known) == len(holds) else 0,
            pod_bytes=together,
            asked_bytes=asked,
            node=pod.placement.node if pod.placement is not None else "",
            cards=cards,
            reserved_bytes=reserved_units(pod.wanted_resize) * unit // cards,
            resized=bool(pod.wanted_resize),
            pending=bool(pod.resize_status),
            deferred=_is_deferred(pod.resize_status),
            used_bytes=max((life.used_bytes for _, life in known), default=0),
            peak_bytes=max((life.peak_bytes for _, life in known), default=0),
            denied=sum(denied) if denied else None,
            restarts=wish.restarts,
        )


def _is_deferred(status: str) -> bool:
    try:
        return bool(status) and decode_status(status).reason is ResizeReason.DEFERRED
    except CodecError:
        return False


def _recommend(
    known: Iterable[tuple[ProgramHistory, Life]], asked: int, wish: RightSizeWish, reading: LiveReading
) -> int:
    """The most over its cards, within the owner's bounds; 0: of one there is no recommendation."""
    unit = reading.policy.unit_bytes
    most = min(asked, wish.most_units * unit) if wish.most_units else asked
    bounds = Bounds(asked, wish.least_units * unit, most)
    answers = [recommend_running(history, life, reading.at, reading.policy, bounds) for history, life in known]
    amounts = [0 if isinstance(answer, Abstention) else answer.memory_bytes for answer in answers]
    return max(amounts) if amounts and all(amounts) else 0
