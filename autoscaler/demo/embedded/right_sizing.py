# SPDX-License-Identifier: Apache-2.0
"""
Right-sizing in the simulated cluster: what pods that may be resized use, and what the real deciders make of it.

A day of usage history passes in ten minutes, since the evidence that is asked for is days of work. Decides nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.rightsizing.histogram import DAY
from autoscaler.core.rightsizing.live import LiveReading, PodWish, find_live
from autoscaler.core.rightsizing.programs import MeasuredContainer, advance, life_of
from autoscaler.core.rightsizing.recommend import EvidencePolicy
from autoscaler.demo.embedded.pod_life import iterate_promises
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autoscaler.core.rightsizing.containers import LivePod
    from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey
    from autoscaler.demo.embedded.accounting import Accounting
    from autoscaler.demo.embedded.cluster_state import FakeClusterState
    from autoscaler.demo.embedded.pod_life import PodLife

DAY_SECONDS: Final = 600.0
"""Of the simulated clock, in which a day of usage history passes."""
MEASURE_SECONDS: Final = 10.0
_TEMPO: Final = DAY / DAY_SECONDS


class SimulatedRightSizing:
    """See the module; `lives`: by UID."""

    def __init__(self, state: FakeClusterState, lives: Mapping[str, PodLife], accounting: Accounting) -> None:
        self._state, self._lives, self._accounting = state, lives, accounting
        self._wishes: dict[str, PodWish] = {}
        self._histories: dict[ProgramKey, ProgramHistory] = {}
        self._denied: Counter[str] = Counter()
        self._told: set[str] = set()
        self._policy = EvidencePolicy()

    def add(self, uid: str, wish: PodWish) -> None:
        """A pod that may be resized."""
        self._wishes[uid] = wish

    def remove(self, uid: str) -> None:
        """It has ended."""
        self._wishes.pop(uid, None)

    def measure(self, now: float) -> None:
        """One sample of each; what is wanted beyond the promise is denied."""
        self._histories = advance(self._histories, self._uses(now), self._state.pods, now * _TEMPO)
        for live in self.live(now).values():
            saved = live.promised_bytes - live.recommended_bytes
            if live.recommended_bytes and saved > 0 and live.owner not in self._told:
                self._told.add(live.owner)
                peak, has = show_bytes(live.peak_bytes), show_bytes(live.promised_bytes)
                text = f"{show_bytes(live.recommended_bytes)} instead of {has} a replica: its peak is {peak}"
                self._accounting.record("recommend", live.owner, text)

    def live(self, now: float) -> dict[str, LivePod]:
        """For the deciders."""
        if not self._wishes:
            return {}
        reading = LiveReading(self._histories, dict(self._denied), now * _TEMPO, self._policy)
        return find_live(self._state.pods, self._wishes, reading)

    def _uses(self, now: float) -> Iterator[MeasuredContainer]:
        models = {card.uuid: card.model for node in self._state.engine.nodes.values() for card in node.cards}
        for uid in self._wishes:
            pod, life = self._state.pods[uid], self._lives[uid]
            aged = replace(pod, created=life.placed_at * _TEMPO)
            for use in iterate_promises(pod, life):
                name = life_of(uid, use.ask.container, use.part.uuid)
                wanted = int(use.asked * use.profile.memory_ratio(now - life.placed_at))
                self._denied[name] += wanted > use.promised
                yield MeasuredContainer(
                    aged,
                    use.ask.container,
                    use.part.uuid,
                    models.get(use.part.uuid, ""),
                    use.promised,
                    min(wanted, use.promised),
                    denied=self._denied[name],
                )
