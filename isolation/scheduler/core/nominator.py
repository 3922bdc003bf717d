# SPDX-License-Identifier: Apache-2.0
"""
Which node kube-scheduler chose for a pod that pre-empts, out of those it was offered: the one where the victims end.

The choice itself is not told to extenders. Once all victims of one offer are ending, the room that they
leave is the pod's: who may have it is then kept by `reserved`, in memory only, since the next leader is
asked anew. Pure; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from isolation.contract.model import Placement, Pod

MOST: Final = 256
"""Pods whose offers are remembered."""
OFFER_SECONDS: Final = 30.0
"""kube-scheduler acts on an answer at once, or not at all."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node of an offer."""

    victims: frozenset[str]
    placement: Placement
    """Where the pod would be without them."""


@dataclass(frozen=True, slots=True)
class _Offer:
    pod: Pod
    options: tuple[Candidate, ...]
    until: float


class Nominator:
    """Offers by the UID of the pod they were made for."""

    def __init__(self) -> None:
        self._offers: OrderedDict[str, _Offer] = OrderedDict()
        self._wanted: dict[str, dict[str, None]] = {}
        """By victim, the pods that it was offered to."""
        self._ended: set[str] = set()

    def offer(self, pod: Pod, options: Mapping[str, Candidate], now: float) -> None:
        """What was answered to the preempt verb; a newer answer takes the place of an older one."""
        self.forget(pod.uid)
        self._offers[pod.uid] = _Offer(pod, tuple(options.values()), now + OFFER_SECONDS)
        for option in options.values():
            for victim in option.victims:
                self._wanted.setdefault(victim, {})[pod.uid] = None
        while len(self._offers) > MOST:
            self.forget(next(iter(self._offers)))

    def ending(self, uid: str, now: float) -> Iterator[tuple[Pod, Placement]]:
        """This pod is ending, or gone: the pods that were waiting for just that, and where they may go."""
        if uid not in self._wanted:
            return
        self._ended.add(uid)
        for waiting in tuple(self._wanted[uid]):
            offer = self._offers[waiting]
            chosen = next((o for o in offer.options if uid in o.victims and o.victims <= self._ended), None)
            if chosen is None:
                continue
            self.forget(waiting)
            if now < offer.until:
                yield offer.pod, chosen.placement

    def forget(self, uid: str) -> None:
        """The pod needs no room any more, or has been nominated."""
        offer = self._offers.pop(uid, None)
        if offer is None:
            return
        for victim in {one for option in offer.options for one in option.victims}:
            wanted = self._wanted[victim]
            del wanted[uid]
            if not wanted:
                del self._wanted[victim]
                self._ended.discard(victim)
