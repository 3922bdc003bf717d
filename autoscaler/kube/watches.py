# SPDX-License-Identifier: Apache-2.0
"""
What is watched: every node and pod, reservations, disruption budgets; one object that follows them all.

Decides what is kept of each. A reservation or a budget that cannot be read is kept by name, so that nobody takes its
room or breaks it; of a kind that is not installed there is none.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec

from autoscaler.kube.annotations import Notes
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of
from isolation.contract.names import MOVED
from isolation.contract.quantity import GIB
from isolation.contract.reservation import RESERVATIONS_PATH, reservation_of
from isolation.kube.core.errors import MalformedError
from isolation.kube.core.wire import identity_of
from isolation.kube.informer import Informer
from isolation.kube.listwatch import Reflector, Selection, running
from isolation.kube.optional_kind import OptionalKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from isolation.contract.reservation import Reservation
    from isolation.kube.listwatch import Source, WatchOptions
    from isolation.kube.store import StoreView

log = logging.getLogger(__name__)
BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
_BROKEN: Final = (CodecError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class StoredReservation:
    """A stored reservation, with what its maker wrote beside it."""

    made: Reservation
    at: float
    """When it was stored."""
    moved: str = ""
    """UID of the pod that moves; empty: it is not ours."""


@dataclass(frozen=True, slots=True)
class PodBudget:
    """A disruption budget, as far as evictions go."""

    namespace: str
    name: str
    allowed: int
    """0 also while its controller has not counted yet."""
    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[Expression, ...] = ()

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Whether it counts a pod of its namespace with these labels (an empty selector counts all)."""
        return all(labels.get(key) == value for key, value in self.labels) and all(
            one.matches(labels) for one in self.expressions
        )


@dataclass(frozen=True, slots=True)
class Expression:
    """One term of a label selector."""

    key: str
    op: str
    values: frozenset[str]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """An operator that is not known covers: rather no eviction than a broken budget."""
        value = labels.get(self.key)
        if self.op == "In":
            return value in self.values
        if self.op == "NotIn":
            return value not in self.values
        return value is None if self.op == "DoesNotExist" else value is not None if self.op == "Exists" else True


class _Reservations:
    """Sink; unreadable ones are named."""

    def __init__(self) -> None:
        self._known: dict[str, StoredReservation] = {}
        self.unreadable: set[str] = set()

    def all(self) -> dict[str, StoredReservation]:
        """By name."""
        return dict(self._known)

    def put(self, raw: msgspec.Raw) -> str:
        name = identity_of(raw).name
        if not name:
            raise MalformedError("reservation has no name")
        try:
            at = At(msgspec.json.decode(raw))
            meta = at["metadata"]
            moved = meta["annotations"].texts().get(MOVED, "")
            self._known[name] = StoredReservation(
                reservation_of(at.value), seconds_of(meta["creationTimestamp"]), moved
            )
            self.unreadable.discard(name)
        except _BROKEN as exc:
            log.warning("cannot read reservation %s: %s", name, exc)
            self._known.pop(name, None)
            self.unreadable.add(name)
        return name

    def drop(self, raw: msgspec.Raw) -> None:
        self._forget(identity_of(raw).name)

    def only(self, keys: frozenset[str]) -> None:
        for name in (self._known.keys() | self.unreadable) - keys:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self.unreadable.discard(name)


class _Budgets:
    """Sink; by namespace and name."""

    def __init__(self) -> None:
        self._known: dict[str, PodBudget] = {}

    def all(self) -> tuple[PodBudget, ...]:
        """Every one."""
        return tuple(self._known.values())

    def put(self, raw: msgspec.Raw) -> str:
        who = identity_of(raw)
        key = who.uid or who.name
        if not key:
            raise MalformedError("PodDisruptionBudget has neither UID nor name")
        self._known[key] = _budget(raw, who.name)
        return key

    def drop(self, raw: msgspec.Raw) -> None:
        who = identity_of(raw)
        self._known.pop(who.uid or who.name, None)

    def only(self, keys: frozenset[str]) -> None:
        for key in self._known.keys() - keys:
            del self._known[key]


def _budget(raw: msgspec.Raw, name: str) -> PodBudget:
    namespace = ""
    try:
        at = At(msgspec.json.decode(raw))
        meta, status = at["metadata"], at["status"]
        namespace = meta["namespace"].text()
        counted = status["observedGeneration"].integer(0, 0, 1 << 62) >= meta["generation"].integer(0, 0, 1 << 62)
        allowed = status["disruptionsAllowed"].integer(0) if counted else 0
        selector = at["spec"]["selector"]
        expressions = tuple(
            Expression(item["key"].text(), item["operator"].text(), frozenset(v.text() for v in item["values"].items()))
            for item in selector["matchExpressions"].items()
        )
        return PodBudget(namespace, name, max(0, allowed), tuple(selector["matchLabels"].texts().items()), expressions)
    except _BROKEN as exc:
        log.warning(
            "cannot read PodDisruptionBudget %s: no evictions in namespace %s: %s", name, namespace or "unknown", exc
        )
        return PodBudget(namespace, name, 0)


class Sources:
    """The watched cluster, kept up to date while `following` lasts."""

    def __init__(self, source: Source, unit_bytes: int = GIB, habits: WatchOptions | None = None) -> None:
        self.notes = Notes(unit_bytes=unit_bytes)
        self.live = Informer(source, store=self.notes, options=habits)
        self.reservations, self.budgets = _Reservations(), _Budgets()
        kinds = {"nodes": self.live.nodes, "pods": self.live.pods}
        kinds["reservations"] = Reflector(OptionalKind(source), Selection(RESERVATIONS_PATH), self.reservations, habits)
        kinds["disruption budgets"] = Reflector(source, Selection(BUDGETS_PATH), self.budgets, habits)
        self.followers: Mapping[str, Reflector] = kinds

    def view(self) -> StoreView:
        """Nodes and pods of this moment."""
        return self.live.view()

    def missing(self) -> str:
        """What has not been read yet; empty when all has."""
        return ", ".join(name for name, one in self.followers.items() if not one.synced.is_set())

    def age(self) -> float | None:
        """Seconds since the server last said anything on the quietest watch; None before the first lists."""
        heard = [one.heard for one in self.followers.values()]
        known = [moment for moment in heard if moment is not None]
        return time.monotonic() - min(known) if len(known) == len(heard) else None

    def addresses(self) -> dict[str, str]:
        """Where the exporters of nodes with cards are, by node."""
        notes = self.notes.of_node
        found = {name: notes[name].address for name, node in self.notes.nodes.items() if node.cards and name in notes}
        return {name: address for name, address in found.items() if address}

    async def synced(self) -> None:
        """Wait for the first whole reading."""
        for one in self.followers.values():
            await one.synced.wait()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Self]:
        """Follow in the background of the block; what breaks a follower for good breaks the block, as itself."""
        async with running(self.followers.values()):
            yield self
