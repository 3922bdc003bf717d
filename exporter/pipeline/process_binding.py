# SPDX-License-Identifier: Apache-2.0
"""
Which claim explains which process of a card, and whether that can be told at all.

Pure. A process belongs to the container whose control group it is in. One that no claim on its card explains
is nobody's, but only if every source that could have named it was read: else its owner is unknown, which is
not the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from exporter.pipeline.allocations import Claim, Claims, Key
    from exporter.pipeline.owners import Owner
    from exporter.pipeline.snapshot import CardFacts, CardProcess, Snapshot

MPS_SERVER: Final = "nvidia-cuda-mps"
"""What the kernel keeps (15 characters) of the name nvidia-cuda-mps-server."""
NOISE_BYTES: Final = 64 * MIB
"""Less than this on a card without processes is the driver's, nobody's hidden use."""


class Verdict(StrEnum):
    """Who explains a process."""

    CLAIM = "claim"
    BETWEEN = "between"
    """One of several containers of its pod: nobody can name which."""
    NOBODY = "nobody"
    UNKNOWN = "unknown"
    """A source that could have told was not read."""


class View(StrEnum):
    """How well a card's processes are seen."""

    CLEAR = "clear"
    FAILED = "failed"
    """A source failed: nothing is told of containers here."""
    NO_HOST_PIDS = "no-host-pids"
    MPS = "mps"
    """Clients' memory stands under their server."""
    SANDBOX = "sandbox"
    """No process on a card that is used and that one container has whole: they run under another kernel."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One process on one card."""

    uuid: str
    index: int
    process: CardProcess
    owner: Owner | None
    """None: the process is gone."""
    verdict: Verdict
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be told apart on one card."""

    view: View
    stays: tuple[Stay, ...] = ()
    torn: frozenset[Key] = frozenset()
    """Claims of which it is not known which processes are theirs."""
    of: Mapping[Key, Sequence[Stay]] = field(default_factory=dict)
    """Processes by the claim that explains them."""
    busy: Mapping[Key, float] | None = None
    """Compute by claim; who is missing did nothing. None: the card cannot tell."""
    whose: Mapping[int, Key | None] = field(default_factory=dict)
    """The claim of each process that computed; None: nobody's. Who is missing cannot be told yet."""

    def part(self, parts: Mapping[int, float] | None, claim: Claim) -> float | None:
        """What a claim's processes do of something, at most 1; None: the card cannot tell."""
        found = _by_claim(parts, self.whose)
        return None if found is None else min(1.0, found.get(claim.key, 0.0))


def used_bytes(card: CardFacts) -> int | None:
    """Total less free."""
    return None if card.free_bytes is None or card.lost else card.total_bytes - card.free_bytes


def look(
    snapshot: Snapshot,
    card: CardFacts,
    claims: Sequence[Claim],
    book: Claims,
    everybody: Mapping[int, Owner] | None,
    *,
    gone: Mapping[int, Owner],
) -> Sight:
    """
    Who is on a card. `claims` are those of the book that are on this card.

    `everybody` is who is known by pid; `gone`, who was until a moment ago and has computed since the last look.
    """
    if snapshot.kernel.value is None or card.lost or card.processes is None:
        return Sight(View.FAILED)
    if everybody is None:
        return Sight(View.NO_HOST_PIDS)
    index = _Index(claims)
    stays: list[Stay] = []
    torn: set[Key] = set()
    of: dict[Key, list[Stay]] = {}
    for process in card.processes:
        owner = everybody.get(process.pid)
        mine = index.explain(owner) if owner else ()
        verdict = _verdict(snapshot, owner, mine, book, index)
        stay = Stay(card.uuid, card.index, process, owner, verdict, mine[0] if verdict is Verdict.CLAIM else None)
        stays.append(stay)
        if stay.claim is not None:
            of.setdefault(stay.claim.key, []).append(stay)
        elif verdict is Verdict.BETWEEN:
            torn.update(one.key for one in mine)
        elif verdict is Verdict.UNKNOWN and owner is not None and owner.in_pod:
            torn.update(index.nameless)
    view = View.CLEAR
    if _behind_mps(stays):
        view = View.MPS
    elif not stays and _hidden(card, claims):
        view = View.SANDBOX
    whose = _whose(card, index, {**gone, **everybody})
    return Sight(view, tuple(stays), frozenset(torn), of, _by_claim(card.busy, whose), whose)


