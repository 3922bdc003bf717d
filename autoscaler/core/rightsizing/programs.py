# SPDX-License-Identifier: Apache-2.0
"""
All programs of a cluster: what one round of measurements changes, and what is recommended for each.

Decides which container belongs to which program and when a life has ended. A life is a pod's: a container that starts
again in its pod goes on with it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from autoscaler.core.rightsizing.histogram import DAY
from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey, UsageReading
from autoscaler.core.rightsizing.recommend import Abstention, Bounds, EvidencePolicy, recommend, recommend_running
from isolation.contract.codec.recommendations import SERVICES, ProgramRecommendation, workload_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.model import Pod

MAX_PROGRAMS: Final = 4000
"""Of more the ones that were measured last are kept."""
_ANY: Final = 1 << 50
FORGET_SECONDS: Final = 30 * DAY
"""A program that was not measured for so long is forgotten."""


@dataclass(frozen=True, slots=True)
class MeasuredContainer:
    """One container of a pod on one card, as it was measured."""

    pod: Pod
    container: str
    uuid: str
    model: str
    promised_bytes: int
    used_bytes: int
    peak_bytes: int | None = None
    denied: int = 0
    compute_seconds: float | None = None

    @property
    def key(self) -> ProgramKey:
        """The program."""
        owner, revision = workload_of(self.pod.request.owner, self.pod.labels, self.pod.name)
        return ProgramKey(self.pod.namespace, owner, self.container, self.model, revision)

    def reading(self, at: float) -> UsageReading:
        """For the program's history."""
        kind = self.key.owner.partition("/")[0]
        return UsageReading(
            life_of(self.pod.uid, self.container, self.uuid),
            at,
            min(self.pod.created or at, at),
            self.promised_bytes,
            self.used_bytes,
            self.peak_bytes,
            self.denied,
            self.compute_seconds,
            kind not in SERVICES,
        )


def life_of(uid: str, container: str, uuid: str) -> str:
    """Identity of a life."""
    return f"{uid}/{container}/{uuid}"


def advance(
    histories: Mapping[ProgramKey, ProgramHistory],
    uses: Iterable[MeasuredContainer],
    pods: Mapping[str, Pod],
    at: float,
) -> dict[ProgramKey, ProgramHistory]:
    """
    The histories with one round of measurements.

    `pods`: by UID, those that exist, measured or not; a life whose pod is gone has ended.
    """
    found = {key: history for key, history in histories.items() if at - history.seen < FORGET_SECONDS}
    for key, history in found.items():
        ended = [name for name in history.running if name.partition("/")[0] not in pods]
        found[key] = reduce(ProgramHistory.end, ended, history)
    for use in uses:
        key = use.key
        found[key] = found.get(key, ProgramHistory()).record(use.reading(at))
    if len(found) > MAX_PROGRAMS:
        latest = sorted(found, key=lambda key: (-found[key].seen, key))[:MAX_PROGRAMS]
        found = {key: found[key] for key in latest}
    return found


def recommend_all(
    histories: Mapping[ProgramKey, ProgramHistory], cards: Mapping[ProgramKey, int], at: float, policy: EvidencePolicy
) -> list[ProgramRecommendation]:
    """For every program that runs, and others of which new lives can be sized; `cards`: of one of its pods."""
    return [
        shown
        for key, history in sorted(histories.items())
        if (shown := _recommend(key, history, cards.get(key, 1), at, policy)).replicas or shown.next_bytes
    ]


def _recommend(
    key: ProgramKey, history: ProgramHistory, cards: int, at: float, policy: EvidencePolicy
) -> ProgramRecommendation:
    running = list(history.running.values())
    known = running or list(history.ended)
    promised = max((life.promised_bytes for life in known), default=0)
    peak = max((life.peak_bytes for life in history.lives()), default=0)
    # a new life's bounds are its own: what it asks for is not known here
    upcoming = recommend(history, at, policy, Bounds(promised, most_bytes=_ANY))
    answers = [recommend_running(history, life, at, policy, Bounds(life.promised_bytes)) for life in running]
    advised = [answer for answer in answers if not isinstance(answer, Abstention)]
    refused = [answer for answer in answers if isinstance(answer, Abstention)]
    best = max(advised, key=lambda answer: answer.memory_bytes) if advised else upcoming
    if isinstance(best, Abstention):
        best = refused[0] if refused else best
        memory, core, why = 0, 0, best.why.value
    else:
        memory, core, why = min(best.memory_bytes, promised), best.core or 0, ""
    return ProgramRecommendation(
        namespace=key.namespace,
        owner=key.owner,
        container=key.container,
        model=key.model,
        revision=key.revision,
        replicas=len(running),
        cards=cards,
        promised_bytes=promised,
        used_bytes=max((life.used_bytes for life in running), default=0),
        peak_bytes=peak,
        memory_bytes=memory,
        next_bytes=0 if isinstance(upcoming, Abstention) else upcoming.memory_bytes,
        core=core,
        abstained=why,
        reason=best.reason,
    )
