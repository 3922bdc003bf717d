# SPDX-License-Identifier: Apache-2.0
"""
The embedded cluster as a caller sees it: a fleet, a workload, and a clock that the caller moves.

Published for `gpushare up`; everything behind it is `world` (what happens), `reading` (what is
seen of it) and the autoscaler's own loop, the same one that runs on Kubernetes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from autoscaler.core.decide import decide
from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.limits import Limits
from autoscaler.core.plan import list_names
from autoscaler.core.reconcile import reconcile
from autoscaler.core.scale_up import shorten
from autoscaler.core.state import AutoscalerState
from autoscaler.demo.embedded.fake_cluster import World
from autoscaler.demo.embedded.readings import Viewer
from autoscaler.demo.embedded.usage import used_byte_seconds
from isolation.contract.reading import Frame, PendingReading

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from autoscaler.core.plan import Plan
    from autoscaler.core.reconcile import Decider
    from autoscaler.demo.embedded.node_pools import Fleet
    from autoscaler.demo.embedded.workload import Arrival
    from isolation.contract.model import Pod


class Embedded:
    """A simulated cluster and its autoscaler, advanced by the caller; no clock and no thread of its own."""

    def __init__(
        self,
        fleet: Fleet,
        workload: Iterable[Arrival],
        *,
        seed: int,
        limits: Limits | None = None,
        policy: str = "potential",
        decider: Decider = decide,
        done: Callable[[Plan], None] = lambda _plan: None,
    ) -> None:
        # a trace names no controllers: each of its pods stands for a replica that may move
        self.limits = limits or Limits(min_replicas=1)
        self.world = World(fleet, workload, seed=seed, policy=policy)
        self.memory = AutoscalerState()
        self._decider, self._done = decider, done
        self._viewer = Viewer(self.world)
        self._turning: Coroutine[Any, Any, tuple[Plan, AutoscalerState]] | None = None
        self._told: set[str] = set()
        self.world.agenda.after(self.limits.scan_interval_seconds, self._turn)

    @property
    def now(self) -> float:
        """Seconds of the fleet's clock."""
        return self.world.agenda.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` of the fleet's time pass."""
        self.world.agenda.run_until(self.now + seconds)

    def frame(self) -> Frame:
        """What a person is shown now."""
        return Frame(
            at=self.now,
            nodes=self._viewer.nodes(),
            pools=self._viewer.pools(),
            waiting=tuple(self._waiting(pod) for pod in self.world.scheduler.pending),
            events=self.world.ledger.latest,
            counts=self.world.ledger.counts,
            phantoms=self._phantoms(),
        )

    def summary(self) -> Mapping[str, int | float]:
        """Totals since the start, and how things stand."""
        pods, lives = self.world.book.pods, self.world.lives
        used = sum(used_byte_seconds(pod, lives[uid], self.now) for uid, pod in pods.items())
        waiting = self.world.scheduler.pending
        return {
            **self.world.ledger.summary(used),
            "pods_running": len(pods) - len(waiting),
            "pods_waiting": len(waiting),
            "pending_fragmented_pods": self._phantoms(),
            "unserved_pods": self._unserved(),
            "nodes": len(self.world.book.on),
            "seconds": self.now,
        }

    def _turn(self) -> None:
        """One turn of the loop begins, unless the last one has not ended."""
        self.world.agenda.after(self.limits.scan_interval_seconds, self._turn)
        # with a settle time longer than the period a turn may still wait: turns never overlap
        if self._turning is None:
            self._turning = reconcile(self.world, self.limits, self.memory, self._decider)
            self._go_on(self._turning)

    def _go_on(self, turning: Coroutine[Any, Any, tuple[Plan, AutoscalerState]]) -> None:
        """Run a turn to its next wait, which takes the fleet's time."""
        try:
            seconds = turning.send(None)
        except StopIteration as end:
            plan, self.memory = end.value
            self._done(plan)
            self._turning = None
            self._tell()
        else:
            self.world.agenda.after(seconds, partial(self._go_on, turning))

    def _tell(self) -> None:
        """Say once of each pod that nobody can host it, or that no pool may grow for it."""
        want = self.memory.demand
        if want is None:
            return
        for kind, found, counted in (("refuse", want.unplaceable, ("pods_refused",)), ("wait", want.capped, ())):
            # one line for all that wait for the same reason: a thousand replicas are one piece of news
            news: dict[str, list[Pod]] = {}
            for uid, refusal in found.items():
                if uid not in self._told and uid in self.world.book.pods:
                    self._told.add(uid)
                    news.setdefault(refusal.reason, []).append(self.world.book.pods[uid])
            for reason, pods in news.items():
                self.world.ledger.say(kind, list_names(pods), reason, *counted * len(pods))

    def _waiting(self, pod: Pod) -> PendingReading:
        seconds, want = self.now - pod.created, self.memory.demand
        refusal = self.world.scheduler.refusal(pod.request)
        if want is not None:
            refusal = want.unplaceable.get(pod.uid) or want.capped.get(pod.uid) or refusal
        if refusal is None:
            return PendingReading(pod.key, seconds, "scheduling", "waiting for the next scheduling cycle")
        home = None if want is None else want.nominations.get(pod.uid)
        reason = refusal.reason if home is None else f"node {home.machine} is being added for it: {shorten(refusal)}"
        return PendingReading(pod.key, seconds, refusal.why.value, reason)

    def _phantoms(self) -> int:
        return len(find_fragmented(self.world.seen(), self.world.scheduler.pending))

    def _unserved(self) -> int:
        """Pods that some pool could host and for which nothing is coming: must never be."""
        want = self.memory.demand
        patience = 2 * (self.limits.scan_interval_seconds + self.limits.action_validation_delay_seconds)
        late = (pod.uid for pod in self.world.scheduler.pending if self.now - pod.created > patience)
        if want is None:
            return 0
        return len(set(late) - want.answered_pods() - (set(want.fits) if self.world.pass_due else set()))
