# SPDX-License-Identifier: Apache-2.0
"""
What goes wrong, when, and how often: drawn from the seed before anything runs.

Each stroke is one word of `STROKES` at one moment. Everything that is struck down comes back; at the end
of the storm the weather clears, so that what is still wrong later is nobody's fault but ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from interleave import crowded
from interleave.wire import Weather

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from interleave.agent import NodeAgent
    from interleave.kubelet import Kubelet
    from interleave.kubescheduler import KubeScheduler
    from interleave.replica import Replica
    from interleave.wire import Net

STROKES: Final = (
    "scheduler_crash",
    "scheduler_pause",
    "kube_scheduler_crash",
    "two_kube_schedulers",
    "agent_crash",
    "agent_upgrade",
    "agent_pause",
    "kubelet_restart",
    "reboot",
    "outage",
    "watches_cut",
    "versions_forgotten",
    "foreign_list",
)
_WEIGHTS: Final = (10, 6, 4, 5, 12, 4, 4, 5, 3, 4, 6, 4, 40)
EXTRA: Final = ("checkpoint_lost",)
"""What the proof does not promise, and can be asked for."""
MOST_FUSE: Final = 400
"""A crash comes after so many steps of the process at most, wherever that is."""


@dataclass(slots=True)
class Cast:
    """Everybody who can be struck."""

    net: Net
    replicas: Sequence[Replica]
    schedulers: Sequence[KubeScheduler]
    kubelets: Sequence[Kubelet]
    agents: Sequence[NodeAgent]


@dataclass(slots=True)
class Storm:
    """See the module."""

    draw: random.Random
    horizon: float
    extra: frozenset[str] = frozenset()
    """Of `EXTRA`, or of the others once more."""
    crowded: bool = False
    strokes: list[tuple[float, str]] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)
    say: Callable[[str], None] = lambda _: None
    over: bool = False
    """Whoever is down now comes back, nobody is struck any more."""

    def __post_init__(self) -> None:
        many = crowded.many_strokes(self.draw) if self.crowded else self.draw.choice((0, 4, 12, 30))
        for _ in range(many):
            word = self.draw.choices(STROKES, crowded.WEIGHTS if self.crowded else _WEIGHTS)[0]
            self.strokes.append((self.draw.uniform(1.0, self.horizon), word))
        self.strokes += [(self.draw.uniform(1.0, self.horizon), word) for word in sorted(self.extra)]

    def weather(self) -> Weather:
        """For this run: some are fine, some are foul."""
        if self.crowded:
            return crowded.weather(self.draw)
        if self.draw.random() < 0.25:
            return Weather()
        badness = self.draw.choice((0.01, 0.04, 0.12))
        return Weather(
            lost=badness * self.draw.random(),
            unanswered=badness * self.draw.random(),
            belated=badness * self.draw.random(),
            refused=badness * self.draw.random(),
            slow=badness * self.draw.random() * 2,
            cut=badness * self.draw.random() * 0.5,
            lag=self.draw.choice((0.01, 0.01, 0.05, 0.25)),
        )

    def unleash(self, cast: Cast) -> None:
        """Every stroke at its time."""
        for moment, word in self.strokes:
            cast.net.loop.later(moment, self._strike, cast, word)

    def clear(self, cast: Cast) -> None:
        """The end of the storm: fair weather, everybody up."""
        self.over = True
        weather = cast.net.weather
        weather.down = False
        weather.lag = 0.01
        cast.net.cut_all(None)
        weather.lost = weather.unanswered = weather.belated = weather.refused = weather.slow = weather.cut = 0.0
        for things in (cast.kubelets, cast.agents, cast.replicas, cast.schedulers):
            for thing in things:
                thing.process.fuse = None
                thing.process.frozen = 0.0
                if not thing.process.alive:
                    thing.start()

    def _strike(self, cast: Cast, word: str) -> None:
        if not self.over:
            self.count[word] += 1
            self.say(f"--- {word}")
            getattr(self, f"_{word}")(cast)

    # The strokes.

    def _scheduler_crash(self, cast: Cast) -> None:
        self._light(cast, self.draw.choice(cast.replicas), self.draw.uniform(0.5, 5.0))

    def _scheduler_pause(self, cast: Cast) -> None:
        self._freeze(cast, self.draw.choice(cast.replicas), 9.0)

    def _kube_scheduler_crash(self, cast: Cast) -> None:
        self._light(cast, self.draw.choice(cast.schedulers), self.draw.uniform(0.5, 5.0))

    def _two_kube_schedulers(self, cast: Cast) -> None:
        for one in cast.schedulers:
            one.stubborn = cast.net.loop.time() + self.draw.uniform(1.0, 10.0)

    def _agent_crash(self, cast: Cast) -> None:
        self._light(cast, self.draw.choice(cast.agents), self.draw.uniform(0.2, 6.0))

    def _agent_upgrade(self, cast: Cast) -> None:
        agent = self.draw.choice(cast.agents)
        agent.stop()
        self._restart(cast, agent, self.draw.uniform(0.2, 3.0))

    def _agent_pause(self, cast: Cast) -> None:
        self._freeze(cast, self.draw.choice(cast.agents), 5.0)

    def _kubelet_restart(self, cast: Cast) -> None:
        kubelet = self.draw.choice(cast.kubelets)
        kubelet.stop()
        self._restart(cast, kubelet, self.draw.uniform(0.3, 4.0))

    def _checkpoint_lost(self, cast: Cast) -> None:
        kubelet = self.draw.choice(cast.kubelets)
        kubelet.stop()
        kubelet.books.pods.clear()
        kubelet.books.in_use.clear()
        self._restart(cast, kubelet, self.draw.uniform(0.3, 4.0))

    def _reboot(self, cast: Cast) -> None:
        at = self.draw.randrange(len(cast.kubelets))
        kubelet, agent = cast.kubelets[at], cast.agents[at]
        kubelet.stop()
        agent.stop()
        kubelet.machine.reboot()
        self._restart(cast, kubelet, self.draw.uniform(2.0, 6.0))
        self._restart(cast, agent, self.draw.uniform(2.0, 6.0))

    def _outage(self, cast: Cast) -> None:
        cast.net.weather.down = True
        cast.net.cut_all(None)
        cast.net.loop.later(self.draw.uniform(0.5, 10.0), self._back, cast)

    def _back(self, cast: Cast) -> None:
        cast.net.weather.down = False

    def _watches_cut(self, cast: Cast) -> None:
        cast.net.cut_all(None)

    def _versions_forgotten(self, cast: Cast) -> None:
        cast.net.server.compact()
        cast.net.cut_all(None)

    def _foreign_list(self, cast: Cast) -> None:
        kubelet = self.draw.choice(cast.kubelets)
        for _ in range(20):
            cast.net.loop.later(self.draw.uniform(0.0, 3.0), kubelet.listed)

    # How.

    def _light(self, cast: Cast, thing: Replica | KubeScheduler | NodeAgent, down: float) -> None:
        """It dies after some more steps of its own, in the middle of whatever it is at, and comes back."""
        process = thing.process
        if not process.alive or process.fuse is not None:
            return
        process.fuse = self.draw.randrange(MOST_FUSE)
        process.mourners.append(lambda: self._restart(cast, thing, down))

    def _freeze(self, cast: Cast, thing: Replica | NodeAgent, most: float) -> None:
        thing.process.frozen = cast.net.loop.time() + self.draw.uniform(0.5, most)

    def _restart(self, cast: Cast, thing: Replica | KubeScheduler | NodeAgent | Kubelet, down: float) -> None:
        cast.net.loop.later(down, self._start, thing)

    def _start(self, thing: Replica | KubeScheduler | NodeAgent | Kubelet) -> None:
        if not thing.process.alive:
            thing.start()
