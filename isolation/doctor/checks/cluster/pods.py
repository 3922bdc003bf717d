# SPDX-License-Identifier: Apache-2.0
"""
Findings about pods that ask for shares: whom nobody counts, and which card is promised twice.

Pure. A card's load follows from the records of the pods bound there, and from nothing else.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from isolation.contract.model import FULL_CORE
from isolation.contract.names import ACK, ALLOCATION, DEFAULT_SCHEDULER, SCHEDULER, SHARED
from isolation.contract.quantity import GIB
from isolation.doctor.checks.cluster.facts import ClusterNode, PodFacts, Unavailable
from isolation.doctor.checks.device_ids import of_another_release
from isolation.doctor.checks.finding import Finding, counted, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.model import Card

_LONG_SECONDS: Final = 300.0


def check_pods(
    pods: tuple[PodFacts, ...] | Unavailable,
    nodes: tuple[ClusterNode, ...] | Unavailable,
    exempt: Iterable[str] | None,
    now: float,
) -> list[Finding]:
    """Everything about pods; with None for the exempt namespaces, another one admits, places and records them."""
    if isinstance(pods, Unavailable):
        return [unknown("cluster.pods", f"cannot list pods: {pods.why}", "use credentials that may list pods")]
    live = [one for one in pods if not one.done]
    bound = sum(bool(one.node) for one in live)
    counts = ok("cluster.pods", f"{counted(len(live), 'pod')} with shares, {bound} of them bound")
    cards = _check_overcommit(live, () if isinstance(nodes, Unavailable) else nodes)
    if exempt is None:
        return [counts, cards, _check_pending(live, now)]
    return [
        counts,
        _check_unseen(live, frozenset(exempt)),
        _check_records(live),
        cards,
        *_check_delivery(live),
        _check_strangers(live) or _check_pending(live, now),
    ]


def _some(found: Iterable[PodFacts]) -> str:
    return named(one.key for one in found)


def _check_unseen(live: Iterable[PodFacts], passed_by: frozenset[str]) -> Finding:
    check = "cluster.not_admitted"
    unseen = [one for one in live if one.asks and not one.labelled and one.namespace not in passed_by]
    if unseen:
        return problem(
            check,
            f"{_some(unseen)} requests shares but has no label {SHARED}: created while admission was unavailable",
            "create it again; if a controller created it, delete the pod",
        )
    return ok(check, "every pod that requests shares went through admission")


def _check_records(live: Iterable[PodFacts]) -> Finding:
    check = "cluster.allocations"
    unrecorded = [one for one in live if one.node and one.asks and not one.recorded]
    if unrecorded:
        return problem(
            check,
            f"{_some(unrecorded)} is bound without annotation {ALLOCATION}: its cards are unknown and not counted",
            "it was bound by another scheduler or with nodeName: delete it, its controller creates it again",
        )
    torn = [one for one in live if one.node and one.recorded and not one.slices]
    if torn:
        why = torn[0].wrong or "its allocation does not match its request"
        return problem(
            check, f"{_some(torn)}: {why}", "delete it, and find out who can change the annotation (docs/threats.md)"
        )
    return ok(check, "every bound pod has an allocation")


def _check_overcommit(live: Iterable[PodFacts], nodes: Iterable[ClusterNode]) -> Finding:
    check = "cluster.overcommit"
    taken: Counter[tuple[str, str]] = Counter()
    compute: Counter[tuple[str, str]] = Counter()
    for one in live:
        for part in one.slices if one.node else ():
            taken[one.node, part.uuid] += part.bytes
            compute[one.node, part.uuid] += part.core
    cards = {(one.name, card.uuid): card for one in nodes if one.node is not None for card in one.node.cards}
    over = [_said(place, cards[place], taken[place], compute[place]) for place in sorted(taken) if place in cards]
    over = [text for text in over if text]
    gone = sorted({f"{node} card {uuid}" for node, uuid in taken if (node, uuid) not in cards})
    if over:
        more = f" (and {len(over) - 1} more)" if len(over) > 1 else ""
        return problem(
            check, f"overcommitted: {over[0]}{more}", "delete one of the pods on it, then find out who bound it"
        )
    if gone:
        return warning(
            check,
            f"pods have allocations on cards that their node does not list: {named(gone)}",
            "the card was replaced or fell off the bus, or the node is new: delete these pods to move them",
        )
    return ok(check, f"{counted(len(taken), 'card')} in use, none overcommitted")


def _check_delivery(live: Iterable[PodFacts]) -> list[Finding]:
    """The units that kubelets say containers have; nothing where none tells. Which card it is only records say."""
    check, telling = "cluster.devices", [one for one in live if one.node and one.devices]
    if not telling:
        return []
    holders: dict[tuple[str, str], list[str]] = {}
    for one in telling:
        for device in one.devices:
            holders.setdefault((one.node, device), []).append(one.key)
    twice = sorted((node, device, keys) for (node, device), keys in holders.items() if len(keys) > 1)
    if twice:
        node, device, keys = twice[0]
        evidence = f"device {device} of {node} is assigned to {named(keys)}: that kubelet counts too few units as used"
        fix = "delete one of them; the kubelet can assign IDs twice after a pod-resources List call"
        return [warning(check, evidence, fix)]
    old = [one for one in telling if of_another_release(one.devices)]
    if old:
        fix = "drain the node, stop the kubelet, remove device-plugins/kubelet_internal_checkpoint, start the kubelet"
        return [problem(check, f"{_some(old)} has devices of another release of gpushare", fix)]
    return [ok(check, f"no device is assigned twice: {counted(len(telling), 'pod')}")]


def _said(place: tuple[str, str], card: Card, taken: int, core: int) -> str:
    """What is wrong with the card's load; empty: nothing."""
    node, uuid = place
    if taken > card.allocatable_bytes:
        return f"{node} card {uuid}: {taken / GIB:g} of {card.allocatable_bytes / GIB:g} GiB promised"
    return f"{node} card {uuid}: {core} % of compute promised" if core > FULL_CORE else ""


def _check_strangers(live: Iterable[PodFacts]) -> Finding | None:
    foreign = [one for one in _unbound(live) if one.scheduler not in {SCHEDULER, DEFAULT_SCHEDULER}]
    if not foreign:
        return None
    return problem(
        "cluster.pending",
        f"{_some(foreign)} waits for scheduler {foreign[0].scheduler}, which does not place shares",
        f"leave schedulerName empty for pods that request {ACK.memory}",
    )


def _check_pending(live: Iterable[PodFacts], now: float) -> Finding:
    check, waiting = "cluster.pending", _unbound(live)
    long = [one for one in waiting if one.created and now - one.created > _LONG_SECONDS]
    if long:
        return warning(
            check,
            f"{counted(len(long), 'pod')} pending for more than {_LONG_SECONDS / 60:.0f} minutes: {_some(long)}",
            "`kubectl describe pod` shows why; `gpushare place` shows what would help",
        )
    return ok(check, f"{counted(len(waiting), 'pod')} pending, none for long" if waiting else "no pod is pending")


def _unbound(live: Iterable[PodFacts]) -> list[PodFacts]:
    return [one for one in live if not one.node and not one.deleting]
