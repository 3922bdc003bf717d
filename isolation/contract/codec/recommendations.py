# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler recommends for each program, as text in ConfigMap `names.RIGHT_SIZING`.

    {"version": 1, "at": t, "applied": true, "programs": [{"namespace": "team", "owner": "Deployment/web",
     "container": "main", "model": "Tesla-T4", "revision": "7c9f", "replicas": 3, "cards": 1,
     "promised": bytes, "used": bytes, "peak": bytes, "memory": bytes, "next": bytes, "core": 30,
     "abstained": "few_lives", "reason": "..."}]}

`memory` is for lives in progress and for people, `next` for the next life; 0: no recommendation. `applied`: whether
admission may act on them (no dry run). Pure. An entry that is out of range is not used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.cursor import CodecError, decoded, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.codec.cursor import At

    Program = tuple[str, str, str]

KEY: Final = "recommendations.json"
"""Of the ConfigMap's data."""
VERSION: Final = 1
MAX_PROGRAMS: Final = 2000
MAX_TEXT: Final = 400_000
_LARGEST: Final = 1 << 50
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class ProgramRecommendation:
    """For one container of one workload on one card model; amounts in bytes of one card."""

    namespace: str
    owner: str
    """Kind and name, e.g. Deployment/web."""
    container: str
    model: str
    """Of the cards that it was measured on."""
    revision: str = ""
    """Of the pod template; empty: not known."""
    replicas: int = 0
    """Containers that run now, for each of its cards."""
    cards: int = 1
    """Over which a pod's memory is spread."""
    promised_bytes: int = 0
    used_bytes: int = 0
    """By the replica that uses most."""
    peak_bytes: int = 0
    """The largest that was seen."""
    memory_bytes: int = 0
    """What a running one should have; 0: no recommendation."""
    next_bytes: int = 0
    """What a new one should have; 0: no recommendation."""
    core: int = 0
    """Percent of a card's compute; 0: not known."""
    abstained: str = ""
    """Why there is no recommendation, as a word of a closed set; empty: there is one."""
    reason: str = ""
    """For people."""

    @property
    def freed_bytes(self) -> int:
        """What would come back, over all replicas."""
        return self.replicas * max(0, self.promised_bytes - self.memory_bytes) if self.memory_bytes else 0


@dataclass(frozen=True, slots=True)
class Recommendations:
    """All that are published."""

    programs: tuple[ProgramRecommendation, ...] = ()
    at: float = 0.0
    """When, in seconds since the epoch."""
    applied: bool = False
    """Whether admission may act on them."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """Recommendations for new containers, in bytes of a card, by namespace, workload and container."""

    by_program: Mapping[Program, tuple[ProgramRecommendation, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, programs: Iterable[ProgramRecommendation]) -> Recommended:
        """Of those that say something about new containers."""
        found: dict[Program, tuple[ProgramRecommendation, ...]] = {}
        for one in programs:
            if one.next_bytes:
                key = one.namespace, one.owner, one.container
                found[key] = (*found.get(key, ()), one)
        return cls(found)

    def for_container(self, key: Program, revision: str) -> ProgramRecommendation | None:
        """The largest over all card models, since the card is not chosen yet; of this revision alone."""
        fitting = [one for one in self.by_program.get(key, ()) if one.revision == revision]
        return max(fitting, key=lambda one: one.next_bytes, default=None)


def encode_recommendations(programs: Iterable[ProgramRecommendation], at: float, *, applied: bool = False) -> str:
    """The text; programs beyond what it holds are left out, those that would free least first."""
    shown: list[dict[str, Any]] = []
    size = 0
    for one in sorted(programs, key=lambda one: (-one.freed_bytes, one.namespace, one.owner, one.container)):
        entry = {
            "namespace": one.namespace,
            "owner": one.owner,
            "container": one.container,
            "model": one.model,
            "revision": one.revision,
            "replicas": one.replicas,
            "cards": one.cards,
            "promised": one.promised_bytes,
            "used": one.used_bytes,
            "peak": one.peak_bytes,
            "memory": one.memory_bytes,
            "next": one.next_bytes,
            "core": one.core,
            "abstained": one.abstained,
            "reason": one.reason[:_LONGEST],
        }
        size += len(json.dumps(entry)) + 2
        if size > MAX_TEXT - 100 or len(shown) == MAX_PROGRAMS:
            break
        shown.append(entry)
    return json.dumps({"version": VERSION, "at": round(at, 3), "applied": applied, "programs": shown})


def decode_recommendations(text: str) -> Recommendations:
    """All of them; CodecError for a text that is none. An entry that is out of range is left out."""
    if len(text) > MAX_TEXT:
        raise CodecError((), f"{len(text)} characters: the maximum is {MAX_TEXT}")
    at = decoded(text)
    if at["version"].integer(0) != VERSION:
        raise at["version"].wrong(f"unsupported version {show(at['version'].value)}; expected {VERSION}")
    items = at["programs"].items()
    if len(items) > MAX_PROGRAMS:
        raise at["programs"].wrong(f"{len(items)} programs: the maximum is {MAX_PROGRAMS}")
    found = []
    for item in items:
        try:
            found.append(_program(item))
        except CodecError:
            continue
    moment = at["at"].value
    when = float(moment) if isinstance(moment, int | float) and 0 <= moment < _LARGEST else 0.0
    return Recommendations(tuple(found), when, at["applied"].value is True)


def _program(at: At) -> ProgramRecommendation:
    return ProgramRecommendation(
        namespace=at["namespace"].label_name(),
        owner=at["owner"].text()[:_LONGEST],
        container=at["container"].text()[:_LONGEST],
        model=at["model"].text()[:_LONGEST],
        revision=at["revision"].text()[:_LONGEST],
        replicas=at["replicas"].integer(0, 0, 1_000_000),
        cards=at["cards"].integer(1, 1, 64),
        promised_bytes=at["promised"].integer(0, 0, _LARGEST),
        used_bytes=at["used"].integer(0, 0, _LARGEST),
        peak_bytes=at["peak"].integer(0, 0, _LARGEST),
        memory_bytes=at["memory"].integer(0, 0, _LARGEST),
        next_bytes=at["next"].integer(0, 0, _LARGEST),
        core=at["core"].integer(0, 0, 100),
        abstained=at["abstained"].text()[:_LONGEST],
        reason=at["reason"].text()[:_LONGEST],
    )


def workload_of(owner: str, labels: Mapping[str, str] | None, pod: str = "") -> tuple[str, str]:
    """
    The workload behind a pod's controller, as `Kind/name`, and the revision of its template.

    `owner`: as `codec.request.owner_of` writes it. A ReplicaSet of a Deployment and a Job of a CronJob have the name of
    what made them, with a hash or a time; a pod without a controller is its own workload.
    """
    labels = labels or {}
    parts = owner.split("/")
    if len(parts) != _OWNER_PARTS:
        return f"Pod/{pod}", ""
    kind, _, name = parts
    template = labels.get("pod-template-hash", "")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return f"Deployment/{name.removesuffix(f'-{template}')}", template
    head, dash, tail = name.rpartition("-")
    if kind == "Job" and dash and len(tail) == _MINUTES and tail.isdecimal():
        return f"CronJob/{head}", ""
    return f"{kind}/{name}", labels.get("controller-revision-hash", "")


_OWNER_PARTS: Final = 3
_MINUTES: Final = 8
"""Digits of the minutes since the epoch at the end of the names of a CronJob's Jobs."""
SERVICES: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"})
"""Kinds of workloads whose pods do not end by themselves."""
