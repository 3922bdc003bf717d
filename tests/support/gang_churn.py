# SPDX-License-Identifier: Apache-2.0
"""
Gangs that come to a full cluster, one after another, on the scheduler's real cache: with reservations, or by a sum.

Each gang arrives when the cards are 95 % full of other pods; four wait at most. What is admitted starts pod by pod, in
any order, mixed with pods of others who take what they find, through the same calls that kube-scheduler makes: filter,
prioritize, assume. `sum` admits as a quota does: while the free memory of all cards together is enough.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from support import builders
from support.scheduler_cache_builders import build_cache
from support.scheduler_harness import bound, pod

from isolation.contract.model import Refusal
from isolation.contract.provisioning_request import PodSet, ProvisioningRequest
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from isolation.contract.model import Pod

NODES, CARDS, SIZE = 32, 4, 15
TOTAL = NODES * CARDS * SIZE
FULL = 0.95
_WAITING = 4
_STEPS = 400
"""Rounds without an admission or an end, after which nothing happens any more."""


@dataclass
class Gang:
    """One job."""

    name: str
    pods: list[Pod]
    started: set[str] = field(default_factory=set)
    tried: bool = False

    @property
    def size(self) -> int:
        """GiB of all pods."""
        return sum(one.request.card_bytes for one in self.pods) // GIB

    @property
    def whole(self) -> bool:
        """Whether every pod runs."""
        return len(self.started) == len(self.pods)


@dataclass
class Outcome:
    """What was counted."""

    whole: int = 0
    partial: int = 0
    """Gangs of which some pods ran while others found no card."""
    stuck: int = 0
    """Gangs that never became whole, with all other pods gone."""
    refused: int = 0
    """Attempts."""
    fills: list[float] = field(default_factory=list)
    """At the first attempt for each gang."""


class Churn:
    """One run; `by_sum`: admitted by the free memory of all cards together."""

    def __init__(self, seed: int, *, by_sum: bool) -> None:
        self._draw, self._by_sum = random.Random(seed), by_sum  # noqa: S311 (a test's dice)
        self.names = [f"n{at}" for at in range(NODES)]
        self.cache = build_cache(*(builders.node(name, cards=CARDS, size=SIZE) for name in self.names))
        self._running: dict[str, Pod] = {}
        self._singles: list[str] = []
        self._made = 0
        self.now = 1000.0
        self.outcome = Outcome()

    @property
    def used(self) -> int:
        """GiB of running pods."""
        return sum(one.request.card_bytes for one in self._running.values()) // GIB

    def run(self, gangs: int) -> Outcome:
        """So many gangs, until all are over or nothing moves."""
        waiting: list[Gang] = []
        admitted: list[Gang] = []
        partial: set[str] = set()
        quiet = 0
        coming = [self._gang(at) for at in range(gangs)]
        while (coming or waiting or admitted) and quiet < _STEPS:
            self.now += 1.0
            quiet += 1
            if coming and len(waiting) < _WAITING:
                self._fill()
                waiting.append(coming.pop(0))
            for gang in list(waiting):
                if self._admit(gang, admitted):
                    waiting.remove(gang)
                    admitted.append(gang)
                    quiet = 0
            self._start(admitted)
            for gang in list(admitted):
                if gang.whole:
                    self.outcome.whole += 1
                    admitted.remove(gang)
                    self._singles += sorted(gang.started)  # from now on it may end as any other
                    quiet = 0
                elif gang.started or not self._by_sum:
                    partial.add(gang.name)
            self._end(max(1, len(self._singles) // 50))
        self.outcome.partial = len(partial)
        self.outcome.stuck = len(waiting) + len(admitted)
        return self.outcome

    def _gang(self, at: int) -> Gang:
        name, count = f"gang-{at}", self._draw.randint(2, 16)
        shapes = [self._draw.randint(1, 12) for _ in range(self._draw.randint(1, 2))]
        made = [pod(f"{name}-{i}", self._draw.choice(shapes), provisioning_request=name) for i in range(count)]
        return Gang(name, made)

    def _single(self) -> Pod:
        self._made += 1
        return pod(f"single-{self._made}", self._draw.choice((1, 1, 2, 3, 4, 6, 9)))

    def _fill(self) -> None:
        """Other pods, until so much is used; the last ones are small enough to find a card."""
        while self.used < FULL * TOTAL:
            one = self._single()
            if self._place(one) or self._place(replace(one, request=pod("", 1).request)):
                self._singles.append(one.uid)
            else:
                return  # reserved

    def _admit(self, gang: Gang, admitted: list[Gang]) -> bool:
        if not gang.tried:
            gang.tried = True
            self.outcome.fills.append(self.used / TOTAL)
        if self._by_sum:
            promised = sum(other.size for other in admitted) - sum(
                self._running[uid].request.card_bytes // GIB for other in admitted for uid in other.started
            )
            found = self.used + promised + gang.size <= TOTAL
        else:
            sets = (PodSet("t", len(gang.pods)),)
            asked = ProvisioningRequest("ml", gang.name, gang.name, self.now, sets)
            made = self.cache.reserve_gang(asked, [("t", one.request) for one in gang.pods], self.now)
            found = not isinstance(made, Refusal)
        self.outcome.refused += not found
        return found

    def _start(self, admitted: list[Gang]) -> None:
        """All pods that wait, in any order, and others who come between them."""
        queue: list[tuple[Gang | None, Pod]] = [
            (gang, one) for gang in admitted for one in gang.pods if one.uid not in gang.started
        ]
        if queue:
            queue += [(None, self._single()) for _ in range(4)]
        self._draw.shuffle(queue)
        for gang, one in queue:
            if not self._place(one):
                continue
            if gang is None:
                self._singles.append(one.uid)
            else:
                gang.started.add(one.uid)

    def _place(self, what: Pod) -> bool:
        """As kube-scheduler does it; whether it was bound."""
        fit = self.cache.filter(what, self.names, self.now).fit
        if not fit:
            return False
        points = self.cache.prioritize(what, fit, self.now)
        found = self.cache.assume(what, fit[points.index(max(points))], self.now)
        if isinstance(found, Refusal):
            return False
        self.cache.confirm(what.uid)
        self._running[what.uid] = what
        self.cache.set_pod(bound(what, found.placement, found.reservation))
        for over in self.cache.find_stale_reservations(self.now):
            self.cache.remove_reservation(over.name)
        return True

    def _end(self, count: int) -> None:
        for _ in range(min(count, len(self._singles))):
            at = self._draw.randrange(len(self._singles))
            self._singles[at], self._singles[-1] = self._singles[-1], self._singles[at]
            uid = self._singles.pop()
            del self._running[uid]
            self.cache.remove_pod(uid)