def _whose(card: CardFacts, index: _Index, everybody: Mapping[int, Owner]) -> dict[int, Key | None]:
    found: dict[int, Key | None] = {}
    for pid in {*(card.busy or ()), *(card.compute_seconds or ())}:
        if (owner := everybody.get(pid)) is not None:
            mine = index.explain(owner)
            found[pid] = mine[0].key if len(mine) == 1 else None
    return found


def _by_claim(parts: Mapping[int, float] | None, whose: Mapping[int, Key | None]) -> dict[Key, float] | None:
    """What processes do, by claim; None stays None."""
    if parts is None:
        return None
    found: dict[Key, float] = {}
    for pid, part in parts.items():
        if (key := whose.get(pid)) is not None:
            found[key] = found.get(key, 0.0) + part
    return found


class _Index:
    """The claims on one card, found in one step."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self._by_hold = {one.hold: one for one in reversed(claims) if one.hold}
        self._by_names: dict[tuple[str, str, str], list[Claim]] = {}
        self._by_uid: dict[str, list[Claim]] = {}
        self.nameless = tuple(one.key for one in claims if not one.hold and not one.pod_uid)
        """Claims of pods whose UID is not known."""
        for one in claims:
            if not one.hold:
                self._by_names.setdefault(one.names, []).append(one)
            if one.pod_uid:
                self._by_uid.setdefault(one.pod_uid, []).append(one)

    def explain(self, owner: Owner) -> tuple[Claim, ...]:
        """The claims that may explain a process: none, one, or those between which nobody can decide."""
        if not owner.in_pod:
            mine = self._by_hold.get(owner.hold) if owner.hold else None
            return () if mine is None else (mine,)
        if not owner.named:
            return tuple(self._by_uid.get(owner.pod_uid, ()))
        named = self._by_names.get((owner.namespace, owner.pod, owner.container), ())
        exact = next((one for one in named if one.pod_uid == owner.pod_uid), None)
        loose = next((one for one in named if not one.pod_uid), None)
        found = exact or loose
        return () if found is None else (found,)


def _verdict(snapshot: Snapshot, owner: Owner | None, mine: Sequence[Claim], book: Claims, index: _Index) -> Verdict:
    if mine:
        return Verdict.CLAIM if len(mine) == 1 else Verdict.BETWEEN
    if not snapshot.promises.ok:
        return Verdict.UNKNOWN
    if owner is None or not owner.in_pod:
        return Verdict.NOBODY
    if snapshot.kubelet is not None and not snapshot.kubelet.ok:
        return Verdict.UNKNOWN
    if (owner.namespace, owner.pod) in book.unanswered or (book.unanswered and not owner.pod):
        return Verdict.UNKNOWN
    return Verdict.NOBODY if owner.named or not index.nameless else Verdict.UNKNOWN


def _hidden(card: CardFacts, claims: Sequence[Claim]) -> bool:
    """Whether somebody uses a card on which no process is seen, while one container has all of it."""
    used = used_bytes(card)
    if used is None or card.reserved_bytes is None or not (len(claims) == 1 and claims[0].exclusive):
        return False
    return used - card.reserved_bytes > max(NOISE_BYTES, card.total_bytes // 100)


def _behind_mps(stays: Sequence[Stay]) -> bool:
    """
    Whether clients' memory stands under an MPS server.

    A name is believed of host processes only: a tenant that calls itself so must not blind the card. A
    server within a container serves that container; one whose clients NVML lists hides nothing.
    """
    clients = [stay for stay in stays if stay.process.kind == "mps"]
    if clients:
        return any(stay.process.bytes is None for stay in clients)
    return any(_is_server(stay) for stay in stays)


def _is_server(stay: Stay) -> bool:
    owner, held = stay.owner, stay.process.bytes
    if owner is None or owner.in_pod or owner.hold or not owner.name.startswith(MPS_SERVER):
        return False
    return held is None or held > NOISE_BYTES
