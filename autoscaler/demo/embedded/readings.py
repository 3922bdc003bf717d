# SPDX-License-Identifier: Apache-2.0
"""
What an exporter would measure on the simulated cluster: one reading per node, and the counters of compute.

A node is read again when it has changed or its reading is old, at most so many nodes per frame: a large cluster at high
speed is shown a little late, as a real one is. Every reading adds up card by card: used = containers + unattributed +
reserved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from autoscaler.core.lifecycle import COMING, MachineState
from autoscaler.demo.embedded.pod_life import iterate_promises
from autoscaler.demo.embedded.usage import share_memory
from isolation.contract.model import FULL_CORE, Mode
from isolation.contract.quantity import MIB
from isolation.contract.reading import CardReading, ContainerReading, NodeReading, PoolReading

if TYPE_CHECKING:
    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.demo.embedded.fake_cluster import FakeCluster
    from autoscaler.demo.embedded.usage import UsageProfile
    from isolation.contract.model import Ask, Card, Pod
    from isolation.contract.reading import Frame

SAMPLE_SECONDS: Final = 5.0
"""Age at which a node's figures are taken again."""
SAMPLES_PER_FRAME: Final = 256
"""Nodes whose figures are taken again for their age in one frame."""
UNATTRIBUTED_ONE_IN: Final = 8
"""One card in so many has processes without an allocation."""
WATTS: Final = {"Tesla-T4": (10.0, 70.0), "NVIDIA-A10": (20.0, 150.0), "NVIDIA-A100-SXM4-80GB": (55.0, 400.0)}
"""Idle and most power; NVIDIA's data sheets give the latter, the former is a usual reading."""
OVER_LIMIT: Final = "over_limit"
"""The one kind of breach that happens here, as exporters call it; the others are not looked for."""
COOL_CELSIUS: Final = 32.0
WARM_CELSIUS: Final = 42.0
"""On top, at full use."""


class _ContainerUse(NamedTuple):
    """One container on one card while a node is read."""

    pod: Pod
    ask: Ask
    profile: UsageProfile
    age: float
    asked: int
    promised: int
    core: int


