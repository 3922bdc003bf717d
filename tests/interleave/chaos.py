# SPDX-License-Identifier: Apache-2.0
"""
What goes wrong, when, and how often: drawn from the seed before anything runs.

Each stroke is one word of `STROKES` at one moment. Everything that is struck down comes back; at the end
of the storm the weather clears, so that what is still wrong later is nobody's fault but ours.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from interleave.wire import Weather

from isolation.contract.names import ALLOCATION
from isolation.contract.nri_api import NriContainerState
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from interleave.agent import NodeAgent
    from interleave.device_plugin import DevicePlugin
    from interleave.kubelet import Kubelet
    from interleave.kubescheduler import KubeScheduler
    from interleave.replica import Replica
    from interleave.runtime import Runtime
    from interleave.wire import Net

    Anybody = Replica | KubeScheduler | NodeAgent | DevicePlugin | Kubelet | Runtime

STROKES: Final = {
    "scheduler_crash": 10,
    "scheduler_pause": 6,
    "kube_scheduler_crash": 4,
    "two_kube_schedulers": 5,
    "agent_crash": 14,
    "agent_upgrade": 5,
    "agent_pause": 6,
    "device_plugin_crash": 4,
    "slow_disk": 6,
    "runtime_restart": 8,
    "sandbox_lost": 6,
    "kubelet_restart": 6,
    "reboot": 3,
    "record_changed": 10,
    "outage": 4,
    "watches_cut": 6,
    "versions_forgotten": 4,
}
"""What can go wrong, and how often."""
MAX_FUSE: Final = 400
"""A crash comes after so many steps of the process at most, wherever that is."""


@dataclass(slots=True)
class Cast:
    """Everybody who can be struck."""

    net: Net
    replicas: Sequence[Replica]
    schedulers: Sequence[KubeScheduler]
    kubelets: Sequence[Kubelet]
    agents: Sequence[NodeAgent]
    device_plugins: Sequence[DevicePlugin]


@dataclass(slots=True)
class Storm:
    """See the module."""

    draw: random.Random
    horizon: float
    extra: frozenset[str] = frozenset()
    """Of these one more."""
    strokes: list[tuple[float, str]] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)
    say: Callable[[str], None] = lambda _: None
    over: bool = False
    """Whoever is down now comes back, nobody is struck any more."""

    def __post_init__(self) -> None:
        for _ in range(self.draw.choice((0, 4, 12, 24))):
            word = self.draw.choices(tuple(STROKES), tuple(STROKES.values()))[0]
            self.strokes.append((self.draw.uniform(1.0, self.horizon), word))
        self.strokes += [(self.draw.uniform(1.0, self.horizon), word) for word in sorted(self.extra)]

    def weather(self) -> Weather:
        """For this run: some are fine, some are foul."""
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
            spoilt=badness * self.draw.random(),
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
        weather.lost = weather.unanswered = weather.belated = weather.refused = weather.slow = weather.cut = (
            weather.spoilt
        ) = 0.0
        for kubelet in cast.kubelets:
            kubelet.machine.slow_until = 0.0
        runtimes = [kubelet.runtime for kubelet in cast.kubelets]
        for things in (runtimes, cast.kubelets, cast.device_plugins, cast.agents, cast.replicas, cast.schedulers):
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
        """The agent ends, then its device plugin; the new ones come in the other order."""
        at = self.draw.randrange(len(cast.agents))
        cast.agents[at].stop()
        cast.device_plugins[at].stop()
        down = self.draw.uniform(0.2, 3.0)
        self._restart(cast, cast.device_plugins[at], down)
        self._restart(cast, cast.agents[at], down + self.draw.uniform(0.1, 2.0))

    def _device_plugin_crash(self, cast: Cast) -> None:
        self._light(cast, self.draw.choice(cast.device_plugins), self.draw.uniform(0.2, 3.0))

    def _agent_pause(self, cast: Cast) -> None:
        self._freeze(cast, self.draw.choice(cast.agents), 5.0)

    def _kubelet_restart(self, cast: Cast) -> None:
        kubelet = self.draw.choice(cast.kubelets)
        kubelet.stop()
        self._restart(cast, kubelet, self.draw.uniform(0.3, 4.0))

    def _slow_disk(self, cast: Cast) -> None:
        kubelet = self.draw.choice(cast.kubelets)
        kubelet.machine.slow_until = cast.net.loop.time() + self.draw.uniform(1.0, 10.0)

    def _runtime_restart(self, cast: Cast) -> None:
        runtime = self.draw.choice(cast.kubelets).runtime
        self._light(cast, runtime, self.draw.uniform(0.1, 3.0), self.draw.choice((1, 50)))

    def _sandbox_lost(self, cast: Cast) -> None:
        """Its pause process died: the kubelet makes another one."""
        runtime = self.draw.choice(cast.kubelets).runtime
        sound = sorted(runtime.sandboxes.keys() - runtime.lost)
        if sound:
            sandbox = self.draw.choice(sound)
            runtime.lost.add(sandbox)
            for one in runtime.containers.values():
                if one.sandbox.id == sandbox and one.state == NriContainerState.RUNNING:
                    runtime.machine.kill(one, self.draw.choice((0.0, 1.0, 10.0)))

    def _record_changed(self, cast: Cast) -> None:
        """Somebody gives a running pod less of the same cards."""
        server = cast.net.server
        pods = [pod for pod in server.things["pods"].values() if pod["status"].get("phase") == "Running"]
        if not pods:
            return
        pod = self.draw.choice(pods)
        record = json.loads(pod["metadata"]["annotations"][ALLOCATION])
        if "resize" in record:
            return
        for part in (record, *record["containers"]):
            for card in part["cards"]:
                card["bytes"] = max(GIB, card["bytes"] - GIB)
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        body = {"metadata": {"annotations": {ALLOCATION: json.dumps(record)}}}
        server.handle("operator", "PATCH", path, body, "merge-patch")

    def _reboot(self, cast: Cast) -> None:
        at = self.draw.randrange(len(cast.kubelets))
        kubelet, agent = cast.kubelets[at], cast.agents[at]
        kubelet.stop()
        agent.stop()
        cast.device_plugins[at].process.die()
        kubelet.machine.reboot()
        kubelet.runtime.reboot()
        self._restart(cast, kubelet.runtime, self.draw.uniform(1.0, 3.0))
        self._restart(cast, kubelet, self.draw.uniform(2.0, 6.0))
        self._restart(cast, agent, self.draw.uniform(2.0, 6.0))
        self._restart(cast, cast.device_plugins[at], self.draw.uniform(2.0, 6.0))

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

    # How.

    def _light(self, cast: Cast, thing: Anybody, down: float, most: int = MAX_FUSE) -> None:
        """It dies after some more steps of its own, in the middle of whatever it is at, and comes back."""
        process = thing.process
        if not process.alive or process.fuse is not None:
            return
        process.fuse = self.draw.randrange(most)
        process.mourners.append(lambda: self._restart(cast, thing, down))

    def _freeze(self, cast: Cast, thing: Replica | NodeAgent, most: float) -> None:
        thing.process.frozen = cast.net.loop.time() + self.draw.uniform(0.5, most)

    def _restart(self, cast: Cast, thing: Anybody, down: float) -> None:
        cast.net.loop.later(down, self._start, thing)

    def _start(self, thing: Anybody) -> None:
        if not thing.process.alive:
            thing.start()
