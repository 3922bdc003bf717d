# SPDX-License-Identifier: Apache-2.0
"""
What a kubelet's device manager knows and decides, without sockets, threads and time.

    state = DeviceState(random.Random(1))
    state.offer("aliyun.com/gpu-mem", healthy={"1GiB-0", "1GiB-1"}, unhealthy=set())
    calls = state.admit(uid, inits, apps, active)   # a generator: yields Allocate, is sent the plugin's answers
    state.pods[uid][container][resource] -> the IDs it believes in

It keeps the manners of kubelet 1.36 (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/manager.go, observed in a
running one):
- per container, init containers first, each asked alone; what the container has already is not asked again;
- IDs of ended init containers are reused by later ones, a sidecar's are not; the surplus of a larger init stays held;
- an error of the plugin ends the pod for good (`Rejected`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Generator, Iterable, Sequence

UNAVAILABLE = "UnexpectedAdmissionError"


@dataclass
class Box:
    """One container as the kubelet starts it."""

    name: str
    units: dict[str, int] = field(default_factory=dict)
    """Of each resource that a plugin owns."""
    sidecar: bool = False
    """Among the init containers: restartPolicy Always."""
    env: dict[str, str] = field(default_factory=dict)
    """As the tenant wrote it."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Host path by container path, the tenant's volumes."""
    seconds: float | None = None
    """How long it runs before it succeeds; None: an init at once, any other until it is ended."""


@dataclass(frozen=True)
class Allocate:
    """An Allocate; the answer is whatever the plugin gives to this container."""

    resource: str
    ids: tuple[str, ...]


Steps: TypeAlias = "Generator[Allocate, object, None]"
"""Yields what the plugin must be asked, is sent its answer."""


class Rejected(Exception):  # noqa: N818 (the kubelet's word)
    """The pod has failed for good."""


class DeviceState:
    """See the module."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.in_use: dict[str, set[str]] = {}
        self.pods: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
        """By pod UID, container and resource."""
        self.answers: dict[tuple[str, str, str], object] = {}
        """What the plugin answered to each Allocate: kept, never asked for again."""
        self._admitted = ""

    def offer(self, resource: str, healthy: Iterable[str], unhealthy: Iterable[str] = ()) -> None:
        """What the plugin lists now."""
        self.healthy[resource], self.unhealthy[resource] = set(healthy), set(unhealthy)

    def withdraw(self, resource: str) -> None:
        """The plugin's connection is gone: nothing is sound any more, capacity stays."""
        if resource in self.healthy:
            self.unhealthy[resource] |= self.healthy[resource]
            self.healthy[resource] = set()

    def forget(self, resource: str) -> None:
        """Five minutes later: both are 0."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)

    def capacity(self, resource: str) -> tuple[int, int]:
        """Capacity and allocatable."""
        sound = len(self.healthy.get(resource, ()))
        return sound + len(self.unhealthy.get(resource, ())), sound

    def collect(self, active: Iterable[str]) -> None:
        """Pods that are no longer active let go of theirs; done before each allocation."""
        gone = self.pods.keys() - set(active) - {self._admitted}
        if not gone:
            return
        for uid in gone:
            del self.pods[uid]
        self._regenerate()

    def _regenerate(self) -> None:
        self.in_use = {}
        for boxes in self.pods.values():
            for held in boxes.values():
                for resource, ids in held.items():
                    self.in_use.setdefault(resource, set()).update(ids)

    def admit(
        self,
        uid: str,
        inits: Sequence[Box],
        apps: Sequence[Box],
        active: Callable[[], Iterable[str]],
        running: Collection[str] = (),
    ) -> Steps:
        """
        Give every container of the pod its IDs; `active()` tells the pods that count, the containers named in
        `running` (after a restart of the kubelet) are left as they are. Raises Rejected.
        """
        self._admitted = uid
        reuse: dict[str, set[str]] = {}
        for box in (*inits, *apps):
            if box.name not in running:
                yield from self._give(uid, box, reuse, active)
            mine = self.pods.get(uid, {}).get(box.name, {})
            for resource, ids in mine.items():
                if box in inits and not box.sidecar:
                    reuse.setdefault(resource, set()).update(ids)
                else:
                    reuse.setdefault(resource, set()).difference_update(ids)

    def _give(self, uid: str, box: Box, reuse: dict[str, set[str]], active: Callable[[], Iterable[str]]) -> Steps:
        collected = False
        for resource, units in box.units.items():
            if units <= 0:
                continue
            if not collected:
                self.collect(active())
                collected = True
            ids = self._choose(uid, box.name, resource, units, reuse.get(resource, set()))
            if not ids:
                continue
            try:
                answer = yield Allocate(resource, ids)
            except Exception as exc:  # noqa: BLE001 (whatever it is, the kubelet gives up)
                self._regenerate()
                raise Rejected(f"Allocate failed due to {exc}, which is unexpected") from None
            held = self.pods.setdefault(uid, {}).setdefault(box.name, {})
            held[resource] = ids
            self.answers[uid, box.name, resource] = answer

    def _choose(self, uid: str, name: str, resource: str, units: int, reusable: Iterable[str]) -> tuple[str, ...]:
        if self._has_sound(self.pods.get(uid, {}).get(name, {}).get(resource), resource):
            return ()
        sound = self.healthy[resource]
        used = self.in_use.setdefault(resource, set())
        chosen: list[str] = []

        def take(pool: Iterable[str]) -> bool:
            rest = [one for one in pool if one not in chosen]
            self._dice.shuffle(rest)
            for one in rest[: units - len(chosen)]:
                used.add(one)
                chosen.append(one)
            return len(chosen) == units

        if take(sorted(reusable)):
            return tuple(chosen)
        free = sorted(sound - used)
        if len(free) < units - len(chosen):
            missing = f"Requested: {units - len(chosen)}, Available: {len(free)}"
            raise Rejected(f"requested number of devices unavailable for {resource}. {missing}")
        take(free)
        return tuple(chosen)

    def _has_sound(self, has: Iterable[str] | None, resource: str) -> bool:
        """Whether the container has its IDs already; Rejected where they, or all, are not sound."""
        sound = self.healthy.get(resource)
        if sound is None:
            raise Rejected(f"cannot allocate unregistered device {resource}")
        if not sound:
            raise Rejected(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if has is not None and not set(has) <= sound:
            raise Rejected(f"previously allocated devices are no longer healthy; cannot allocate {resource}")
        return has is not None