class ReadingCache:
    """Keeps the latest reading of every node."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._latest: dict[str, tuple[float, NodeReading]] = {}
        self._order: tuple[str, ...] = ()

    def nodes(self) -> tuple[NodeReading, ...]:
        """Every node, by pool and name; taken again where due."""
        cluster, now = self._cluster, self._cluster.clock.now
        changed, machines = cluster.state.changed, cluster.provider.machines
        if changed:
            self._order = tuple(sorted(machines, key=lambda name: (machines[name].pool, _natural_key(name))))
            for name in changed:
                self._latest.pop(name, None)
            changed.clear()
        # oldest first where there are too many, so that every node gets its turn
        old = [(at, name) for name, (at, _) in self._latest.items() if now - at >= SAMPLE_SECONDS]
        due = sorted(old)[:SAMPLES_PER_FRAME] if len(old) > SAMPLES_PER_FRAME else old
        missing = [name for name in self._order if name not in self._latest]
        for name in (*missing, *(name for _, name in due)):
            self._latest[name] = (now, self._read(machines[name]))
        return tuple(self._latest[name][1] for name in self._order)

    def pools(self) -> tuple[PoolReading, ...]:
        """Sizes, machines still booting included."""
        machines = tuple(self._cluster.provider.machines.values())
        return tuple(
            PoolReading(
                name=name,
                nodes=sum(
                    1
                    for m in machines
                    if m.pool == name and m.state in (*COMING, MachineState.READY, MachineState.DRAINING)
                ),
                booting=sum(1 for m in machines if m.pool == name and m.state in COMING),
                min_nodes=pool.min_nodes,
                max_nodes=pool.max_nodes,
                mode=pool.template.mode.value,
            )
            for name, pool in sorted(self._cluster.provider.pools.items())
        )

    def _read(self, machine: PoolMachine) -> NodeReading:
        state = "booting" if machine.state in COMING else machine.state.value
        node = self._cluster.state.engine.nodes.get(machine.name)
        if node is None:
            mode = self._cluster.provider.pools[machine.pool].template.mode
            return NodeReading(machine.name, machine.pool, mode.value, _isolation(mode), (), (), state)
        now = self._cluster.clock.now
        uses: dict[str, list[_ContainerUse]] = {card.uuid: [] for card in node.cards}
        for pod in self._cluster.state.on[node.name].values():
            life = self._cluster.lives[pod.uid]
            age = now - life.placed_at
            for ask, profile, part, asked, promised in iterate_promises(pod, life):
                core = FULL_CORE if ask.whole else ask.core // max(1, pod.request.cards)
                uses[part.uuid].append(_ContainerUse(pod, ask, profile, age, asked, promised, core))
        seed = self._cluster.seed
        cards: list[CardReading] = []
        containers: list[ContainerReading] = []
        for card, (free, _) in zip(node.cards, self._cluster.state.engine.room(node.name), strict=True):
            cards.append(_read_card(card, uses[card.uuid], free, seed, containers))
        return NodeReading(
            node=machine.name,
            pool=machine.pool,
            mode=node.mode.value,
            isolation=_isolation(node.mode),
            cards=tuple(cards),
            containers=tuple(containers),
            state=state,
            breach_counts=((OVER_LIMIT, self._cluster.state.breaches[node.name]),),
        )


def _read_card(card: Card, uses: list[_ContainerUse], free: int, seed: int, out: list[ContainerReading]) -> CardReading:
    """One card, and onto `out` the containers on it."""
    strange = _draw_unattributed_bytes(card, seed)
    room = card.total_bytes - card.reserved_bytes - strange
    wanted = [_wanted_bytes(use) for use in uses]
    used = share_memory(room, [use.promised for use in uses], wanted)
    busy = [_compute_ratio(use, len(uses), card.uuid) for use in uses]
    scale = min(1.0, 1.0 / max(1.0, sum(busy)))
    for use, memory, core in zip(uses, used, busy, strict=True):
        out.append(_read_container(card, use, memory, core * scale))
    utilisation = sum(busy) * scale
    watts = WATTS.get(card.model)
    over = sum(memory > use.promised for use, memory in zip(uses, used, strict=True))
    return CardReading(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        total_bytes=card.total_bytes,
        reserved_bytes=card.reserved_bytes,
        used_bytes=sum(used) + strange + card.reserved_bytes,
        allocated_bytes=card.allocatable_bytes - free,
        allocatable_bytes=card.allocatable_bytes,
        unattributed_bytes=strange,
        utilisation_ratio=utilisation,
        power_watts=None if watts is None else watts[0] + (watts[1] - watts[0]) * utilisation,
        temperature_celsius=COOL_CELSIUS + WARM_CELSIUS * utilisation,
        healthy=card.healthy,
        largest_free_bytes=max(0, free) // card.unit_bytes * card.unit_bytes if card.healthy else 0,
        exclusive=any(use.ask.whole for use in uses),
        holders=len(uses),
        attributable=True,
        breaches=((OVER_LIMIT, over),),
    )


def _read_container(card: Card, use: _ContainerUse, memory: int, core: float) -> ContainerReading:
    return ContainerReading(
        namespace=use.pod.namespace,
        pod=use.pod.name,
        container=use.ask.container,
        promise=use.pod.uid,
        uuid=card.uuid,
        index=card.index,
        exclusive=bool(use.ask.whole),
        allocated_bytes=use.promised,
        used_bytes=memory,
        allocated_core_ratio=use.core / FULL_CORE if use.core else None,
        used_core_ratio=core,
        source="simulation",
        over_limit_seconds=use.profile.over_seconds(use.age),
        over_limit_episodes=int(use.profile.over_seconds(use.age) > 0),
    )


def _wanted_bytes(use: _ContainerUse) -> int:
    wanted = int(use.asked * use.profile.memory_ratio(use.age))
    return wanted if use.promised == use.asked else min(wanted, use.promised)


def _compute_ratio(use: _ContainerUse, tenants: int, uuid: str) -> float:
    """Compute of one container; without a promise it is one tenant among equals."""
    part = use.core / FULL_CORE if use.core else 1.0 / tenants
    return part * use.profile.compute_ratio(use.age, f"{use.pod.uid}{uuid}")


def _draw_unattributed_bytes(card: Card, seed: int) -> int:
    """Memory of processes without an allocation: a few cards have some, within what is never promised."""
    draw = crc32(f"{seed}/{card.uuid}".encode())
    if draw % UNATTRIBUTED_ONE_IN:
        return 0
    never_promised = card.total_bytes - card.reserved_bytes - card.allocatable_bytes
    return never_promised * (1 + draw // UNATTRIBUTED_ONE_IN % 4) // 8 // MIB * MIB


def _isolation(mode: Mode) -> str:
    return "library" if mode in (Mode.CGPU, Mode.CORE_MEM) else "none"


def _natural_key(name: str) -> tuple[str, int, str]:
    """`pool-2` before `pool-10`."""
    head, _, tail = name.rpartition("-")
    return (head, int(tail), "") if tail.isdecimal() else (name, 0, "")


class ComputeSeconds:
    """Remembers where each counter stands; one that is gone from a frame begins at 0 when it comes again."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._cards: dict[str, float] = {}
        self._containers: dict[tuple[str, str, str], float] = {}

    def add(self, frame: Frame, now: float) -> Frame:
        """The same frame with its counters, at `now` seconds of the real clock."""
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        cards, containers = self._cards, self._containers
        self._cards, self._containers = {}, {}

        def card(one: CardReading) -> CardReading:
            if one.utilisation_ratio is None:
                return one
            seconds = self._cards[one.uuid] = _advance_counter(cards.get(one.uuid), one.utilisation_ratio, elapsed)
            return replace(one, busy_seconds=seconds)

        def container(one: ContainerReading) -> ContainerReading:
            if one.used_core_ratio is None:
                return one
            key = (one.promise, one.container, one.uuid)
            seconds = self._containers[key] = _advance_counter(containers.get(key), one.used_core_ratio, elapsed)
            return replace(one, compute_seconds=seconds)

        def node(one: NodeReading) -> NodeReading:
            return replace(one, cards=tuple(map(card, one.cards)), containers=tuple(map(container, one.containers)))

        return replace(frame, nodes=tuple(map(node, frame.nodes)))


def _advance_counter(before: float | None, ratio: float, elapsed: float) -> float:
    return 0.0 if before is None else before + ratio * elapsed
